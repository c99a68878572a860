"""Convolutional networks and own modules through ``train``: certificate, safeguard, conversion, errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import InputError, baselines
from dladmm.callbacks import Checkpoint
from dladmm.network.chain import from_module


@pytest.fixture(scope="module")
def stripes():
    """Images of 6 x 6 with a bright row, a bright column or neither, in noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    X = 0.3 * rng.normal(size=(120, 1, 6, 6))
    for image, label in zip(X, y, strict=True):
        place = rng.integers(0, 6)
        if label == 0:
            image[0, place, :] += 1.0
        elif label == 1:
            image[0, :, place] += 1.0
    return X, y


def cnn(pool: nn.Module | None = None, activation: nn.Module | None = None) -> nn.Sequential:
    pool = pool or nn.MaxPool2d(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), activation or nn.ReLU(), pool,
        nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 3),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inner(x))


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, stride=2, padding=1)])
@pytest.mark.parametrize("solver", ["exact", "quadratic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_cnn_in_the_certified_region_is_certified(stripes, pool, solver, dtype):
    result = train(cnn(pool), *stripes, max_iter=20, w_solver=solver, a_solver=solver, dtype=dtype)
    assert result.certificate.certified, str(result.certificate)
    assert result.history["lagrangian"][-1] < result.history["lagrangian"][0]


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.GELU()])
def test_an_accelerated_cnn_never_rises_and_learns(stripes, activation):
    module = cnn(activation=activation)
    X, y = stripes
    result = train(module, X, y, mode="accelerated", max_iter=50)
    values = result.history["lagrangian"]
    assert all(after <= before for before, after in pairwise(values))
    assert result.certificate.monotone
    output = module(torch.from_numpy(X).float())
    assert (output.argmax(1).numpy() == y).mean() > 0.9
    torch.testing.assert_close(result.module(torch.from_numpy(X).float()), output)


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_normalisation_and_residuals_train_and_evaluate_like_torch(stripes, mode):
    X, y = stripes
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Residual(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(36, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 3),
    )  # fmt: skip
    result = train(module, X, y, mode=mode, max_iter=40, validation=(X[:30], y[:30]))
    assert result.certificate.monotone
    assert result.history["train_accuracy"][-1] > 0.9
    x = torch.from_numpy(X).float()
    hidden = module[0](x)
    torch.testing.assert_close(module[1].running_mean, hidden.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(module[1].running_var, hidden.var((0, 2, 3)), rtol=1e-2, atol=1e-4)
    accuracy = (module.eval()(x).argmax(1).numpy() == y).mean()
    assert accuracy == pytest.approx(result.history["train_accuracy"][-1])
    alone = (module(x[:30]).argmax(1).numpy() == y[:30]).mean()
    assert alone == pytest.approx(result.history["val_accuracy"][-1])


def test_a_chain_of_a_nested_network_and_back(stripes):
    X, y = stripes
    module = nn.Sequential(nn.Unflatten(1, (1, 6, 6)), nn.Sequential(*list(cnn())[:5]), *list(cnn())[5:])
    assert repr(from_module(module)).startswith("Chain(Composed(Unflatten(dim=1")
    flat = X.reshape(len(X), 36)
    result = train(module, flat, y, max_iter=3)
    torch.testing.assert_close(
        module(torch.from_numpy(flat).float()), result.module(torch.from_numpy(flat).float())
    )
    again = train(module, flat, y, max_iter=1, init="keep")
    assert again.history["loss"][0] < 2 * result.history["loss"][-1]


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_the_unit_of_the_images_does_not_matter(stripes, padding, factor):
    X, y = stripes
    layers = list(cnn())
    layers[0] = nn.Conv2d(1, 4, 3, padding=padding)
    layers[6] = nn.Linear(24 if padding else 6, 12)
    module = nn.Sequential(*layers)
    shift = 0.0 if padding else 5.0  # zeros around an image have a meaning: then only the scale is undone
    settings = {"mode": "accelerated", "init": "fresh", "max_iter": 8, "dtype": "float64"}
    result = train(module, factor * (X + shift), y, **settings)
    plain = train(module, X, y, **settings)
    assert result.history["lagrangian"] == pytest.approx(plain.history["lagrangian"], rel=1e-6)


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_a_resumed_cnn_is_bit_equal_to_an_unbroken_one(stripes, tmp_path, mode):
    whole = train(cnn(), *stripes, mode=mode, max_iter=6)
    train(cnn(), *stripes, mode=mode, max_iter=3, callbacks=[Checkpoint(tmp_path)])
    resumed = train(cnn(), *stripes, mode=mode, max_iter=6, callbacks=[Checkpoint(tmp_path, resume=True)])
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_whole_weights_are_repeated_images(stripes, mode):
    X, y = stripes
    times = np.arange(len(X)) % 3 + 1
    weighted = train(cnn(), X, y, sample_weight=times, mode=mode, max_iter=5, dtype="float64")
    repeated = train(cnn(), X.repeat(times, 0), y.repeat(times), mode=mode, max_iter=5, dtype="float64")
    assert weighted.history["lagrangian"] == pytest.approx(repeated.history["lagrangian"], rel=1e-6)


def test_gradient_baselines_train_a_cnn(stripes):
    result = baselines.train("adam", cnn(), *stripes, max_iter=80, lr=1e-2)
    assert result.history["train_accuracy"][-1] > 0.9


@pytest.mark.parametrize("activation", ["sign", "step", "quantised"])
def test_a_cnn_of_jumps_trains(stripes, activation):
    from dladmm.activations import get_activation

    result = train(
        cnn(activation=get_activation(activation).module()), *stripes, max_iter=40, init_scale=1.0, nu=1.0
    )
    assert result.certificate.monotone
    assert result.history["train_accuracy"][-1] > 0.6


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.RReLU(), nn.Flatten(), nn.Linear(64, 3)), "is random"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3)), "does not go through"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(65, 3)), "does not go through"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), "last block must be linear"),
        (nn.Sequential(nn.Conv2d(1, 3, 3)), "cannot tell the number of outputs"),
    ],
)
def test_what_cannot_be_trained_is_named_before_work_begins(stripes, module, message):
    with pytest.raises(InputError, match=message):
        train(module, *stripes)


@pytest.mark.parametrize("mode", ["convergent", "accelerated", "streaming"])
def test_batch_normalisation_evaluates_by_the_training_data(mode):
    """In streaming mode too: a batch has its own statistics in training, the network those of the monitor sample."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    X = torch.randn(300, 6, generator=generator) + 2 * torch.eye(3, 6)[y]
    module = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    train(module, X, y, mode=mode, max_iter=15)
    hidden = module[0](X)
    torch.testing.assert_close(module[1].running_mean, hidden.mean(0), rtol=1e-4, atol=1e-5)
    module.eval()
    assert (module(X).argmax(1) == y).float().mean() > 0.8


def test_verbose_shows_progress(stripes, capsys):
    train(cnn(), *stripes, mode="streaming", max_iter=2, verbose=True)
    assert "loss" in capsys.readouterr().err
    train(cnn(), *stripes, mode="streaming", max_iter=2)
    assert capsys.readouterr().err == ""
