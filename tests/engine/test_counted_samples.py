"""Sample weights and masked targets in networks of any kind: a weight of 2 is the same as standing there twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import InputError, Recurrent

rng = np.random.default_rng(0)
IMAGES, LABELS = rng.normal(size=(12, 1, 6, 6)), np.arange(12) % 3
SEQUENCES, ANSWERS = rng.normal(size=(12, 5, 4)), rng.integers(0, 3, (12, 5))
TWICE = np.where(np.arange(12) < 4, 2.0, 1.0)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


def images(*layers):
    return lambda: nn.Sequential(nn.Conv2d(1, 2, 3), *layers, nn.Flatten(), nn.LazyLinear(3))


def sequences(kind, last=True):
    return lambda: nn.Sequential(Recurrent(kind(4, 5, batch_first=True), last=last), nn.Linear(5, 3))


NETWORKS = {
    "convolution": (images(nn.ReLU(), nn.MaxPool2d(2)), IMAGES, LABELS),
    "residual": (images(nn.ReLU(), Residual()), IMAGES, LABELS),
    "layer norm": (images(nn.LayerNorm((2, 4, 4)), nn.GELU()), IMAGES, LABELS),
    "elman, two layers": (
        lambda: nn.Sequential(
            Recurrent(nn.RNN(4, 3, batch_first=True), last=False),
            Recurrent(nn.RNN(3, 5, batch_first=True)),
            nn.Linear(5, 3),
        ),
        SEQUENCES,
        LABELS,
    ),
    "lstm": (sequences(nn.LSTM), SEQUENCES, LABELS),
    "gru, answers at every step": (sequences(nn.GRU, last=False), SEQUENCES, ANSWERS),
}


def made(name):
    network, X, y = NETWORKS[name]
    module = network()
    module(torch.from_numpy(X[:1]).float())  # sizes of the last layer
    return module, X, y


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
@pytest.mark.parametrize("solver", ["exact", "quadratic"])
def test_a_weight_of_two_is_standing_there_twice(name, mode, solver):
    module, X, y = made(name)
    settings = {
        "mode": mode,
        "w_solver": solver,
        "a_solver": solver,
        "max_iter": 3,
        "dtype": "float64",
        "init": "fresh",
    }
    counted = train(module, X, y, sample_weight=TWICE, **settings)
    repeated = train(module, *(np.concatenate([each, each[:4]]) for each in (X, y)), **settings)
    for column in ("lagrangian", "stationarity", "squared_steps", "c2", "loss"):
        assert counted.history[column] == pytest.approx(repeated.history[column], rel=1e-6), column
    assert counted.certificate.monotone
    assert counted.certificate.agrees


@pytest.mark.parametrize("name", NETWORKS)
def test_targets_that_are_masked_do_not_count(name):
    module, X, y = made(name)
    mask = np.arange(y.size).reshape(y.shape) % 4 > 0
    wrong = np.where(mask, y, (y + 1) % 3)
    kept, changed = (
        train(
            module,
            X,
            targets,
            target_mask=mask,
            sample_weight=TWICE,
            init="fresh",
            max_iter=2,
            dtype="float64",
        )
        for targets in (y, wrong)
    )
    assert kept.history["lagrangian"] == changed.history["lagrangian"]


def test_batch_normalisation_counts_every_sample_once():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with pytest.raises(
        InputError, match=r"sample weights cannot be used: they do not count in BatchNorm\(BatchNorm1d"
    ):
        train(module, SEQUENCES[:, 0], LABELS, sample_weight=TWICE)
