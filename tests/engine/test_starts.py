"""Where an iterate starts and what a problem counts, written out; the smallest pieces of the Lagrangian."""

from __future__ import annotations

import pytest
import torch

from dladmm.engine.sweep import Engine, last_layer_rate
from dladmm.regularizers import L1
from problems import random_problem

F64 = torch.float64


def test_the_rate_of_the_last_layer_is_the_number():
    assert last_layer_rate(3.0, 1.0) == pytest.approx(1.5 - 2 / 3)
    assert last_layer_rate(10.0, 2.0) == pytest.approx(5 - 0.8)


def test_a_feasible_start_is_the_forward_pass_with_u_of_lemma_2():
    engine, state = random_problem(2, depth=3, samples=15)
    v = engine.x
    for block, p, output, prediction in zip(
        engine.chain, state.params, state.outputs, state.predictions, strict=True
    ):
        v = block.forward(p, v)
        assert torch.equal(output, v)
        assert torch.equal(prediction, v)
        assert output is not prediction
    torch.testing.assert_close(state.u, -engine.risk.gradient(v))
    assert float(engine.dual_optimality(state)) < 1e-20


def test_the_papers_start_has_labels_in_the_last_layer():
    engine, feasible = random_problem(2, depth=3, samples=15)
    state = engine.paper_state(feasible.params, 1.0, 1.0)
    assert torch.equal(state.outputs[-1], 2 * engine.risk.target - 1)
    assert not state.u.any()
    for l in range(len(engine.chain) - 1):
        assert torch.equal(state.outputs[l], feasible.outputs[l])


def test_resynchronised_is_feasible():
    engine, state = random_problem(2, depth=3, samples=15)
    engine.sweep(state)
    fresh = engine.feasible_state(state.params, 1.0, 1.0)
    engine.resynchronise(state)
    for mine, theirs in zip((*state.outputs, *state.predictions, state.u),
                            (*fresh.outputs, *fresh.predictions, fresh.u), strict=True):  # fmt: skip
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("counted", [False, True])
def test_every_piece_of_the_lagrangian(counted):
    engine, state = random_problem(2, depth=3, samples=15, nu=0.3)
    counts = (torch.arange(15) % 3 + 1).to(F64)[:, None] if counted else None
    engine = Engine(engine.chain, engine.x, engine.risk, L1(0.2), engine.options, counts)
    for v in (*state.outputs, state.u):
        v.add_(0.1 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1), dtype=F64))
    rows = torch.ones(15, 1, dtype=F64) if counts is None else counts
    pieces = engine.energy(state)
    r = state.outputs[-1] - state.predictions[-1]
    coupling = sum(
        (rows * (v - g) ** 2).sum() for v, g in zip(state.outputs[:-1], state.predictions[:-1], strict=True)
    )
    losses = engine.risk.loss.rows(state.outputs[-1], engine.risk.target)
    torch.testing.assert_close(pieces.risk, (rows[:, 0] * losses).sum())
    torch.testing.assert_close(pieces.penalty, 0.2 * sum(p["W"].abs().sum() for p in state.params if p))
    torch.testing.assert_close(pieces.coupling, 0.15 * coupling)
    torch.testing.assert_close(pieces.dual, (rows * state.u * r).sum())
    torch.testing.assert_close(pieces.residual_squared, (rows * r * r).sum())
    whole = (
        pieces.risk + pieces.penalty + pieces.coupling + pieces.dual + state.rho / 2 * pieces.residual_squared
    )
    torch.testing.assert_close(pieces.lagrangian, whole)
    torch.testing.assert_close(pieces.objective, pieces.risk + pieces.penalty + pieces.coupling)
    slope = engine.risk.gradient(state.outputs[-1]) + state.u
    torch.testing.assert_close(engine.dual_optimality(state), (rows * slope**2).sum())
    assert engine.samples == float(rows.sum())


def test_the_dual_step_is_rho_times_the_residual():
    engine, state = random_problem(2, depth=2, samples=15, nu=0.3)
    before = state.u.clone()
    engine.sweep(state)
    torch.testing.assert_close(state.u, before + state.rho * (state.outputs[-1] - state.predictions[-1]))
    assert float((state.u - before).abs().max()) > 1e-6


def test_the_last_layer_is_solved_at_its_own_prediction():
    """``grad R(z) + u_k + rho (z - m) = 0`` of the last update: with the dual step that is Lemma 2."""
    engine, state = random_problem(2, depth=2, samples=15, nu=0.3)
    for _ in range(3):
        engine.sweep(state)
    torch.testing.assert_close(engine.risk.gradient(state.outputs[-1]), -state.u, rtol=0, atol=1e-10)
