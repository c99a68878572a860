"""Execution's shortcuts change nothing: chains of all blocks, with cached products and joined passes and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dladmm import Chain, Recurrent, from_module
from dladmm.blocks import Affine, Composed, Elementwise, LinearMap, Positionwise
from dladmm.compute.execution import Execution
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.regularizers import L1, L2
from dladmm.solvers.subproblems import SubproblemOptions
from graph_problems import graph_engine, random_graph

F64 = torch.float64


class Gated(nn.Module):
    """Not linear in its parameters, and unknown to the library."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.a, self.b = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out)

    def forward(self, v):
        return torch.tanh(self.a(v)) * torch.sigmoid(self.b(v))


MODULES = {
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2, groups=1), nn.Tanh(),
            nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3),
        ),
        (1, 8, 8),
    ),
    "cnn, maps before": (
        lambda: nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)),
        (1, 8, 8),
    ),
    "cnn, groups": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2, bias=False), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
        (2, 6, 6),
    ),
    "rnn": (lambda: nn.Sequential(Recurrent(nn.RNN(3, 5, batch_first=True)), nn.Linear(5, 3)), (6, 3)),
    "gru": (lambda: nn.Sequential(Recurrent(nn.GRU(3, 5, batch_first=True)), nn.Linear(5, 3)), (6, 3)),
    "lstm, all states": (
        lambda: nn.Sequential(
            Recurrent(nn.LSTM(3, 4, batch_first=True), last=False), nn.Flatten(), nn.Linear(24, 3)
        ),
        (6, 3),
    ),
    "positions": (
        lambda: Chain(
            [
                Positionwise(Affine(3, 4)), Elementwise("relu"), Positionwise(Affine(4, 4)), Elementwise("relu"),
                Composed([LinearMap(nn.Flatten())], Affine(24, 3)),
            ]
        ),
        (6, 3),
    ),
    "generic": (lambda: nn.Sequential(Gated(6, 5), nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, 3)), (6,)),
    "jumps": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Hardtanh(), nn.Linear(5, 4), nn.ELU(), nn.Linear(4, 3)), (6,)),
}  # fmt: skip


def engine_of(name, options, penalty, counted):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    made, loss = make(), get_loss("cross_entropy")
    chain = made if isinstance(made, Chain) else from_module(made)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(30, *shape, generator=generator, dtype=F64), torch.arange(30) % 3
    counts = (torch.arange(30, dtype=F64)[:, None] % 3 + 1) if counted else None
    engine = Engine(chain, x, Risk(loss, loss.encode(y, 3, F64)), penalty, options, counts)
    params = chain.initial_parameters(generator, 1.0, dtype=F64, device=torch.device("cpu"))
    return engine, engine.feasible_state(params, 1.5, 0.8)


def graph_of(kind, activation, train_rows, **options):
    """Searches start at given numbers: from the linearised curvature, which relu has where no kink is crossed, the very
    first trial is an equality that rounding decides."""
    drawn = random_graph(np.random.default_rng(0), 30, 5, 3)
    penalty = {"name": "l2", "strength": 0.1}
    settings = {"kind": kind, "activation": activation, "train_rows": train_rows, "regularizer": penalty}
    engine = graph_engine(*drawn, [5, 6, 4, 3], alpha0=0.9, t0=1.1, **settings, **options)
    generator = torch.Generator().manual_seed(0)
    params = engine.chain.initial_parameters(generator, 1.0, dtype=F64, device=torch.device("cpu"))
    return engine, engine.feasible_state(params, 1.5, 0.3)


def tensors(state):
    parameters = [p for block in state.params for p in block.values()]
    return [*parameters, *state.outputs, *state.predictions, state.u]


def assert_same(make, iterate):
    """After 4 iterations, to 1e-12 of the size of each tensor."""
    states = []
    for shortcuts in (True, False):
        engine, state = make()
        engine.how = Execution(shortcuts=shortcuts)
        iterate(engine, state)
        states.append(tensors(state))
    moved = zip(*states, strict=True)
    for mine, theirs in moved:
        assert bool(mine.isfinite().all())
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12 * (1 + float(mine.abs().max())))


def sweeps(engine, state):
    for _ in range(4):
        engine.sweep(state)


def sweeps_with_shares(engine, state):
    for _ in range(2):
        engine.resynchronise(state)
        engine.sweep(state, engine.output_gradients(state))


def accelerated(engine, state):
    method = Accelerated(engine, state)
    for _ in range(3):
        method.iterate(state, lambda candidate, steps: steps)


SOLVERS = [{"w_solver": "exact", "a_solver": "exact"}, {"w_solver": "quadratic", "a_solver": "quadratic"}]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s["w_solver"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_chains_of_all_blocks(name, solver, counted):
    options = SubproblemOptions(damping=0.1, **solver)
    assert_same(lambda: engine_of(name, options, L2(0.1), counted), sweeps)


@pytest.mark.parametrize("iterate", [sweeps_with_shares, accelerated])
@pytest.mark.parametrize("name", MODULES)
def test_resynchronised_sweeps(name, iterate):
    options = SubproblemOptions(damping=1.0, last_damping=0.5)
    assert_same(lambda: engine_of(name, options, L2(0.1), False), iterate)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s["w_solver"])
@pytest.mark.parametrize("name", ["cnn", "cnn, groups", "generic"])
def test_a_penalty_with_kinks(name, solver):
    assert_same(lambda: engine_of(name, SubproblemOptions(damping=0.1, **solver), L1(0.05), False), sweeps)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s["w_solver"])
@pytest.mark.parametrize("train_rows", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "identity"])
@pytest.mark.parametrize("kind", ["factors", "dense factors", "product", "dense product"])
def test_graphs(kind, activation, train_rows, solver):
    assert_same(lambda: graph_of(kind, activation, train_rows, **solver), sweeps)


@pytest.mark.parametrize("train_rows", [False, True])
@pytest.mark.parametrize("iterate", [sweeps_with_shares, accelerated])
def test_resynchronised_sweeps_on_graphs(iterate, train_rows):
    assert_same(lambda: graph_of("dense factors", "relu", train_rows, damping=1.0), iterate)
