"""Loops whose length is foreseen: where launches are recorded, nobody asks whether steps were enough."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dladmm import from_module
from dladmm.compute import execution, passes
from dladmm.compute.execution import Execution
from dladmm.compute.foresight import FIRST_STEPS, MORE_STEPS, REMEMBERED, Foresight, is_of_a_loop
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.options import execution_of, make_options
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.regularizers import L2
from dladmm.solvers import factor, linear_input
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.checkpoint import resume_training, save_training
from dladmm.training.trainer import Trainer

RECORDED = Execution(recorded=True, kernels=False)


def flags(insufficient, made):
    """What the device leaves: after so many steps, of all but the last, the answer was not good enough."""
    return [torch.tensor(i < insufficient) for i in range(made - 1)]


def after(loops, insufficient, most=20):
    """The plan after a call that needed more than so many steps."""
    made = loops.steps(3, "forward", most)
    loops.count(3, "forward", flags(insufficient, made))
    return loops.plan()


def test_a_plan_grows_at_once_and_shrinks_when_calls_agree():
    loops = Foresight()
    assert loops.plan() == ()
    assert loops.steps(3, "forward", 20) == FIRST_STEPS
    assert after(loops, 10) == (FIRST_STEPS + MORE_STEPS,), "nobody knows how many it takes"
    assert after(loops, 10) == (FIRST_STEPS + 2 * MORE_STEPS,)
    assert after(loops, 4) == (FIRST_STEPS + 2 * MORE_STEPS,), "one call is not enough to shrink"
    for _ in range(REMEMBERED - 2):
        after(loops, 2)
    assert after(loops, 3) == (6,), "the fifth step was enough for all, and one more is not looked at"
    assert after(loops, 4) == (6,)
    assert after(loops, 5) == (8,)


def test_no_more_steps_than_the_loop_may_make():
    loops = Foresight()
    assert loops.steps(0, "backward", 2) == 2
    for _ in range(3):
        loops.count(0, "backward", flags(1, 2))
        assert loops.plan() == (2,)
    assert loops.steps(1, "backward", 1) == 1
    loops.count(1, "backward", [])
    assert loops.plan() == (2, 1)


def test_replays_leave_their_count_where_the_host_looks():
    """A replay writes, and calls nothing: the tensor stays the same one."""
    loops = Foresight()
    for insufficient in (1, 3):
        made = loops.steps(0, "forward", 20)
        loops.count(0, "forward", flags(insufficient, made))
        (loop,) = loops._loops.values()
        place = loop.insufficient.data_ptr()
        assert int(loop.insufficient) == insufficient
    loop.insufficient.fill_(made - 1)  # as a replay does
    assert loops.plan() == (made + MORE_STEPS,)
    loops.count(0, "forward", flags(2, made))
    assert loop.insufficient.data_ptr() == place


def test_a_snapshot_holds_the_plans():
    loops, other = Foresight(), Foresight()
    for insufficient in (9, 2, 2):
        after(loops, insufficient)
    for name, value in loops.snapshot().items():
        owner, own = name.split(".", 1)
        assert is_of_a_loop(own)
        other.resume(int(owner), own, value)
    assert other.plan() != ()
    for insufficient in (2, 2, 2, 2, 2, 2, 11):
        assert after(loops, insufficient) == after(other, insufficient)
    assert not is_of_a_loop("metric")


def test_a_snapshot_cannot_make_a_loop_endless():
    loops = Foresight()
    for planned, made in ((10**12, 20), (0, 2), (-3, 2), (7, 7)):
        loops.resume(3, "steps forward", torch.tensor([planned, 10**12]))
        assert loops.steps(3, "forward", 20) == made
        assert after(loops, 10**6) == (min(20, made + MORE_STEPS),)


NETWORK = nn.Sequential(
    nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3),
)  # fmt: skip


def problem(how, rho=1.5, nu=1.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, 8, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (40,), generator=generator)
    chain, loss = from_module(NETWORK, sample=x[:2].float()), get_loss("cross_entropy")
    risk, solvers = Risk(loss, loss.encode(y, 3, x.dtype)), SubproblemOptions(a_solver="exact")
    engine = Engine(chain, x, risk, L2(0.1), solvers)
    params = chain.initial_parameters(generator, 1.0, dtype=x.dtype, device=x.device)
    state = engine.feasible_state(params, rho, nu)
    engine.how = how
    return engine, state


@pytest.fixture
def taken_for_a_gpu(monkeypatch):
    for module in (execution, passes, factor):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: True)


@pytest.mark.parametrize("nu", [1.0, 0.01])
def test_a_loop_that_cannot_ask_comes_as_far(taken_for_a_gpu, monkeypatch, nu):
    """It makes a step more than one that asks, so that its answers are as good; with small nu both need many."""
    made = []
    end = linear_input._End.leave
    monkeypatch.setattr(
        linear_input._End,
        "leave",
        lambda self: made.append((self.steps, len(self._insufficient))) or end(self),
    )
    (engine, state), (blind, blind_state) = problem(Execution(kernels=False), nu=nu), problem(RECORDED, nu=nu)
    for _ in range(2 * REMEMBERED):
        engine.sweep(state)
        blind.workspace.foresight.plan()
        blind.sweep(blind_state)
        value, found = (float(e.energy(s).lagrangian) for e, s in ((engine, state), (blind, blind_state)))
        assert found == pytest.approx(value, rel=0.02)
    planned = blind.workspace.foresight.plan()
    assert len(planned) == 2, "back and forth, for the input of the second convolution"
    assert all(steps < linear_input.MAX_STEPS for steps in planned) or nu < 1
    for block_name, value in blind.workspace.foresight.snapshot().items():
        plan, most, *needed = value.tolist()
        assert plan >= max(needed, default=0), block_name
        assert most == linear_input.MAX_STEPS
    assert any(steps == looked + 1 for steps, looked in made)


def called_instead_of_recorded(monkeypatch):
    """The names under which an accelerated run would record its attempts."""
    names = []

    class Called:
        def __init__(self, *_, **__):
            pass

        def __call__(self, name, function):
            names.append(name)
            return function()

    monkeypatch.setattr("dladmm.engine.accelerated.Recorder", Called)
    return names


def test_an_accelerated_run_records_anew_where_the_plan_has_changed(taken_for_a_gpu, monkeypatch):
    names = called_instead_of_recorded(monkeypatch)
    engine, state = problem(RECORDED)
    method = Accelerated(engine, state)
    for _ in range(6):
        assert method.iterate(state, lambda *_: None) is None  # nothing is looked at
        assert method._known is not None
    plans = [name[2] for name in names]
    assert all(len(plan) == 2 for plan in plans)
    assert plans[-1] == engine.workspace.foresight.plan()
    (loop, *_) = engine.workspace.foresight._loops.values()
    loop.insufficient.fill_(loop.planned - 1)
    method.iterate(state, lambda *_: None)
    assert names[-1][2] != plans[-1]


def test_what_is_carried_holds_the_plans_of_a_recorded_run(taken_for_a_gpu):
    engine, state = problem(RECORDED)
    engine.sweep(state)
    carried = engine.carried(state)
    loops = {name: value for name, value in carried.items() if is_of_a_loop(name.split(".", 1)[1])}
    assert len(loops) == 2
    other, other_state = problem(RECORDED)
    for name, value in loops.items():
        l, key = name.split(".", 1)
        other.carry(other_state, int(l), key, value + 1)
    assert other.workspace.foresight.plan() == (FIRST_STEPS + 1,) * 2
    engine.how = Execution()
    assert not any(is_of_a_loop(name.split(".", 1)[1]) for name in engine.carried(state))


def test_many_entries_are_not_worth_a_recording(monkeypatch):
    engine, state = problem(RECORDED)
    entries = sum(v.numel() for v in state.outputs)
    assert entries % 2 == 0
    for chain, foresees, limit in ((engine.chain, True, entries // 2), (mlp([3, 4, 2]), False, entries)):
        engine.chain = chain
        assert engine.foresees == foresees
        monkeypatch.setattr("dladmm.engine.problem.RECORDED_ENTRIES", limit)
        assert engine.worth_recording(state)
        monkeypatch.setattr("dladmm.engine.problem.RECORDED_ENTRIES", limit - 1)
        assert not engine.worth_recording(state)


@pytest.mark.parametrize("entries", [1 << 10, 1 << 40])
def test_a_large_run_of_convolutions_asks(monkeypatch, entries):
    """Where nothing is replayed a loop may ask, and ends as soon as its answer is good."""
    engine, state = problem(Execution())
    method = Accelerated(engine, state)
    monkeypatch.setattr("dladmm.engine.problem.RECORDED_ENTRIES", entries)
    engine.x = SimpleNamespace(is_cuda=True)
    how = execution_of(make_options(mode="accelerated"), method, engine, state)
    assert how.recorded == (entries > 1 << 20)
    engine.chain = mlp([3, 4, 2])
    assert execution_of(make_options(mode="accelerated"), method, engine, state).recorded


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_a_resumed_run_goes_on_with_the_plans(taken_for_a_gpu, monkeypatch, tmp_path, mode):
    called_instead_of_recorded(monkeypatch)

    def trainer():
        engine, _ = problem(RECORDED)
        params = engine.chain.initial_parameters(
            torch.Generator().manual_seed(0), 1.0, dtype=engine.x.dtype, device=engine.x.device
        )
        chosen = make_options(mode=mode, max_iter=9)
        made = Trainer(engine.chain, engine.x, engine.risk, chosen, penalty=engine.penalty, params=params)
        made.engine.how = RECORDED  # as on a GPU
        return made

    first, second = trainer(), trainer()
    for _ in range(3):
        first._depends_on()  # what a recording is made for: plans are made there
        first._iterate(first.history.n_iter + 1)
    loops = first.engine.workspace.foresight
    (loop, *_) = loops._loops.values()
    loop.planned += 3
    save_training(first, tmp_path / "run.dladmm")
    resume_training(second, tmp_path / "run.dladmm")
    assert second.engine.workspace.foresight.snapshot().keys() == loops.snapshot().keys()
    for name, value in second.engine.workspace.foresight.snapshot().items():
        assert torch.equal(value, loops.snapshot()[name])
