"""A network that ends no better than a constant answer says so: a Python warning and a status, whatever the door."""

from __future__ import annotations

import contextlib
import csv
import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from command_line import in_this_process
from dladmm import (
    GCNClassifier,
    MLPClassifier,
    MLPRegressor,
    ModuleClassifier,
    ModuleRegressor,
    NoBetterThanConstant,
    Status,
    baselines,
    mlp,
    train,
    train_graph,
)
from dladmm.callbacks import Callback
from dladmm.estimators.incremental import STEPS_TO_JUDGE
from dladmm.silos import run_silos, train_silo
from dladmm.training.checkpoint import load_model

USELESS = Status.NO_BETTER_THAN_CONSTANT
N = 240


def rows(useful):
    """Two classes; inputs that tell them, or noise of which the classes know nothing."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, N)
    noise = rng.normal(size=(N, 3))
    return (noise + 3 * y[:, None] if useful else np.ones((N, 3))), y


def noisy(useful):
    """As :func:`rows`, where inputs are different in every row: what only held-out rows tell from learning."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, N)
    return rng.normal(size=(N, 3)) + 3 * y[:, None] * useful, y


def numbers(useful):
    X, y = rows(useful)
    return X, np.random.default_rng(2).normal(size=N) + 5.0 * y


def noisy_numbers(useful):
    X, y = noisy(useful)
    return X, np.random.default_rng(2).normal(size=N) + 5.0 * y


def graph(useful):
    X, y = rows(useful)
    ring = np.arange(N)
    order = np.argsort(y, kind="stable")
    edges = np.stack([order[ring], order[(ring + 1) % N]])
    mask = np.random.default_rng(3).random(N) < 0.5
    return X, edges, y, mask


def of_train(loss="cross_entropy", outputs=2, data=rows, **options):
    def door(useful):
        X, y = data(useful)
        return train(mlp([3, 6, outputs]), X, y, loss=loss, max_iter=30, **options).status

    return door


def of_validation(useful):
    X, y = noisy(useful)
    half = N // 2
    held = X[half:], y[half:]
    return train(mlp([3, 30, 2]), X[:half], y[:half], validation=held, max_iter=60).status


def of_own_loss(useful):
    X, y = rows(useful)
    module = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    return train(module, X, y, loss=lambda z, t: F.cross_entropy(z, t.long()), max_iter=5).status


def of_labels(useful):
    X, y = rows(useful)
    several = np.stack([y, 1 - y, np.random.default_rng(4).integers(0, 2, N)], axis=1)
    return train(mlp([3, 6, 3]), X, several, loss="multilabel", max_iter=30).status


def of_counts(useful):
    X, y = rows(useful)
    counts = np.random.default_rng(5).poisson(1 + 9 * y)
    return train(mlp([3, 6, 1]), X, counts, loss="poisson", max_iter=30).status


def of_stream(useful):
    X, y = rows(useful)
    data = TensorDataset(torch.from_numpy(X).float(), torch.from_numpy(y))
    batches = DataLoader(data, batch_size=40)
    return train(mlp([3, 6, 2]), batches, mode="streaming", max_iter=5, random_state=0).status


def of_estimator(make, data):
    def door(useful):
        return make().fit(*data(useful)).status_

    return door


def network(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 6), nn.ReLU(), nn.Linear(6, n_out))


