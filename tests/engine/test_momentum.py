"""Accelerated mode to the number: extrapolation, what is dropped, the safeguard's comparison, what a snapshot holds."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from convergent import train
from dladmm import Callback, mlp
from dladmm.engine.accelerated import FADE_GROWTH, NUMBERS, Accelerated, Attempt
from dladmm.regularizers import L2, NonNegative
from problems import random_problem

F64 = torch.float64


def method_on(penalty=None, dropout=0.0, seed=3):
    engine, state = random_problem(seed, depth=2, samples=20, activation="tanh", nu=5.0, rho_factor=10.0)
    engine.penalty = L2(0.3) if penalty is None else penalty
    for block in state.params:
        for name in block:
            block[name] = block[name].abs() if engine.penalty.is_constraint else block[name]
    engine.resynchronise(state)
    return Accelerated(engine, state, dropout, seed=1), state


def steps_of(state, steps):
    return steps


@pytest.mark.parametrize("beta", [0.0, 0.4, 0.9])
def test_a_point_is_extrapolated_from_the_two_before(beta):
    method, state = method_on()
    method.iterate(state, steps_of)
    found = method._extrapolated(state.params, beta)
    for old, p, new in zip(method.previous, state.params, found, strict=True):
        for name in p:
            torch.testing.assert_close(
                new[name], p[name] + beta * (p[name] - old[name]), rtol=1e-12, atol=1e-14
            )


@pytest.mark.parametrize("momentum", [0, 1, 4, 30])
def test_the_weights_are_nesterovs(momentum, monkeypatch):
    method, state = method_on()
    method.iterate(state, steps_of)
    asked = []
    plain = method._extrapolated
    monkeypatch.setattr(
        method, "_extrapolated", lambda params, beta: asked.append(beta) or plain(params, beta)
    )
    method._sweep_trial(state, Attempt(momentum, 0, drops=False))
    assert asked == [momentum / (momentum + 3)]


def test_a_constraint_holds_at_the_extrapolated_point():
    method, state = method_on(NonNegative())
    for block, old in zip(state.params, method.previous, strict=True):
        for name in block:
            old[name] = block[name] + 1.0  # beyond it lies x - beta, below zero
    found = method._extrapolated(state.params, 0.9)
    weights = [p["W"] for p in found if "W" in p]
    assert all(bool((W >= 0).all()) for W in weights)
    assert any(bool((W == 0).any()) for W in weights)


def test_rho_nu_stiffness_and_damping_follow_the_level(monkeypatch):
    method, state = method_on()
    damping = []
    seen_as = method.engine.seen_as
    monkeypatch.setattr(
        method.engine, "seen_as", lambda **c: damping.append(c["options"].damping) or seen_as(**c)
    )
    for level in (-1, 0, 3, 40):
        method._sweep_trial(state, Attempt(0, level, drops=False))
        assert method._trial.rho == method.rho * 2.0**level
        assert method._trial.nu == method.nu * 2.0**level
        assert method._trial.stiffness == min(2.0 ** max(level, 0), method._stiffest)
    assert damping == [method.engine.options.damping * times for times in (1, 1, 8, 2**40)]
    # at most as stiff as the dtype resolves over all links, however short the steps
    assert method._trial.stiffness == pytest.approx(2.0 ** (26 / len(method.engine.chain)))


def test_no_two_attempts_drop_the_same_entries(monkeypatch):
    method, state = method_on(dropout=0.3)
    drawn = []
    apply = method._drops.apply
    monkeypatch.setattr(
        method._drops,
        "apply",
        lambda x, share, turn, how: drawn.append((share, turn)) or apply(x, share, turn, how),
    )
    for iteration in (1, 2):
        method.iteration = iteration
        for level in range(-2, 13):
            method._sweep_trial(state, Attempt(0, level, drops=True))
    turns = [turn for _, turn in drawn]
    assert len(set(turns)) == len(turns) == 30
    assert {share for share, _ in drawn} == {method.fade * 0.3}


@pytest.mark.parametrize(
    ("excess", "accepted"), [(0.0, True), (-1e-9, True), (1e-9, False), (torch.nan, False)]
)
def test_the_smallest_rise_is_refused(excess, accepted, monkeypatch):
    method, state = method_on()
    value = method._objective_of(state)
    monkeypatch.setattr(
        method.engine, "objective", lambda candidate: torch.tensor(value * (1 + excess), dtype=F64)
    )
    method._known = state, value
    assert (method.iterate(state, steps_of) is not None) == accepted


def test_the_objective_is_that_of_the_forward_pass_and_the_penalty():
    method, state = method_on()
    method.iterate(state, steps_of)
    engine = method.engine
    outputs = engine.chain.forward(state.params, engine.x)[-1]
    expected = engine.risk.loss.rows(outputs, engine.risk.target).sum()
    expected = expected + 0.15 * sum(p["W"].square().sum() for p in state.params if "W" in p)
    assert float(engine.objective(state)) == pytest.approx(float(expected), rel=1e-12)
    assert method._known[1] == float(engine.objective(state))


def test_a_snapshot_holds_every_counter():
    method, state = method_on(dropout=0.2)
    values = dict.fromkeys(NUMBERS)
    for i, name in enumerate(("iteration", "momentum", "level", "calm", "refused", "patience"), 3):
        setattr(method, name, i)
    method.fade, method.rho, method.nu = 0.77, 1.25, 2.5
    values |= {name: getattr(method, name) for name in NUMBERS}
    assert set(NUMBERS) == {
        "iteration",
        "momentum",
        "level",
        "calm",
        "refused",
        "patience",
        "fade",
        "rho",
        "nu",
    }
    tensors, meta = method.snapshot()
    for block in method.previous:
        for p in block.values():
            p.add_(0.25)
    tensors = {name: t.clone() for name, t in tensors.items()}
    other, _ = method_on(dropout=0.2)
    other._known = state, -1.0
    other.resume(tensors, json.loads(json.dumps(meta)))
    assert {name: getattr(other, name) for name in NUMBERS} == values
    assert other._known is None
    for mine, theirs in zip(method.previous, other.previous, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_counters_after_an_accepted_step():
    method, state = method_on(dropout=0.2)
    fade = method.fade
    method.iterate(state, steps_of)
    assert (method.iteration, method.momentum, method.calm) == (1, 1, 1)
    assert method.fade == pytest.approx(min(1.0, FADE_GROWTH * fade))


def test_a_resumed_run_is_the_unbroken_one_over_a_hundred_iterations_with_refusals():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(16, 3)), rng.integers(0, 2, 16)
    saved, refused = [], []

    class Save(Callback):
        def on_epoch_end(self, trainer):
            refused.append(trainer.method.refused)
            if trainer.history.n_iter == 37:
                tensors, meta = trainer.snapshot()
                saved.append(({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))))

    class Resume(Callback):
        def on_train_begin(self, trainer):
            trainer.resume(*saved[0])

    settings = {
        "mode": "accelerated", "max_iter": 100, "dtype": "float64", "eps_rel": 0.0, "eps_abs": 0.0, "rho": 0.02,
        "dropout": 0.3, "random_state": 0, "diagnostics_every": 100,
    }  # fmt: skip
    whole, resumed = (
        train(mlp([3, 4, 2]), X, y, callbacks=[each], **settings) for each in (Save(), Resume())
    )
    assert whole.history.n_iter == 100
    assert 0 < refused[36] < refused[99]  # before and after
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]
    assert whole.history["rho"] == resumed.history["rho"]
    for mine, theirs in zip(whole.state.params, resumed.state.params, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
