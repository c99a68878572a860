"""What blocks answer to those who ask them what they are."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dladmm.activations import get_activation
from dladmm.blocks import Affine, Composed, Elementwise, FiniteAffine, GraphConv, LinearMap
from dladmm.engine.batch_sweep import BatchSweep
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import from_module
from dladmm.regularizers import get_weight_set


@pytest.mark.parametrize("bias", [True, False])
def test_a_certificate_has_the_sizes_and_the_bias_of_a_layer(bias):
    assert Affine(2, 3, bias).certified_as() == {"type": "affine", "n_in": 2, "n_out": 3, "bias": bias}


def test_a_certificate_has_activations_and_graph_layers_and_no_others():
    relu = get_activation("relu")
    assert Elementwise(relu).certified_as() == {"type": "activation", "f": relu.to_spec()}
    said = GraphConv(2, 3, "relu").certified_as()
    assert said == {"type": "graph", "n_in": 2, "n_out": 3, "f": relu.to_spec(), "propagated": True}
    assert LinearMap(nn.Flatten()).certified_as() is None


def test_behind_a_flattening_weights_are_of_the_same_set():
    weights = get_weight_set("binary")
    assert Composed([LinearMap(nn.Flatten())], FiniteAffine(4, 2, weights)).weight_set is weights
    assert Composed([LinearMap(nn.Flatten())], Affine(4, 2)).weight_set is None


@pytest.mark.parametrize("normalised", [True, False])
def test_a_shift_of_all_rows_is_no_change_behind_a_normalisation(normalised):
    """Relative changes of streaming mode are measured behind a batch normalisation where one follows."""
    generator = torch.Generator().manual_seed(0)
    middle = nn.BatchNorm1d(3) if normalised else nn.ReLU()
    chain = from_module(nn.Sequential(nn.Linear(2, 3), middle, nn.Linear(3, 2)))
    x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    loss = get_loss("cross_entropy")
    engine = Engine(chain, x, Risk(loss, loss.encode(torch.arange(20) % 2, 2, torch.float64)))
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=x.device)
    outputs = chain.forward(params, x)
    shift = torch.ones_like(outputs[0])
    found = float(BatchSweep._relative(SimpleNamespace(params=params), engine, outputs, 0, shift))
    expected = 0.0 if normalised else float(shift.norm() / outputs[0].norm())
    assert found == pytest.approx(expected, abs=1e-9)
