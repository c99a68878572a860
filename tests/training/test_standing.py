"""What a network is worth beside a constant answer and a linear model, and R^2 by its definition."""

from __future__ import annotations

import copy
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score

from dladmm import NoBetterThanConstant, mlp, train
from dladmm.api.cross_fit import _evidence
from dladmm.compute.communicator import Communicator
from dladmm.losses import Risk, get_loss
from dladmm.losses.constant import constants_of
from dladmm.training.standing import Evidence, Standing, compared, r_squared, standing


class Twice(Communicator):
    """Rank 0 of two that have the same rows."""

    size = 2

    def total(self, *tensors, halves=()):
        return [2 * tensor for tensor in tensors]


def test_r_squared_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    y, z, weight = rng.normal(size=(30, 2)) + 7, rng.normal(size=(30, 2)) + 7, rng.random(30)
    risk = Risk(get_loss("huber"), torch.from_numpy(y))
    assert r_squared(risk, torch.from_numpy(z)) == pytest.approx(r2_score(y, z))
    found = r_squared(risk, torch.from_numpy(z), torch.from_numpy(weight)[:, None])
    assert found == pytest.approx(r2_score(y, z, sample_weight=weight))
    assert r_squared(Risk(get_loss("squared"), torch.ones(3, 1)), torch.zeros(3, 1)) is None


def test_the_linear_model_is_a_logistic_regression():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 400)
    X = rng.normal(size=(400, 4)) + np.eye(3, 4)[y] * 2
    loss = get_loss("cross_entropy")
    target = loss.encode(torch.from_numpy(y), 3, torch.float64)
    x = torch.from_numpy(X)
    found = standing(loss, target[200:], target[200:], x[200:], "200 test rows", (x[:200], target[:200]))
    assert found.network == 1.0
    assert found.constant == pytest.approx(np.mean(y[200:] == np.bincount(y[:200]).argmax()))
    reference = LogisticRegression().fit(X[:200], y[:200]).score(X[200:], y[200:])
    assert found.linear == pytest.approx(reference, abs=0.02)
    assert found.warning is None


def test_warnings_in_plain_words():
    assert "learnt nothing" in str(Standing("accuracy", "9 rows", 0.6, 0.6, 0.9).warning)
    assert "a linear model is better" in str(Standing("R^2", "9 rows", 0.5, 0.0, 0.9).warning)
    assert Standing("R^2", "9 rows", 0.9, 0.0, 0.9).warning is None
    assert Standing("accuracy", "9 rows", 0.9, 0.5, None).lines() == [
        "Accuracy on 9 rows: 0.9000. Beside it: always answering the most frequent class 0.5000, "
        "a linear model not measured."
    ]
    assert Standing("accuracy", "9 training rows", 0.9, 0.5, unseen=False).lines() == [
        "Accuracy on 9 training rows: 0.9000. Beside it: always answering the most frequent class 0.5000."
    ]
    # By rows that were learnt from nothing is said of a linear model
    assert Standing("R^2", "9 training rows", 0.5, 0.0, 0.9, unseen=False).warning is None


def test_a_result_leads_with_it_and_a_copy_holds_no_rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 3))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    result = train(mlp([3, 10, 2]), X, y, max_iter=40)
    assert repr(result).startswith(
        f"Result(accuracy {result.standing.network:.4f} on 60 training rows (constant 0."
    )
    assert "optimisation streaming, nothing claimed" in repr(result)
    assert copy.copy(result).evidence is None
    targets = np.c_[y * 1e6]
    regression = train(mlp([3, 10, 1]), X, targets, loss="squared", max_iter=40, validation=(X, targets))
    with torch.no_grad():
        output = regression.module(torch.from_numpy(X).float())
    assert regression.standing.network == pytest.approx(r2_score(targets, output), abs=1e-3)
    assert regression.history.last("val_r2") == regression.history.last("train_r2")


