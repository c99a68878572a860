"""Arguments of the wrong type: the library's own error, which names the argument, before work begins."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from dladmm import DladmmError, datasets, mlp, train, train_graph
from dladmm.engine.options import TrainOptions

X, Y = np.arange(24.0).reshape(8, 3), np.arange(8) % 2
WRONG = {"bytes": b"3", "an object": object(), "an array": np.array([1.0, 2.0])}
OPTIONS = [*TrainOptions.__dataclass_fields__, "w_solver", "alpha0", "damping"]


def names(function, *data):
    own = [name for name in inspect.signature(function).parameters if name not in ("options", *data)]
    return [*own, *OPTIONS]


@pytest.fixture
def trainer(monkeypatch):
    """Work has begun when a trainer runs."""
    from dladmm.training.trainer import Trainer

    monkeypatch.setattr(Trainer, "fit", lambda self: pytest.fail("work began"))


@pytest.mark.parametrize("name", names(train, "X"))
def test_train_names_the_argument(trainer, name):
    for value in WRONG.values():
        settings = {"model": mlp([3, 2]), "y": Y, "mode": "convergent"} | {name: value}
        with pytest.raises(DladmmError, match="module" if name == "model" else name):
            train(X=X, **settings)


GRAPH = ("data", "edge_index", "y", "train_mask", "edge_weight", "model", "partition")


@pytest.mark.parametrize("name", names(train_graph, *GRAPH))
def test_train_graph_names_the_argument(trainer, name):
    graph = datasets.load("karate")
    for value in WRONG.values():
        with pytest.raises(DladmmError, match="[mn]u" if name == "mu" else name):
            train_graph(graph, **{"hidden": (2,), "mode": "convergent"} | {name: value})
