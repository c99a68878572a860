"""What a network is worth beside a constant answer and a linear model, and R^2 by its definition."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score

from dladmm import mlp, train
from dladmm.api.cross_fit import _evidence
from dladmm.losses import Risk, get_loss
from dladmm.training.standing import Evidence, Standing, r_squared, standing


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
    each = [Evidence(get_loss("squared"), 0.5, "rows", [split]).standing for split in splits]
    both = Evidence(get_loss("squared"), 0.5, "rows", splits).standing
    assert each[0].linear > each[1].linear
    assert both.linear == pytest.approx((each[0].linear + each[1].linear) / 2)
    assert both.constant == pytest.approx((each[0].constant + each[1].constant) / 2)


def test_the_others_are_judged_by_the_rows_that_were_held_out():
    x = np.linspace(-1, 1, 20)[:, None]
    found = train(mlp([1, 2, 1]), x, x, loss="squared", validation=(x, -x), max_iter=1).standing
    assert found.rows == "20 held-out rows"
    assert found.linear < -1  # it learnt y = x, and these are y = -x


def test_every_row_is_judged_once_by_a_linear_model_that_never_saw_it():
    x, folds = torch.arange(16.0)[:, None], torch.arange(16) % 8
    splits = _evidence(get_loss("squared"), 0.5, x, x, folds).splits
    assert sorted(value for judged, _ in splits for value in judged[0][:, 0].tolist()) == x[:, 0].tolist()
    assert all(not set(judged[0][:, 0].tolist()) & set(learnt[0][:, 0].tolist()) for judged, learnt in splits)
