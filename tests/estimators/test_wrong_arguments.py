"""Every argument of every door with wrong values: taken sensibly, or refused by name before any work begins."""

from __future__ import annotations

import inspect
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from torch import nn

import dladmm
from dladmm.datasets import load
from dladmm.engine.options import TrainOptions
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")

WRONG = {
    "text": "x",
    "bytes": b"3",
    "nan": float("nan"),
    "negative": -1,
    "list": [1, "a"],
    "none": None,
    "bool": True,
    "huge": 10**400,
    "array": np.ones(3),
    "array of no dimensions": np.array(3),
    "beyond 64 bits": 2**70,
    "fraction": Fraction(1, 2),
    "empty dictionary": {},
    "class": int,
    "function": lambda *_: None,
}

X = np.random.default_rng(0).normal(size=(12, 3))
Y = np.arange(12) % 2
GRAPH = load("karate")


def network(n_features, n_outputs):
    return nn.Sequential(nn.Linear(n_features, 2), nn.ReLU(), nn.Linear(2, n_outputs))


SMALL = {"hidden_layer_sizes": (2,), "max_iter": 1}
OWN = {"module_factory": network, "max_iter": 1}
ESTIMATORS = {
    "MLPClassifier": (SMALL, lambda estimator: estimator.fit(X, Y)),
    "MLPRegressor": (SMALL, lambda estimator: estimator.fit(X, X[:, 0])),
    "ModuleClassifier": (OWN, lambda estimator: estimator.fit(X, Y)),
    "ModuleRegressor": (OWN, lambda estimator: estimator.fit(X, X[:, 0])),
    "GCNClassifier": (SMALL | {"self_training": False}, lambda estimator: estimator.fit(GRAPH)),
}
OTHER_WORDS = {
    "early_stopping": "val_mask",  # the graph has none to stop by
    "data": "Graph",  # none was given
    "X": "stream",  # a function without arguments
}
"""What a message may name instead: what is missing for that value."""


@pytest.fixture
def begun(monkeypatch):
    """Runs that have begun; each makes one iteration, whatever max_iter says."""
    runs, loop = [], Trainer._loop

    def short(trainer):
        runs.append(trainer)
        trainer.options = replace(trainer.options, max_iter=1)
        return loop(trainer)

    monkeypatch.setattr(Trainer, "_loop", short)
    return runs


def refused_by_name_or_taken(name, value, call, begun):
    begun.clear()
    message = None
    try:
        call(**{name: value})
    except (ValueError, TypeError) as error:
        message = str(error)
    if message is not None:
        assert name in message or OTHER_WORDS.get(name, name) in message, f"{name}={value!r}: {message}"
        assert not begun, f"{name}={value!r} was refused after training"


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (estimator, name)
        for estimator in ESTIMATORS
        for name in inspect.signature(getattr(dladmm, estimator)).parameters
    ],
)
def test_parameters_of_estimators(estimator, name, begun):
    small, fit = ESTIMATORS[estimator]
    for value in WRONG.values():
        refused_by_name_or_taken(
            name, value, lambda **given: fit(getattr(dladmm, estimator)(**small | given)), begun
        )


OPTIONS = dict.fromkeys([*TrainOptions.__dataclass_fields__, *SubproblemOptions.__dataclass_fields__])
DOORS = {
    "train": (dladmm.train, {"model": dladmm.mlp([3, 2, 2]), "X": X, "y": Y, "max_iter": 1}),
    "train_graph": (
        dladmm.train_graph,
        {"data": GRAPH, "hidden": (2,), "max_iter": 1, "self_training": False},
    ),
}


@pytest.mark.parametrize(
    ("door", "name"),
    [
        (door, name)
        for door, (function, _) in DOORS.items()
        for name in dict.fromkeys([*inspect.signature(function).parameters, *OPTIONS])
        if name not in ("options", "subproblems")
    ],
)
def test_arguments_of_train(door, name, begun):
    function, small = DOORS[door]
    for value in WRONG.values():
        refused_by_name_or_taken(name, value, lambda **given: function(**small | given), begun)


def test_what_is_plainly_wrong_is_refused():
    """Not taken for True, for the default or for a name."""
    plainly = {
        "early_stopping": "no",
        "warm_start": "no",
        "verbose": "yes",
        "validation_fraction": 1.5,
        "n_iter_no_change": 0,
        "batch_size": 0,
        "tol": -1.0,
        "random_state": "today",
        "callbacks": None,
    }
    for name, value in plainly.items():
        with pytest.raises((ValueError, TypeError), match=name):
            dladmm.MLPClassifier(**SMALL | {name: value}).fit(X, Y)
    with pytest.raises(TypeError, match="self_training"):
        dladmm.train_graph(GRAPH, self_training="no", max_iter=1)
    with pytest.raises(TypeError, match="method must return"):
        dladmm.train(dladmm.mlp([3, 2, 2]), X, Y, method=lambda *_: None)
    with pytest.raises(ValueError, match="partition"):
        dladmm.train_graph(GRAPH, partition="x", max_iter=1)
