"""What an iteration is measured by, in one tensor of the device."""

from __future__ import annotations

import math

import pytest
import torch

from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.training.diagnostics import vital_signs


@pytest.mark.parametrize("entry", [7000.0, -7000.0, math.nan, math.inf])
def test_the_largest_parameter_is_that_of_all_layers(entry):
    """A weight that is none, or grows without end, is not hidden by small ones of other layers."""
    x, y, loss = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3, get_loss("cross_entropy")
    engine = Engine(mlp([4, 5, 3]), x, Risk(loss, loss.encode(y, 3, x.dtype)))
    state = engine.feasible_state([b.initial_parameters(None, 1.0) for b in engine.chain], 1.5, 1.0)
    steps = engine.sweep(state)
    state.params[0]["W"][2, 1] = entry
    found = vital_signs(engine, state, steps)[6]
    torch.testing.assert_close(found, torch.tensor(abs(entry), dtype=torch.float64), equal_nan=True)
