"""A quadratic iteration never waits for the device: checked on a CPU that is taken for a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dladmm import passes
from dladmm.chain import mlp
from dladmm.engine import Engine
from dladmm.losses import Risk, get_loss
from dladmm.measuring import vital_signs
from dladmm.regularizers import L2
from dladmm.subproblems import SubproblemOptions

WAITING = ("_local_scalar_dense", "lift_fresh", "nonzero", "equal", "is_nonzero")
"""A number asked for, a number brought, a size that depends on numbers: on a GPU each waits for the device."""


class Waits(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def waits(loss="cross_entropy", activation="relu", **options):
    """What one sweep and its measurement wait for."""
    widths, n = [20, 30, 25, 7], 50
    generator = torch.Generator().manual_seed(0)
    chain = mlp(widths, activation)
    encoded = get_loss(loss).encode(torch.randint(0, 7, (n,), generator=generator), 7, torch.float32)
    x = torch.randn(n, 20, generator=generator)
    engine = Engine(chain, x, Risk(get_loss(loss), encoded), L2(0.1), SubproblemOptions(**options))
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float32, device=torch.device("cpu"))
    state = engine.feasible_state(params, 1.5, 1.0)
    engine.sweep(state)  # what is computed once, on the host, is there from now on
    with passes.compiling(), Waits() as waits:
        vital_signs(engine, state, engine.sweep(state))
    assert engine.recordable == (engine.options.w_solver == engine.options.a_solver == "quadratic")
    return waits.found


@pytest.fixture(autouse=True)
def _taken_for_a_gpu(monkeypatch):
    monkeypatch.setattr(passes, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(passes, "_compile", lambda function: function)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "hard_tanh"])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_logistic", "squared_hinge"])
@pytest.mark.parametrize("start", [None, 1.0])
@pytest.mark.parametrize("tau_per_sample", [False, True])
def test_a_recordable_iteration_asks_the_device_for_nothing(activation, loss, start, tau_per_sample):
    solvers = {"w_solver": "quadratic", "a_solver": "quadratic", "alpha0": start, "t0": start}
    assert waits(loss, activation, **solvers, tau_per_sample=tau_per_sample) == []


def test_the_test_can_fail():
    assert "_local_scalar_dense" in waits(w_solver="exact", a_solver="quadratic")
