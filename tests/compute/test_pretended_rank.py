"""One process that plays two ranks with the same rows: every sum over samples must then be that of all rows twice.

It costs no processes, so it asks for every quantity; tests/compute/test_distributed.py has real ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dladmm.compute.communicator import Communicator, Shards, share
from dladmm.engine.sweep import Engine
from dladmm.losses.units import mean, standard
from dladmm.network.scaling import Scaling
from dladmm.training.agreement import Agreement, fingerprint
from dladmm.training.diagnostics import converged, measure, score, vital_signs
from dladmm.training.standing import r_squared
from problems import random_problem

F64 = torch.float64


class Twice(Communicator):
    """Rank 0 of two that have the same rows."""

    size = 2

    def total(self, *tensors, halves=()):
        return [2 * tensor for tensor in tensors]

    def texts(self, own):
        return [own, own]


def both(**settings):
    """(engine, state) as one of two ranks, and alone with every row twice."""
    engine, state = random_problem(1, depth=2, samples=14, nu=0.3, **settings)
    ranks = Engine(
        engine.chain,
        engine.x,
        replace(engine.risk, comm=Twice()),
        engine.penalty,
        engine.options,
        comm=Twice(),
    )
    whole = Engine(
        engine.chain,
        torch.cat([engine.x, engine.x]),
        replace(engine.risk, target=torch.cat([engine.risk.target, engine.risk.target])),
        engine.penalty,
        engine.options,
    )
    params = state.clone_parameters()
    return (ranks, ranks.feasible_state(state.params, state.rho, 0.3)), (
        whole, whole.feasible_state(params, state.rho, 0.3),
    )  # fmt: skip


@pytest.mark.parametrize("solver", ["exact", "quadratic"])
@pytest.mark.parametrize("spec", [None, {"name": "l2", "strength": 0.2}])
def test_iterations_and_their_measures_are_those_of_all_rows(solver, spec):
    (ranks, mine), (whole, state) = both(regularizer=spec, w_solver=solver, a_solver=solver)
    assert ranks.samples == whole.samples == 28
    assert ranks.n_rows == 28
    for _ in range(3):
        signs, expected = (vital_signs(e, s, e.sweep(s)) for e, s in ((ranks, mine), (whole, state)))
        torch.testing.assert_close(signs, expected, rtol=1e-9, atol=1e-10)
        assert measure(mine, signs)[0]["c2"] == pytest.approx(measure(state, expected)[0]["c2"], rel=1e-9)
    for p, q in zip(mine.params, state.params, strict=True):
        for name in p:
            torch.testing.assert_close(p[name], q[name], rtol=1e-9, atol=1e-11)
    for name in ("stationarity", "dual_optimality", "objective"):
        found, wanted = getattr(ranks, name)(mine), getattr(whole, name)(state)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_the_tolerances_are_those_of_all_rows():
    """eps_abs and eps_rel above 0 on ranks: a rank that asked of its own rows alone would stop at another iteration."""
    (ranks, mine), (whole, state) = both()
    for engine, at in ((ranks, mine), (whole, state)):
        engine.sweep(at)
    z, m = (float(v.norm()) for v in (state.outputs[-1], state.predictions[-1]))
    n = sum(v.numel() for v in state.outputs) + sum(p.numel() for b in state.params for p in b.values())
    for eps_abs, eps_rel in ((1e-2, 0.0), (0.0, 1e-2), (1e-3, 1e-3)):
        options = type("Options", (), {"eps_abs": eps_abs, "eps_rel": eps_rel})()
        primal = eps_abs * math.sqrt(state.u.numel()) + eps_rel * max(z, m)
        stationary = eps_abs * math.sqrt(n) + eps_rel * float(state.u.norm())
        for engine, at in ((ranks, mine), (whole, state)):
            assert converged(engine, at, options, 0.999 * primal, 0.999 * stationary)
            assert not converged(engine, at, options, 1.001 * primal, 0.0)
            assert not converged(engine, at, options, 0.0, 1.001 * stationary)


def test_scores_units_and_scales_are_those_of_all_rows():
    (ranks, _), (whole, _) = both()
    z = torch.randn(14, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert score(ranks.risk, z, comm=Twice()) == pytest.approx(score(whole.risk, torch.cat([z, z])))
    weight = torch.linspace(0.1, 2.0, 14, dtype=F64)[:, None]
    twice = torch.cat([z, z]), torch.cat([weight, weight])
    torch.testing.assert_close(mean(z, weight, Twice()), mean(*twice))
    torch.testing.assert_close(standard(z, weight, Twice()).scale, standard(*twice).scale)
    engine, _ = random_problem(1, loss="squared", depth=2, samples=14)
    again = replace(engine.risk, target=torch.cat([engine.risk.target] * 2))
    assert r_squared(engine.risk, z, comm=Twice()) == pytest.approx(r_squared(again, torch.cat([z, z])))
    first = engine.chain.blocks[0]
    one = Scaling.fit(first, engine.x, weight, comm=Twice())
    other = Scaling.fit(first, torch.cat([engine.x] * 2), torch.cat([weight] * 2))
    torch.testing.assert_close(one.scale, other.scale)
    torch.testing.assert_close(one.shift, other.shift)


def test_shares_are_even_and_places_their_own():
    parts = [share(11, rank, 4) for rank in range(4)]
    assert [list(range(11))[part] for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    shards = Shards.of(Twice(), 5, torch.full((5, 1), 3.0))
    assert (shards.n_rows, shards.samples, shards.begin) == (10, 30.0, 0)
    assert replace(shards, begin=4).places(3).tolist() == [4, 5, 6]
    assert shards.repeated(3).samples == 90.0
    assert replace(shards, nodes=torch.tensor([7, 2])).places(2).tolist() == [7, 2]


def test_different_bits_have_different_marks():
    params = [{"W": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}]
    nudged = [{"W": torch.nextafter(params[0]["W"], torch.tensor(9.0)), "b": params[0]["b"]}]
    moved = [{"W": params[0]["W"], "b": params[0]["b"] + 1}]
    assert len({fingerprint(each) for each in (params, nudged, moved)}) == 3
    assert fingerprint(params) == fingerprint([{name: p.clone() for name, p in params[0].items()}])
    assert Agreement(Twice()).seconds(1.5, params) == pytest.approx(1.5)
