"""The engine equals the literal algorithm, variable by variable."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from dladmm.compute.execution import Execution
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.regularizers import get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions
from reference import ReferenceMLP


def paired(depth, *, rho, nu, lam, solver, seed=0, samples=23, damping=0.0):
    """The same problem for the reference and for the engine."""
    rng = np.random.default_rng(seed)
    widths = [6, *rng.integers(4, 9, depth - 1).tolist(), 3]
    x = rng.normal(size=(samples, widths[0]))
    y = rng.integers(0, 3, samples)
    W = [rng.normal(size=(o, i)) * 0.5 for i, o in pairwise(widths)]
    b = [rng.normal(size=o) * 0.1 for o in widths[1:]]
    reference = ReferenceMLP(x, y, W, b, rho, nu, lam, solver=solver, damping=damping)

    chain = mlp(widths)
    loss = get_loss("cross_entropy")
    risk = Risk(loss, loss.encode(torch.from_numpy(y), 3, torch.float64), None)
    options = SubproblemOptions(w_solver=solver, a_solver=solver, alpha0=1.0, t0=1.0, damping=damping)
    penalty = get_regularizer({"name": "l2", "strength": lam} if lam else None)
    engine = Engine(chain, torch.from_numpy(x), risk, penalty, options)
    params = [
        {"W": torch.from_numpy(W[l // 2].copy()), "b": torch.from_numpy(b[l // 2].copy())}
        if l % 2 == 0
        else {}
        for l in range(len(chain))
    ]
    return reference, engine, engine.feasible_state(params, rho, nu)


def largest_difference(reference, state):
    pairs = [
        *zip(reference.W[1:], state.W, strict=True),
        *zip(reference.b[1:], state.b, strict=True),
        *zip(reference.z[1:], state.z, strict=True),
        *zip(reference.a[1:], state.a, strict=True),
        (reference.u, state.u),
    ]
    return max(np.abs(expected - actual.numpy()).max() for expected, actual in pairs)


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("rho", [0.05, 1.5, 20.0])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_five_iterations_agree(depth, rho, lam, solver):
    damping = 0.05 if solver == "exact" else 0.0
    reference, engine, state = paired(depth, rho=rho, nu=1.0, lam=lam, solver=solver, damping=damping)
    assert largest_difference(reference, state) < 1e-12
    for _ in range(5):
        reference.iterate()
        engine.sweep(state)
    assert largest_difference(reference, state) < 1e-8
    assert float(engine.energy(state).lagrangian) == pytest.approx(reference.lagrangian(), rel=1e-9)


def test_small_nu_and_rho_as_in_the_papers_experiment():
    reference, engine, state = paired(3, rho=1e-3, nu=1e-3, lam=0.0, solver="quadratic")
    for _ in range(5):
        reference.iterate()
        engine.sweep(state)
    assert largest_difference(reference, state) < 1e-8


def test_cached_predictions_follow_every_update():
    _, engine, state = paired(4, rho=1.5, nu=1.0, lam=0.1, solver="quadratic")
    for _ in range(20):
        engine.sweep(state)
    for cached, raw in zip(state.predictions, engine.raw_predictions(state), strict=True):
        assert torch.allclose(cached, raw, atol=1e-10)


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("samples", [23, 40])
def test_without_shortcuts_the_bits_are_the_same(solver, counted, shares, samples):
    """Nothing cached, nothing prepared, nothing joined. With 23 samples, fewer than four per input, the first layer's
    two steps of W are not made on the Gram matrix; with 40 they are, which rounds differently."""
    states = []
    for shortcuts in (True, False):
        _, engine, state = paired(4, rho=1.5, nu=1.0, lam=0.1, solver=solver, damping=0.1, samples=samples)
        engine.how = Execution(shortcuts=shortcuts)
        if counted:
            engine.counts = torch.arange(1.0, len(engine.x) + 1, dtype=torch.float64)[:, None] / 12
        for _ in range(4):
            engine.sweep(state, engine.output_gradients(state) if shares else None)
        states.append(state)
    for mine, theirs in zip(*((*s.W, *s.b, *s.z, *s.a, s.u) for s in states), strict=True):
        if samples == 23:
            assert torch.equal(mine, theirs)
        else:
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_ties_of_a_sweep_are_those_of_the_state_it_made(solver, chunk_rows):
    _, engine, state = paired(4, rho=1.5, nu=1.0, lam=0.1, solver=solver, damping=0.1)
    engine.chunk_rows = chunk_rows
    for _ in range(3):
        steps = engine.sweep(state)
        assert sorted(s.link for s in steps if s.link is not None and s.tie is not None) == list(range(6))
        known, again = engine.energy(state, steps=steps), engine.energy(state)
        torch.testing.assert_close(known.coupling, again.coupling, rtol=1e-12, atol=1e-15)
