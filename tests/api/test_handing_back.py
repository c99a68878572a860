"""What is handed back is compared with what was trained."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm.api.handing_back import ModuleDiffers, RoundedScaling, check_same_outputs
from dladmm.base.errors import InputError, InputTypeError
from dladmm.network.chain import from_module, mlp
from dladmm.network.scaling import Scaling

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


class Hidden(nn.Sequential):
    """A sequence of layers that does more than its layers say."""

    def forward(self, x):
        return 3 * super().forward(x) + 1


@pytest.mark.parametrize("mode", ["convergent", "accelerated", "streaming"])
def test_a_module_that_computes_something_else_is_not_handed_back(mode):
    with pytest.raises(ModuleDiffers, match="Hidden does not compute what was trained"):
        train(Hidden(nn.Linear(5, 2)), X, Y, mode=mode, max_iter=2)


def test_modes_of_the_parts_are_left_as_they_are():
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    network[1].eval()
    train(network, X, Y, mode="accelerated", max_iter=2)
    assert [part.training for part in network] == [True, False, True, True]


def test_rounding_of_the_folded_scaling_is_said():
    network = nn.Sequential(nn.Linear(5, 2))
    chain = from_module(network)
    params = [{"W": network[0].weight.detach() + 1, "b": network[0].bias.detach()}]
    with pytest.warns(RoundedScaling, match="float64"):
        check_same_outputs(network, network, chain, params, None, torch.as_tensor(X))


@pytest.mark.parametrize("mode", ["accelerated", "streaming"])
def test_a_network_that_is_handed_out_is_compared_like_a_module(mode):
    with pytest.warns(RoundedScaling, match="Centre them, or use dtype='float64'"):
        train(mlp([5, 4, 2]), X + np.float32(1e7), Y, mode=mode, max_iter=3, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(mlp([5, 4, 2]), X.astype(np.float64) + 1e7, Y, mode=mode, max_iter=3, dtype="float64")


def test_only_means_far_from_zero_are_looked_at():
    scale = torch.tensor([2.0, 3.0])
    assert not Scaling(torch.tensor([2e4, -3e4]), scale).far
    assert Scaling(torch.tensor([0.0, -3.1e4]), scale).far


@pytest.mark.parametrize("bad", [np.float64(3.0), np.zeros((0, 5)), X + 1j])
def test_what_cannot_be_tried_is_refused_in_words(bad):
    with pytest.raises((InputError, InputTypeError), match="X "):
        train(nn.Sequential(nn.Linear(5, 2)), bad, Y, mode="accelerated", max_iter=1)


def test_scaling_is_folded_in_float64():
    """Means a million times the deviation: folded in float32, b is wrong by more than it is large."""
    generator = torch.Generator().manual_seed(0)
    x = 3e6 + torch.randn(50, 40, generator=generator, dtype=torch.float64)
    shift, scale = x.mean(0).float(), x.std(0).float()
    W = torch.randn(3, 40, generator=generator) * scale
    # W shift is nearly 0: b is small, and what is lost shows
    W = W - scale * (W / scale).mean(1, keepdim=True)
    params = [{"W": W, "b": torch.randn(3, generator=generator)}]
    folded = Scaling(shift, scale).fold(params)[0]
    assert folded["W"].dtype == folded["b"].dtype == torch.float32
    wanted = ((x - shift.double()) / scale.double()) @ params[0]["W"].double().T + params[0]["b"].double()
    found = x @ folded["W"].double().T + folded["b"].double()
    # What is left is the rounding of b itself, which holds W shift
    assert float((found - wanted).abs().max()) <= float(folded["b"].abs().max()) * 2**-24 + 1e-5
