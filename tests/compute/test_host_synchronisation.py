"""An iteration that is recorded never waits for the device: checked on a CPU that is taken for a GPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dladmm import datasets
from dladmm.api.graph_problem import GraphSettings, graph_problem
from dladmm.blocks import Affine, Elementwise
from dladmm.compute import execution, passes
from dladmm.compute.execution import Execution
from dladmm.compute.recording import Recorder
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import Chain, from_module, mlp
from dladmm.regularizers import L1, L2
from dladmm.solvers import factor
from dladmm.solvers.factor import damped_cholesky
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.diagnostics import vital_signs
from own_gain import Gain

WAITING = ("_local_scalar_dense", "lift_fresh", "nonzero", "equal", "is_nonzero")
"""A number asked for, a number brought, a size that depends on numbers: on a GPU each waits for the device."""

RECORDED = Execution(compiled=True, recorded=True)


class Waits(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def network(loss="cross_entropy", activation="relu", penalty=None, dtype=torch.float32, **options):
    widths, n = [20, 30, 25, 7], 50
    generator = torch.Generator().manual_seed(0)
    chain = mlp(widths, activation)
    encoded = get_loss(loss).encode(torch.randint(0, 7, (n,), generator=generator), 7, dtype)
    x = torch.randn(n, 20, generator=generator, dtype=dtype)
    risk, solvers = Risk(get_loss(loss), encoded), SubproblemOptions(**options)
    engine = Engine(chain, x, risk, L2(0.1) if penalty is None else penalty, solvers)
    params = chain.initial_parameters(generator, 1.0, dtype=dtype, device=torch.device("cpu"))
    return engine, engine.feasible_state(params, 1.5, 1.0)


def graph(rows="all", dtype=torch.float64, **options):
    settings = GraphSettings(
        hidden=(16, 8),
        activation="relu",
        rows=rows,
        loss=get_loss("cross_entropy"),
        validation=None,
        prox="auto",
        dtype=dtype,
        device=torch.device("cpu"),
        scaled=True,
    )
    problem = graph_problem(datasets.load("sbm", n_nodes=120, n_classes=3, seed=0), settings)
    engine = Engine(problem.chain, problem.x, problem.risk, L2(0.1), SubproblemOptions(**options))
    generator = torch.Generator().manual_seed(0)
    params = problem.chain.initial_parameters(generator, 1.0, dtype=dtype, device=torch.device("cpu"))
    return engine, engine.feasible_state(params, 1.5, 0.1)


def waits(engine, state):
    """What one sweep and its measurement wait for."""
    engine.sweep(state)  # what is computed once, on the host, is there from now on
    recorded = engine.seen_as(how=RECORDED)
    with Waits() as waits:
        vital_signs(recorded, state, recorded.sweep(state))
    return waits.found


@pytest.fixture(autouse=True)
def _taken_for_a_gpu(monkeypatch):
    for module in (execution, passes, factor):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(execution, "compiled", lambda function: function)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "hard_tanh"])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_logistic", "squared_hinge"])
@pytest.mark.parametrize("start", [None, 1.0])
@pytest.mark.parametrize("solver", ["quadratic", "quadratic, tau by sample", "exact"])
def test_a_recordable_iteration_asks_the_device_for_nothing(activation, loss, start, solver):
    name = solver.split(",")[0]
    solvers = {"w_solver": name, "a_solver": name, "tau_per_sample": name != solver}
    engine, state = network(loss, activation, alpha0=start, t0=start, **solvers)
    assert engine.recordable
    assert waits(engine, state) == []


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(2)], ids=["max", "mean"])
def test_nor_does_one_of_convolutions(solver, pool):
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2),
        nn.LeakyReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 2, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(18, 3),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(20, 1, 8, 8, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    chain, loss = from_module(network, sample=x[:2]), get_loss("cross_entropy")
    solvers = SubproblemOptions(w_solver=solver, a_solver=solver)
    engine = Engine(chain, x, Risk(loss, loss.encode(y, 3, x.dtype)), L2(0.1), solvers)
    params = chain.initial_parameters(generator, 1.0, dtype=x.dtype, device=x.device)
    assert engine.recordable
    assert waits(engine, engine.feasible_state(params, 1.5, 1.0)) == []


GRAPH_OPTIONS = [
    {"w_solver": "quadratic", "a_solver": "quadratic", "alpha0": 1.0, "t0": 1.0},
    {"w_solver": "quadratic", "a_solver": "quadratic"},
    {"w_solver": "exact", "a_solver": "exact"},
]


@pytest.mark.parametrize("rows", ["all", "train"])
@pytest.mark.parametrize("options", GRAPH_OPTIONS)
def test_nor_does_one_on_a_graph(options, rows):
    engine, state = graph(rows, torch.float32, **options)
    assert engine.recordable
    assert waits(engine, state) == []


@pytest.mark.parametrize("rows", ["all", "train"])
@pytest.mark.parametrize("options", GRAPH_OPTIONS)
def test_a_search_without_asking_finds_what_the_loop_finds(options, rows):
    (engine, state), (blind_engine, blind_state) = (graph(rows, **options) for _ in range(2))
    blind_engine.how = RECORDED
    for _ in range(8):
        found = engine.sweep(state)
        found_blindly = blind_engine.sweep(blind_state)
        for step, other in zip(found, found_blindly, strict=True):
            torch.testing.assert_close(step.squared, other.squared, rtol=1e-9, atol=1e-18)
    for W, other in zip(state.W, blind_state.W, strict=True):
        torch.testing.assert_close(W, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
def test_products_in_the_order_a_gpu_likes_are_the_same(solver, monkeypatch):
    options = {"w_solver": solver, "a_solver": solver}
    engine, state = network(**options, dtype=torch.float64)
    other_engine, other = network(**options, dtype=torch.float64)
    for _ in range(4):
        other_engine.sweep(other)  # taken for a GPU, as everywhere here
    for module in (execution, passes, factor):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: False)
    for _ in range(4):
        engine.sweep(state)
    for W, same in zip(state.W, other.W, strict=True):
        torch.testing.assert_close(W, same, rtol=1e-10, atol=1e-12)


def test_nor_does_one_with_a_block_of_ones_own():
    """It declares Support.ALL, and its sums go through its work."""
    loss, x = get_loss("cross_entropy"), torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    chain = Chain([Affine(20, 9), Gain(9), Elementwise("relu"), Affine(9, 7)])
    risk = Risk(loss, loss.encode(torch.arange(50) % 7, 7, torch.float32))
    engine = Engine(chain, x, risk, L2(0.1), SubproblemOptions())
    params = chain.initial_parameters(None, 1.0, dtype=torch.float32, device=torch.device("cpu"))
    assert engine.recordable
    assert waits(engine, engine.feasible_state(params, 1.5, 1.0)) == []


@pytest.fixture
def recording_without_a_gpu(monkeypatch):
    """Functions are called each time, as they were when they were recorded."""
    first = {}

    def call(self, name, function):
        made, *_ = first.setdefault((id(self), name), (function, self))
        return made()

    monkeypatch.setattr(Recorder, "__call__", call)
    return first


PROBLEMS = {
    "network": lambda dtype: network(damping=1.0, last_damping=0.5, dtype=dtype),
    "graph": lambda dtype: graph("all", dtype, damping=1.0, last_damping=0.5),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_recorded_attempt_waits_for_nothing_and_its_iteration_once(problem, recording_without_a_gpu):
    engine, state = PROBLEMS[problem](torch.float32)
    method = Accelerated(engine, state, dropout=0.2 if problem == "network" else 0.0)
    assert engine.recordable
    engine.how = Execution(recorded=True)
    for _ in range(3):
        method.iterate(state, partial(vital_signs, engine))
    refused = method.refused
    with Waits() as found:
        method.iterate(state, partial(vital_signs, engine))
    assert method.refused == refused
    assert found.found == ["_local_scalar_dense"]
    assert recording_without_a_gpu


@pytest.mark.parametrize("problem", PROBLEMS)
def test_recorded_attempts_reach_what_others_reach(problem, recording_without_a_gpu):
    """Also after refusals, which change the level; every level has one recording."""
    levels, reached = [], []
    for how in (Execution(recorded=True), Execution(compiled=True)):
        engine, state = PROBLEMS[problem](torch.float64)
        method = Accelerated(engine, state, dropout=0.2 if problem == "network" else 0.0)
        engine.how, found = how, []
        for _ in range(25):
            found.append(float(method.iterate(state, partial(vital_signs, engine))[0]))
            levels.append(method.level)
        reached.append((found, [p.clone() for block in state.params for p in block.values()], method.refused))
    assert len(set(levels)) > 1
    assert reached[0][2] == reached[1][2]
    torch.testing.assert_close(*(torch.tensor(found) for found, _, _ in reached), rtol=1e-9, atol=0)
    torch.testing.assert_close(*(params for _, params, _ in reached), rtol=1e-6, atol=1e-9)
    assert len(recording_without_a_gpu) <= 2 * len(set(levels)) + 2


def test_a_blind_factor_is_the_other_factor_or_a_safe_one():
    x = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gram = x.T @ x
    for one, other in zip(
        damped_cholesky(gram, 0.1, torch.float64),
        damped_cholesky(gram, 0.1, torch.float64, without_waiting=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    indefinite = gram - 2 * torch.eye(6, dtype=torch.float64)
    indefinite[0, 0] = -1.0
    lower, delta = damped_cholesky(indefinite, 0.0, torch.float64, without_waiting=True)
    torch.testing.assert_close(lower @ lower.T, delta * torch.eye(6, dtype=torch.float64))
    assert float(delta) >= float(torch.linalg.eigvalsh(indefinite).max())


def test_the_test_can_fail():
    engine, state = network(penalty=L1(0.1), w_solver="exact", a_solver="quadratic")
    assert not engine.recordable
    assert "_local_scalar_dense" in waits(engine, state)


def test_an_accelerated_iteration_waits_once():
    """For the objective that its safeguard compares; what it is measured by is under way by then."""
    engine, state = network(damping=1.0, last_damping=0.5)
    method = Accelerated(engine, state, dropout=0.2)
    engine.how = Execution(compiled=True)
    for _ in range(2):
        method.iterate(state, partial(vital_signs, engine))
    refused = method.refused
    with Waits() as found:
        method.iterate(state, partial(vital_signs, engine))
    assert method.refused == refused
    assert found.found == ["_local_scalar_dense"]