def test_the_others_learn_from_training_rows_alone():
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(80, 3)))
    loss = get_loss("cross_entropy")
    # The judged rows are all of class 1
    labels = torch.cat([torch.zeros(30), torch.ones(10), torch.ones(40)]).long()
    target = loss.encode(labels, 2, torch.float64)
    found = standing(loss, target[40:], target[40:], x[40:], "40 rows", (x[:40], target[:40]))
    assert found.constant == 0.0
    squared = get_loss("squared")
    y = 3.0 + 2.0 * x[:, :1] - x[:, 1:2] + 0.01 * torch.from_numpy(rng.normal(size=(80, 1)))
    linear = standing(squared, y[40:], y[40:], x[40:], "40 rows", (x[:40], y[:40]))
    assert linear.linear > 0.999
    assert linear.constant < 0.01
    weighted = Risk(squared, y, torch.linspace(0, 1, 80, dtype=torch.float64)[:, None])
    assert r_squared(weighted, y.mean(0).expand_as(y)) <= 0.0


def test_figures_of_several_splits_are_their_means():
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    splits = [((x, x), (x, x)), ((x, -x), (x, x))]
    measured = Standing("R^2", "rows", 0.5, 0.0)
    each = [Evidence(get_loss("squared"), measured, [split]).standing for split in splits]
    both = Evidence(get_loss("squared"), measured, splits).standing
    assert each[0].linear > each[1].linear
    assert both.linear == pytest.approx((each[0].linear + each[1].linear) / 2)
    assert Evidence(get_loss("squared"), measured).standing == measured


def test_the_others_are_judged_by_the_rows_that_were_held_out():
    x = np.linspace(-1, 1, 20)[:, None]
    with pytest.warns(NoBetterThanConstant):
        found = train(mlp([1, 2, 1]), x, x, loss="squared", validation=(x, -x), max_iter=1).standing
    assert found.rows == "20 held-out rows"
    assert found.linear < -1  # it learnt y = x, and these are y = -x


def test_every_row_is_judged_once_by_a_linear_model_that_never_saw_it():
    x, folds = torch.arange(16.0)[:, None], torch.arange(16) % 8
    splits = _evidence(get_loss("squared"), Standing("R^2", "rows", 0.5, 0.0), x, x, folds).splits
    assert sorted(value for judged, _ in splits for value in judged[0][:, 0].tolist()) == x[:, 0].tolist()
    assert all(not set(judged[0][:, 0].tolist()) & set(learnt[0][:, 0].tolist()) for judged, learnt in splits)


LOSSES = [
    "cross_entropy",
    {"name": "cross_entropy", "class_weight": [1.0, 2.0, 0.5], "label_smoothing": 0.1},
    "binary_logistic",
    {"name": "binary_logistic", "pos_weight": [3.0]},
    "squared_hinge",
    "multilabel",
    "squared",
    "huber",
    "absolute",
    {"name": "quantile", "q": 0.9},
    {"name": "poisson", "cap": 2.0},
]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_constant_is_that_of_a_search(loss, weighted):
    rng, loss = np.random.default_rng(4), get_loss(loss)
    outputs = 3 if loss.name in ("cross_entropy", "multilabel", "squared_hinge") else 1
    y = rng.choice(3 if outputs == 3 else 2, 90, p=[0.6, 0.3, 0.1] if outputs == 3 else [0.6, 0.4])
    if loss.name == "multilabel":
        y = rng.random((90, 3)) < [0.2, 0.5, 0.7]
    elif loss.kind == "regression":
        y = rng.exponential(3.0, 90).round(1)
    target = loss.encode(torch.from_numpy(np.array(y)), outputs, torch.float64)
    weight = torch.from_numpy(rng.integers(0, 4, (90, 1)).astype(float)) if weighted else None
    counts = torch.from_numpy(rng.random((90, 1))) if weighted else None
    found = constants_of(Risk(loss, target, weight), outputs, counts)
    share = np.ones(90) if weight is None else (weight * counts)[:, 0].numpy()

    def value(c):
        return loss.rows(torch.from_numpy(np.tile(c, (90, 1))), target).numpy() @ share / share.sum()

    least = minimize(value, np.zeros(outputs), method="Powell", options={"xtol": 1e-8, "ftol": 1e-12}).fun
    assert value(found.output.numpy()) == pytest.approx(least, rel=1e-3)
    assert found.mean.numpy() == pytest.approx(np.average(target, axis=0, weights=share))
    if loss.kind == "classification" and loss.one_answer_per_row:
        decided = loss.decision(found.frequent[None])[0]
        assert int(decided) == np.bincount(loss.decision(target), weights=share).argmax()