def of_partial_fit(useful):
    X, y = rows(useful)
    found = MLPClassifier((6,), random_state=0, batch_size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoBetterThanConstant)
        found.partial_fit(X[:20], y[:20], classes=[0, 1])  # too little to be judged by
    for _ in range(-(-STEPS_TO_JUDGE * 20 // N)):
        found.partial_fit(X, y)
    return found.status_


def of_silos(useful):
    X, y = rows(useful)

    def silo_with(k):
        def run(silo):
            return train_silo(silo, mlp([3, 6, 2]), X[k::2], y[k::2], max_iter=10, mode="accelerated")

        return run

    found = run_silos([silo_with(k) for k in range(2)], patience=100)
    assert len({result.status for result in found}) == 1
    return found[0].status


def of_baseline(useful):
    X, y = rows(useful)
    return baselines.train("adam", mlp([3, 6, 2]), X, y, max_iter=200).status


def of_graph(useful):
    X, edges, y, mask = graph(useful)
    return train_graph(X, edges, y, mask, hidden=(6,), max_iter=30).status


def of_graph_estimator(useful):
    X, edges, y, mask = graph(useful)
    found = GCNClassifier((6,), max_iter=100, tol=1e-2, random_state=0)
    return found.fit(X, y, edge_index=edges, train_mask=mask).status_


def on_the_command_line(tmp_path, useful, *words):
    X, y = rows(useful)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "class"])
        writer.writerows([*map(float, x), int(k)] for x, k in zip(X, y, strict=True))
    command = [
        "train",
        "mlp",
        "--csv",
        "rows.csv",
        "--target",
        "class",
        "--task",
        "classification",
        "--out",
        "run",
    ]
    more = ["--mode", "accelerated", "--hidden", "6", "--max-iter", "30"]
    return in_this_process(*command, *more, *words, cwd=tmp_path)


