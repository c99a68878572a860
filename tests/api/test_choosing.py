"""One default at every door: what "auto" stands for, and that other algorithms are asked for by name."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits
from torch import nn

import dladmm
from dladmm import InputError
from dladmm.api.choosing import CROSS_FITTED, table_mode, with_mode
from dladmm.regularizers import get_regularizer


def mode(preset="default", method=None, **options):
    return with_mode(options, preset=preset, method=method).get("mode")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "streaming"),
        ({"mode": "auto"}, "streaming"),
        ({"batch_size": 10}, "streaming"),
        ({"max_iter": 3, "dropout": 0.5}, "streaming"),
        ({"rho": 1.0}, "streaming"),  # which refuses it, and names the modes that have it
        ({"mode": "accelerated"}, "accelerated"),
        ({"mode": "convergent", "rho": 1.0}, "convergent"),
        ({"preset": "paper"}, "convergent"),
        ({"start": "paper"}, "convergent"),
        ({"rho_rule": "authors"}, "convergent"),
        ({"rho_rule": None}, "streaming"),
        ({"method": object()}, None),
        ({"method": object(), "mode": "auto"}, None),
    ],
)
def test_the_mode_of_train(options, expected):
    assert mode(**options) == expected


@pytest.mark.parametrize(
    ("rows", "columns", "settings", "expected"),
    [
        (1, 1, {}, CROSS_FITTED),
        (49_999, 2000, {}, CROSS_FITTED),
        (50_000, 3, {}, "streaming"),
        (100, 2001, {}, "streaming"),
        (100, 3, {"one_network": True}, "streaming"),
        (10_001, 2000, {"sparse_rows": True}, "streaming"),
        (10_000, 2000, {"sparse_rows": True}, CROSS_FITTED),
        (1000, 3, {"max_memory": "100MB"}, CROSS_FITTED),
        (1000, 3, {"max_memory": "10MB"}, "streaming"),
        (100, 3, {"penalty": "l2"}, CROSS_FITTED),
        (100, 3, {"penalty": "non_negative"}, CROSS_FITTED),
        (100, 3, {"penalty": "l1"}, "streaming"),
        (100, 3, {"penalty": {"name": "elastic_net", "l1": 0.1, "l2": 1.0}}, "streaming"),
    ],
)
def test_the_mode_of_tables(rows, columns, settings, expected):
    penalty = get_regularizer(settings.pop("penalty", None))
    assert table_mode(rows, [columns, 100, 2], penalty, **settings) == expected


RINGS = np.random.default_rng(0).normal(size=(60, 2))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"rho": 1.0}, "rho and nu .* mode='convergent'"),
        ({"nu": 1.0}, "rho and nu .* mode='convergent'"),
        ({"damping": 1.0}, "damping: .* mode='convergent'"),
        ({"w_solver": "quadratic"}, "w_solver: .* mode='convergent'"),
        ({"a_solver": "quadratic"}, "a_solver: .* mode='convergent'"),
    ],
)
def test_no_setting_swaps_the_algorithm(setting, words):
    """What the practical method does not have is refused, at every door, in the same words."""
    X, y = RINGS, (np.hypot(*RINGS.T) > 1).astype(int)
    doors = [
        lambda: dladmm.train(dladmm.mlp([2, 5, 2]), X, y, **setting),
        dladmm.MLPClassifier((5,), **setting).fit,
        dladmm.MLPRegressor((5,), **setting).fit,
        dladmm.ModuleClassifier(**setting).fit,
    ]
    for k, door in enumerate(doors):
        with pytest.raises(InputError, match=words):
            door(*(() if k == 0 else (X, y)))
    found = dladmm.MLPClassifier((5,), mode="convergent", max_iter=3, tol=1e9, **setting).fit(X, y)
    assert found.n_iter_ <= 3


@pytest.mark.filterwarnings("ignore::dladmm.training.standing.NoBetterThanConstant")
@pytest.mark.parametrize("kind", ["rows", "list", "sparse", "images", "sequences", "one row"])
def test_every_sort_of_samples_is_streamed(kind):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = rng.normal(size=(40, 3)) + 2 * y[:, None]
    network = dladmm.mlp([3, 4, 2])
    loss = "cross_entropy"
    if kind == "list":
        X = X.tolist()
    elif kind == "sparse":
        X = sparse.csr_array(X)
    elif kind == "images":
        X = torch.randn(40, 1, 4, 4)
        network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    elif kind == "sequences":
        X = rng.normal(size=(40, 5, 3))
        network = nn.Sequential(dladmm.Recurrent(nn.GRU(3, 4, batch_first=True)), nn.Linear(4, 2))
    elif kind == "one row":
        X, y, loss, network = X[:1], np.array([0.5]), "squared", dladmm.mlp([3, 4, 1])
    result = dladmm.train(network, X, y, loss=loss, max_iter=2)
    assert result.certificate.streaming
    assert result.status in (dladmm.Status.PASSES_MADE, dladmm.Status.NO_BETTER_THAN_CONSTANT)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_train_and_train_graph_have_the_best_mode():
    """Columns in units of their own, which the paper's algorithm takes as they are, and learns nothing from."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    X = np.c_[1e4 * (rng.normal(size=200) + 3 * y) + 5e5, 1e-3 * rng.normal(size=200)]
    best = dladmm.train(dladmm.mlp([2, 10, 2]), X, y)
    paper = dladmm.train(dladmm.mlp([2, 10, 2]), X, y, max_iter=30, mode="convergent")
    assert best.certificate.streaming
    assert best.standing.network > 0.9
    assert paper.standing.network < 0.75
    assert not paper.certificate.accelerated
    graph = dladmm.train_graph(dladmm.datasets.load("karate"), hidden=(4,), max_iter=3)
    assert graph.certificate.streaming
    named = dladmm.train_graph(dladmm.datasets.load("karate"), hidden=(4,), max_iter=3, mode="convergent")
    assert not named.certificate.accelerated


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_passes_are_as_many_as_make_three_hundred_steps():
    """The same number for arrays, a memmap and a loader of the same rows, whatever door."""
    X, y = torch.randn(200, 3), torch.arange(200) % 2
    arrays = dladmm.train(dladmm.mlp([3, 4, 2]), X, y)
    assert arrays.history.n_iter == 50  # batches of 32: 6 in a pass
    rows = torch.utils.data.TensorDataset(X, y)
    loader = torch.utils.data.DataLoader(rows, batch_size=32, drop_last=True)
    assert dladmm.train(dladmm.mlp([3, 4, 2]), loader).history.n_iter == 50
    module = dladmm.ModuleClassifier().fit(X.numpy(), y.numpy())
    assert module.n_iter_ == 50
    streamed = dladmm.MLPClassifier((4,), mode="streaming").fit(X.numpy(), y.numpy())
    assert streamed.n_iter_ == 50


@pytest.mark.parametrize("kind", ["chain", "module"])
def test_eight_layers_of_gelu_learn_digits(kind):
    """Accelerated mode, the default once, ended at .084 and called it converged."""
    X, y = load_digits(return_X_y=True)
    widths = [64, *[32] * 8, 10]
    network = dladmm.mlp(widths, activation="gelu")
    if kind == "module":
        torch.manual_seed(0)
        layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.GELU())]
        network = nn.Sequential(*layers[:-1])
    result = dladmm.train(network, X[:1300], y[:1300], validation=(X[1300:], y[1300:]))
    assert result.history.last("val_accuracy") > 0.9