@pytest.mark.parametrize("name", ["cross_entropy", "squared", "huber"])
def test_the_comparison_of_ranks_is_that_of_all_rows(name):
    """A rank of two with the same rows, and one process with every row twice."""
    rng, loss = np.random.default_rng(5), get_loss(name)
    y = torch.from_numpy(rng.integers(0, 2, 40) if name == "cross_entropy" else rng.normal(size=40))
    outputs = 2 if name == "cross_entropy" else 1
    target, counts = loss.encode(y, outputs, torch.float64), torch.from_numpy(rng.random((40, 1)))
    one = compared(
        0.1, 0.9, Risk(loss, target, comm=Twice()), None, outputs, "training", counts=counts, comm=Twice()
    )
    twice = torch.cat([target, target]), torch.cat([counts, counts])
    all_rows = compared(0.1, 0.9, Risk(loss, twice[0]), None, outputs, "training", counts=twice[1])
    assert one.rows == all_rows.rows == "80 training rows"
    figures = [
        {name: value for name, value in asdict(each).items() if isinstance(value, float)}
        for each in (one, all_rows)
    ]
    assert len(figures[0]) == 5
    assert figures[0] == pytest.approx(figures[1], rel=1e-9, abs=1e-12)


def test_a_few_wild_targets_do_not_hide_what_a_robust_network_knows():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(500, 1))
    y = X + 0.1 * rng.normal(size=(500, 1))
    y[::50] += 1e6 * rng.choice([-1, 1], (10, 1))
    result = train(mlp([1, 10, 1]), X, y, loss="huber", mode="accelerated", max_iter=30)
    assert result.standing.network < 0.01
    assert result.standing.loss > 0.99 * result.standing.constant_loss
    assert not result.standing.no_better


@pytest.mark.parametrize(
    ("figures", "rows", "unseen", "better"),
    [
        ((0.54, 0.5, 0.690, 0.693), 400, True, False),  # less than two standard errors
        ((0.54, 0.5, 0.690, 0.693), 4000, True, True),
        ((0.54, 0.5, 0.690, 0.693), 400, False, True),  # of the same rows no chance is to be told
        ((0.50, 0.5, 0.684, 0.693), 400, True, True),  # 2 / 400 of the log loss
        ((0.50, 0.5, 0.690, 0.693), 400, True, False),
        ((0.97, 0.97, 0.100, 0.135), 1000, True, True),  # rare classes
        ((0.97, 0.97, 0.135, 0.135), 1000, False, False),
        ((0.80, 0.5, 0.900, 0.693), 100, True, True),  # overconfident
        ((0.90, 0.5, 0.300, 0.693), 4, True, True),
        ((1.00, 1.0, 0.100, 0.000), 50, True, True),  # one class: nothing is better than a constant
    ],
)
def test_accuracy_or_loss_must_be_better_than_chance_makes_it(figures, rows, unseen, better):
    network, constant, loss, constant_loss = figures
    found = Standing("accuracy", "rows", network, constant, None, loss, constant_loss, None, rows, unseen)
    assert found.no_better is not better
    assert (found.warning is None) is better


def test_r_squared_and_losses_alone_are_judged_too():
    few, many = ({"n_rows": n, "loss_scale": 1.0} for n in (100, 10_000))
    assert Standing("R^2", "rows", 0.03, 0.0, None, 0.985, 1.0, **few).no_better
    assert not Standing("R^2", "rows", 0.03, 0.0, None, 0.985, 1.0, **many).no_better
    assert Standing("loss", "rows", 0.999, 1.0, None, 0.9995, 1.0, **many).no_better
    assert not Standing("loss", "rows", 0.99, 1.0, None, 0.99, 1.0, **many).no_better
    assert Standing("R^2", "rows", float("nan"), 0.0, None, float("inf"), 1.0, **few).no_better
    assert Standing("R^2", "rows", float("nan"), 0.0).to_dict()["network"] is None