DOORS = {
    "train": of_train(random_state=1),
    "train, the paper's algorithm": of_train(mode="convergent", rho=2.0),
    "train, streaming": of_train(mode="streaming", batch_size=20),
    "train, held-out rows": of_validation,
    "train, squared": of_train("squared", 1, numbers),
    "train, quantile": of_train({"name": "quantile", "q": 0.9}, 1, numbers),
    "train, poisson": of_counts,
    "train, multilabel": of_labels,
    "train, a loss of one's own": of_own_loss,
    "train, a stream": of_stream,
    "a baseline": of_baseline,
    "MLPClassifier": of_estimator(lambda: MLPClassifier((6,), random_state=0), noisy),
    "MLPClassifier, early_stopping": of_estimator(
        lambda: MLPClassifier((6,), early_stopping=True, validation_fraction=0.4, random_state=0), noisy
    ),
    "MLPRegressor": of_estimator(lambda: MLPRegressor((6,), random_state=0), noisy_numbers),
    "ModuleClassifier": of_estimator(lambda: ModuleClassifier(network, random_state=0, tol=1e-2), rows),
    "ModuleRegressor": of_estimator(lambda: ModuleRegressor(network, random_state=0, tol=1e-2), numbers),
    "partial_fit": of_partial_fit,
    "silos": of_silos,
    "train_graph": of_graph,
    "GCNClassifier": of_graph_estimator,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_useless_network_warns_and_its_status_says_so(door):
    with pytest.warns(NoBetterThanConstant, match="no better than a constant answer on"):
        assert DOORS[door](False) is USELESS


@pytest.mark.parametrize("door", DOORS)
def test_a_useful_one_does_not(door):
    assert DOORS[door](True) is not USELESS


def test_the_warning_names_the_line_that_called_and_what_to_try():
    X, y = rows(False)
    with pytest.warns(NoBetterThanConstant) as found:
        result = train(mlp([3, 6, 2]), X, y, max_iter=3)
    (one,) = found
    assert one.filename == __file__
    share = max(np.mean(y), 1 - np.mean(y))
    figures = rf"accuracy {share:.4f}, always answering the most frequent class {share:.4f}; mean loss"
    assert f"on 240 training rows: {figures}" in str(one.message)
    assert "max_iter" in str(one.message)
    assert "NO BETTER than a constant" in repr(result)
    assert result.status.ok
    with pytest.warns(NoBetterThanConstant) as found:
        MLPClassifier((6,), random_state=0).fit(*noisy(False))
    assert [each.filename for each in found] == [__file__]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_the_command_line_says_it_and_ends_with_0(tmp_path, words):
    useless = on_the_command_line(tmp_path, False, *words)
    assert useless.returncode == 0, useless.stderr
    if words:
        printed = json.loads(useless.stdout)
        assert printed["status"] == USELESS.name
        assert printed["message"] == str(USELESS)
        assert "no better than" in printed["standing"]["warning"]
        assert "WARNING: the network is no better than a constant answer" in useless.stderr
    else:
        assert "WARNING: on these rows the network is no better than" in useless.stdout
        assert str(USELESS) in " ".join(useless.stdout.split())
    assert load_model(tmp_path / "run" / "model.safetensors").status is USELESS


def test_the_command_line_is_silent_about_a_useful_network(tmp_path):
    useful = on_the_command_line(tmp_path, True, "--json")
    assert useful.returncode == 0, useful.stderr
    assert json.loads(useful.stdout)["status"] != USELESS.name
    assert "WARNING" not in useful.stderr


def test_partial_fit_says_it_once_and_its_status_as_long_as_it_is_so():
    X, y = rows(False)
    found = MLPClassifier((6,), random_state=0, batch_size=20)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2 * STEPS_TO_JUDGE * 20 // N):
            found.partial_fit(X, y, classes=[0, 1])
    assert [each.category for each in said] == [NoBetterThanConstant]
    assert found.status_ is USELESS


class Stop(Callback):
    def __init__(self, status):
        self.status = status

    def on_epoch_end(self, trainer):
        trainer.request_stop(self.status)


@pytest.mark.parametrize("status", Status)
def test_a_run_that_failed_or_was_interrupted_says_that_first(status):
    X, y = rows(False)
    said = contextlib.nullcontext() if status is Status.INTERRUPTED else pytest.warns(NoBetterThanConstant)
    with said:
        result = train(mlp([3, 6, 2]), X, y, mode="accelerated", max_iter=5, callbacks=[Stop(status)])
    first = (Status.INTERRUPTED, Status.DIVERGED, Status.NON_FINITE)
    assert result.status is (status if status in first else USELESS)


class PutsBack(Callback):
    """As early stopping does, but a network of zeros."""

    def on_loop_end(self, trainer):
        params = [{name: torch.zeros_like(p) for name, p in block.items()} for block in trainer.state.params]
        trainer.restore(params, 1)


def test_the_network_that_was_put_back_is_the_one_that_is_judged():
    X, y = rows(True)
    with pytest.warns(NoBetterThanConstant):
        result = train(mlp([3, 6, 2]), X, y, mode="accelerated", max_iter=20, callbacks=[PutsBack()])
    assert result.status is USELESS
    assert result.history["train_accuracy"][-1] > 0.9
    assert result.standing.network == np.mean(y == 0)


def test_rare_classes_are_told_by_the_loss():
    """One row of forty is of the second class, for none it is the likelier one, and yet the network knows much."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(3000, 2))
    y = (rng.random(3000) < 0.12 * (X[:, 0] > 0.8)).astype(int)
    result = train(mlp([2, 4, 2]), X, y, mode="accelerated", max_iter=20)
    standing = result.standing
    assert standing.network == standing.constant
    assert standing.loss < 0.9 * standing.constant_loss
    assert result.status is not USELESS
    assert standing.warning is None


def test_one_class_alone_is_no_reason_to_warn():
    X, y = rows(True)
    first = MLPClassifier((6,), random_state=0, batch_size=2)
    for _ in range(1 + 2 * STEPS_TO_JUDGE // N):
        first.partial_fit(X, np.zeros(N, int), classes=[0, 1])
    assert first.status_ is not USELESS
    result = train(mlp([3, 6, 2]), X, y, validation=(X[y == 1], y[y == 1]), max_iter=20)
    assert result.status is not USELESS


def test_a_linear_model_is_spoken_of_by_rows_that_were_not_learnt_from_alone():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 40))
    y = (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(int)
    alone = train(mlp([40, 3, 2]), X, y, mode="accelerated", max_iter=3)
    assert alone.standing.linear is None
    assert not any("linear" in line for line in [*alone.standing.lines(), repr(alone)])
    held = train(mlp([40, 3, 2]), X, y, mode="accelerated", max_iter=3, validation=(X, y))
    assert held.standing.linear is not None


def test_a_loss_that_does_not_take_a_constant_loses_no_run():
    X, y = rows(True)

    def distances(z, t):
        if bool((z == z[:1]).all()):
            raise RuntimeError("no two outputs may be alike")
        return F.cross_entropy(z, t.long())

    result = train(network(3, 2), X, y, loss=distances, max_iter=3)
    assert result.standing is None
    assert result.status is Status.PASSES_MADE
