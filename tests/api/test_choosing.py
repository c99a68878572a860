"""One default at every door: what "auto" stands for, and that the paper's algorithm is asked for by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

import dladmm
from dladmm.api.choosing import best_mode, is_recurrent, with_graph_mode, with_mode
from dladmm.compute.communicator import ALONE


def mode(X, preset="default", prox="auto", method=None, model=None, **options):
    return with_mode(options, model, X, ALONE, preset=preset, prox=prox, method=method).get("mode")


FEW, MANY = np.zeros((100, 3)), np.broadcast_to(np.zeros(3), (50_000, 3))


@pytest.mark.parametrize(
    ("X", "options", "expected"),
    [
        (FEW, {}, "accelerated"),
        (FEW, {"mode": "auto"}, "accelerated"),
        (FEW.tolist(), {}, "accelerated"),
        (torch.zeros(100, 1, 8, 8), {}, "accelerated"),
        (MANY, {}, "streaming"),
        (MANY, {"rho": 1.0}, "accelerated"),
        (MANY, {"max_memory": "1GB"}, "accelerated"),
        (MANY, {"w_solver": "quadratic"}, "accelerated"),
        (MANY, {"prox": "fista"}, "accelerated"),
        (FEW, {"batch_size": 10}, "streaming"),
        (sparse.csr_array(FEW), {}, "streaming"),
        (iter([(FEW, FEW)]), {}, "streaming"),
        (FEW, {"preset": "paper"}, "convergent"),
        (FEW, {"start": "paper"}, "convergent"),
        (FEW, {"rho_rule": "authors"}, "convergent"),
        (FEW, {"method": object()}, None),
        (None, {}, "accelerated"),
        ([[1.0], [1.0, 2.0]], {}, "accelerated"),
    ],
)
def test_the_mode_of_train(X, options, expected):
    assert mode(X, **options) == expected


def test_recurrent_layers_are_streamed():
    """Wherever they stand in a network, unless the rows are very few or settings of another mode were given."""
    X = np.zeros((100, 6, 3))
    layer = nn.GRU(3, 4, batch_first=True)
    for model in (
        nn.Sequential(dladmm.Recurrent(layer), nn.Linear(4, 2)),
        nn.ModuleList([nn.ModuleList([layer])]),
    ):
        assert is_recurrent(model)
        assert mode(X, model=model) == "streaming"
        assert mode(X, model=model, rho=1.0) == "accelerated"
        assert mode(X, model=model, sweep="backward") == "accelerated"
        assert mode(X[:12], model=model) == "accelerated"
        assert mode(X, model=model, preset="paper") == "convergent"
    chain = dladmm.from_module(nn.Sequential(dladmm.Recurrent(layer), nn.Linear(4, 2)))
    assert is_recurrent(chain)
    assert not is_recurrent(dladmm.mlp([3, 2]))
    assert not is_recurrent(nn.Linear(3, 2))
    assert not is_recurrent(None)


def test_the_mode_of_graphs():
    for options, expected in (({}, "accelerated"), ({"batch_size": 9}, "streaming")):
        assert with_graph_mode(options, preset="default", method=None)["mode"] == expected
    assert with_graph_mode({}, preset="paper", method=None)["mode"] == "convergent"
    assert "mode" not in with_graph_mode({"mode": "auto"}, preset="default", method=object())


def test_a_batch_size_where_copies_cannot_be():
    assert best_mode(100, 3, one_network=True, batches=True) == "streaming"
    assert best_mode(100, 3, batches=True) == "cross-fitted"


def test_train_and_train_graph_have_the_best_mode():
    """Columns in units of their own, which the paper's algorithm takes as they are, and learns nothing from."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    X = np.c_[1e4 * (rng.normal(size=200) + 3 * y) + 5e5, 1e-3 * rng.normal(size=200)]
    best = dladmm.train(dladmm.mlp([2, 10, 2]), X, y, max_iter=30)
    paper = dladmm.train(dladmm.mlp([2, 10, 2]), X, y, max_iter=30, mode="convergent")
    assert best.certificate.accelerated
    assert best.standing.network > 0.9
    assert paper.standing.network < 0.75
    assert not paper.certificate.accelerated
    graph = dladmm.train_graph(dladmm.datasets.load("karate"), hidden=(4,), max_iter=3)
    assert graph.certificate.accelerated
    named = dladmm.train_graph(dladmm.datasets.load("karate"), hidden=(4,), max_iter=3, mode="convergent")
    assert not named.certificate.accelerated
