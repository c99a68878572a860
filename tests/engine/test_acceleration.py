"""Accelerated mode: the true training objective never rises, whatever the problem and the settings."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from convergent import train, train_graph
from dladmm import Callback, InputError, MLPClassifier, datasets, mlp
from dladmm.losses import get_loss
from dladmm.regularizers import get_regularizer

ACTIVATIONS = ["relu", "leaky_relu", "tanh", "sigmoid", "softplus", "sign", "step", "quantised"]
LOSSES = ["cross_entropy", "squared", "binary_logistic", "huber", "squared_hinge"]
PENALTIES = [
    None,
    {"name": "l2", "strength": 0.3},
    {"name": "l1", "strength": 0.05},
    {"name": "non_negative"},
]
SETTINGS = [
    {},
    {"w_solver": "quadratic", "a_solver": "quadratic"},
    {"rho": 1e-6, "nu": 1e-6, "damping": 0.0},
    {"rho": 10.0, "nu": 0.01},
]


def problem(seed, loss):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 4)) * 10.0 ** rng.integers(-2, 3)
    if get_loss(loss).kind == "classification":
        return X, rng.integers(0, 3, 60)
    return X, rng.normal(size=(60, 3))


def true_objective(result, X, y, loss, penalty):
    """Computed apart from the engine: the module's own forward pass, the penalty on weights of scaled inputs."""
    the_loss = get_loss(loss)
    target = the_loss.encode(torch.as_tensor(y), 3, torch.float64)
    with torch.no_grad():
        value = the_loss.rows(result.module(torch.from_numpy(X)), target).sum()
        return float(value + sum(get_regularizer(penalty).value(W) for W in result.state.W))


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("seed", range(24))
def test_the_true_objective_never_rises(seed):
    loss, penalty = LOSSES[seed % len(LOSSES)], PENALTIES[(seed // 2) % len(PENALTIES)]
    X, y = problem(seed, loss)
    result = train(
        mlp([4, 6, 5, 3], ACTIVATIONS[seed % len(ACTIVATIONS)]), X, y, loss=loss, regularizer=penalty,
        mode="accelerated", scale_targets=False, dtype="float64", max_iter=25, random_state=seed,
        **SETTINGS[seed % len(SETTINGS)],
    )  # fmt: skip
    objective = result.history["lagrangian"]
    assert all(after <= before for before, after in pairwise(objective))
    assert result.certificate.monotone, str(result.certificate)
    assert result.status.ok
    if objective:
        assert true_objective(result, X, y, loss, penalty) == pytest.approx(objective[-1], rel=1e-9)


def test_it_leaves_the_plain_algorithm_behind_on_the_training_loss():
    data = datasets.load("digits")
    runs = {
        mode: train(mlp([64, 50, 50, 10]), data.x_train, data.y_train, mode=mode, max_iter=40)
        for mode in ("convergent", "accelerated")
    }
    loss = {mode: run.history["loss"][-1] for mode, run in runs.items()}
    assert loss["accelerated"] < loss["convergent"] / 5
    assert "Safeguarded" in str(runs["accelerated"].certificate)
    assert "safeguarded" in repr(runs["accelerated"])
    assert not runs["accelerated"].certificate.covered


def test_a_resumed_run_is_bit_equal():
    data = datasets.load("digits")
    saved = []

    class Save(Callback):
        def on_epoch_end(self, trainer):
            if trainer.history.n_iter == 6:
                tensors, meta = trainer.snapshot()
                saved.append(({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))))

    class Resume(Callback):
        def on_train_begin(self, trainer):
            trainer.resume(*saved[0])

    whole, resumed = (
        train(
            mlp([64, 20, 10]),
            data.x_train,
            data.y_train,
            mode="accelerated",
            max_iter=12,
            callbacks=callbacks,
        )
        for callbacks in ([Save()], [Resume()])
    )
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]
    assert torch.equal(whole.state.W[0], resumed.state.W[0])


def test_a_run_resumed_among_refusals_is_bit_equal_over_a_hundred_iterations():
    X, y = problem(0, "cross_entropy")
    saved, refused = {}, {}

    class Save(Callback):
        def on_epoch_end(self, trainer):
            tensors, meta = trainer.snapshot()
            k = trainer.history.n_iter
            refused[k] = meta["method"]["refused"]
            saved[k] = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))

    class Resume(Callback):
        def __init__(self, k):
            self.k = k

        def on_train_begin(self, trainer):
            trainer.resume(*saved[self.k])

    def run(callback):
        return train(
            mlp([4, 6, 6, 3]),
            X,
            y,
            mode="accelerated",
            max_iter=100,
            eps_rel=0.0,
            eps_abs=0.0,
            callbacks=[callback],
        )

    whole = run(Save())
    assert whole.history.n_iter == 100
    after = [k for k in range(2, 90) if refused[k] != refused[k - 1]]
    assert len(after) >= 3, refused  # or the test says nothing of refusals
    resumed = run(Resume(after[len(after) // 2]))
    for name in set(whole.history) - {"seconds"}:
        assert whole.history[name] == resumed.history[name], name
    for ours, theirs in zip(whole.state.params, resumed.state.params, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_graphs_and_estimators_take_the_mode():
    graph = datasets.load("sbm", n_nodes=200, n_classes=3, seed=0)
    result = train_graph(graph, hidden=(16,), mode="accelerated", max_iter=30)
    assert result.certificate.monotone
    assert result.history["train_accuracy"][-1] > 0.9
    X, y = problem(0, "cross_entropy")
    clf = MLPClassifier((8,), mode="accelerated", max_iter=10, random_state=0)
    with pytest.warns(UserWarning, match="max_iter"):
        clf.fit(X, y, sample_weight=np.arange(60) % 3)
    assert clf.certificate_.accelerated
    assert clf.certificate_.monotone


def test_settings_that_contradict_the_mode_are_refused():
    X, y = problem(0, "cross_entropy")
    with pytest.raises(InputError, match="mode must be one of"):
        train(mlp([4, 3]), X, y, mode="fast")
    with pytest.raises(InputError, match="leave start and rho_rule out"):
        train(mlp([4, 3]), X, y, mode="accelerated", start="paper")
