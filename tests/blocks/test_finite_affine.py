"""Weights of a finite set in streaming mode: what the network is handed out with, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from dladmm import InputError, from_module, train
from dladmm.activations.staircase import Staircase
from dladmm.blocks import FiniteAffine, Work
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.network.finite import with_weights
from dladmm.regularizers import WeightSet
from dladmm.solvers.subproblems import SubproblemOptions


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return (X[:600]).astype(np.float32), y[:600]


def sign() -> Staircase:
    return Staircase([-1.0, 1.0], [0.0])


def network(width=40, *, norm=True, bias=True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in in (64, width):
        layers += [nn.Linear(n_in, width, bias=bias), *([nn.BatchNorm1d(width)] if norm else []), sign()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def levels(layer: nn.Module) -> list[float]:
    return sorted(set(layer.weight.flatten().tolist()))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("binary", [-1, 1]), ("ternary", [-1, 0, 1]), (2, [-3, -1, 1, 3])],
    ids=str,
)
@pytest.mark.parametrize("norm", [True, False])
def test_the_network_that_is_handed_out_has_the_levels_themselves(digits, weights, expected, norm):
    X, y = digits
    module = network(norm=norm)
    result = train(module, X, y, weights=weights, max_iter=6)
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    for layer in linear[:-1]:
        assert levels(layer) == expected
    assert len(levels(linear[-1])) > 100
    accuracy = float((module.eval()(torch.from_numpy(X)).argmax(1).numpy() == y).mean())
    assert accuracy == pytest.approx(result.history["train_accuracy"][-1], abs=0.01)
    assert accuracy > 0.85


@pytest.mark.parametrize("planned", [True, False])
def test_averages_of_latent_weights_are_projected_too(digits, planned):
    module = network(bias=False)
    options = StreamingOptions(planned=planned)
    train(module, *digits, weights=["binary", "real", "binary"], max_iter=2, streaming=options)
    assert levels(module[0]) == [-1.0, 1.0]
    assert len(levels(module[3])) > 100
    last = levels(module[-1])
    assert len(last) == 2
    assert last[0] == pytest.approx(-last[1])


def test_few_weights_per_unit(digits):
    module = network()
    train(module, *digits, weights={"per_unit": 7}, max_iter=2)
    assert int((module[0].weight != 0).sum(1).max()) == 7
    assert int((module[-1].weight != 0).sum(1).min()) == 40


def test_targets_go_down_through_the_weights_that_are_shown():
    block = FiniteAffine(3, 2, WeightSet(2))
    latent = torch.tensor([[0.3, -0.2, 0.1], [-0.4, 0.2, -0.1]])
    shown = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]) / 2
    params = {"W": latent, "b": torch.zeros(2)}
    v, e = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(block.forward(params, v), v @ shown.T)
    torch.testing.assert_close(block.push_input(params, v, v, e), v @ shown.T)
    torch.testing.assert_close(block.pull_back(params, v, e, e, Work(SubproblemOptions())), e @ shown)
    torch.testing.assert_close(block.push_parameters(params, params, v, e), v @ latent.T)


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        (
            "binary",
            {"mode": "accelerated"},
            "has weights of a finite set, which mode='streaming' alone trains",
        ),
        (["binary"], {}, "a list of 1, and the network has 3 linear layers"),
        ("binry", {}, "unknown weights 'binry'"),
    ],
    ids=str,
)
def test_refused_before_any_work(digits, spec, settings, message):
    with pytest.raises(InputError, match=message):
        train(network(), *digits, weights=spec, **settings)


def test_a_network_without_hidden_layers_has_no_layer_to_constrain():
    with pytest.raises(InputError, match="all linear layers but the last"):
        with_weights(from_module(nn.Sequential(nn.Linear(3, 2))), "binary")


def test_signs_have_room_beyond_their_levels_and_grids_have_none():
    """Latent weights of signs may grow to ten times the level: how sure a sign is; those of a grid end with it."""
    found = {levels: FiniteAffine(16, 3, WeightSet(levels, per_unit=5)) for levels in (None, 2, 3, 8)}
    bounds = {levels: block.constraint.bound / block.set.scale for levels, block in found.items()}
    assert bounds == {None: float("inf"), 2: 10.0, 3: 1.0, 8: 1.0}
