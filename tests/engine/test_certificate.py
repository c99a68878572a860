"""The certificate says no where it must: one recorded number of an honest run is changed, and the claim is gone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from dladmm.activations import get_activation
from dladmm.base.history import History, Status, rose, settled, unbounded
from dladmm.blocks import GraphConv
from dladmm.compute.sparse import SparseMatrix
from dladmm.engine.certificate import Recomputed, certify, rounding_slack
from dladmm.engine.double import _doubled, in_double, resolvable
from dladmm.engine.options import make_options
from dladmm.engine.rho_rules import TENFOLD_EVERY, raises_rho
from dladmm.regularizers import NonNegative
from dladmm.training.diagnostics import converged, diagnostics_interval, measure, score, vital_signs
from problems import random_problem


@pytest.fixture(scope="module")
def honest():
    """Engine, state, history and first Lagrangian of five iterations with nu = 0.3 and rho = 3H."""
    engine, state = random_problem(
        1, depth=2, samples=12, nu=0.3, regularizer={"name": "l2", "strength": 0.1}
    )
    start, history = float(engine.energy(state).lagrangian), History()
    for k in range(1, 6):
        before = state.outputs[0].clone()  # the one z that an activation follows
        row, finite = measure(state, vital_signs(engine, state, engine.sweep(state)))
        assert finite
        row["z_steps"] = float((state.outputs[0] - before).square().sum())
        row["stationarity"] = math.sqrt(float(engine.stationarity(state)))
        history.append(iteration=k, **row)
    return engine, state, history, start


def certificate(honest, exempt=(), changes=None, **how):
    """The certificate of the run, some of its recorded numbers changed: ``{column: {iteration: value}}``."""
    engine, state, history, start = honest
    changed = copy.deepcopy(history)
    for column, values in (changes or {}).items():
        for k, value in values.items():
            changed[column][k - 1] = value
    return certify(engine, state, changed, start, exempt, **how)


def test_an_honest_run_is_certified_with_the_numbers_of_its_history(honest):
    found, history = certificate(honest), honest[2]
    assert found.certified
    assert found.covered
    assert (found.nu, found.H, found.rho) == (0.3, 0.5, 1.5)
    assert found.smallest_safe_rho == 1.0
    assert found.iterations == 5
    assert found.smallest_c2 == min(history["c2"])
    assert found.c_k == min(history["squared_steps"])
    assert found.k_c_k == 5 * found.c_k
    steps = zip(history["stationarity"], history["squared_steps"], history["z_steps"], strict=True)
    ratios = [g / math.sqrt(s + z) for g, s, z in steps]
    assert found.subgradient_constant == pytest.approx(max(ratios), rel=1e-12)
    state = honest[1]
    variables = [*state.outputs, state.u, *(p for block in state.params for p in block.values())]
    assert found.largest_norm == max(float(v.abs().max()) for v in variables)
    for name in ("lagrangian", "primal_residual", "dual_optimality", "stationarity"):
        assert getattr(found, name).reported == history[name][-1]
        assert getattr(found, name).recomputed == pytest.approx(history[name][-1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_rho_of_every_iteration_must_be_above_2H(honest, k):
    assert not certificate(honest, changes={"rho": {k: 1.0}}).covered  # 2H itself is not above it
    assert certificate(honest, changes={"rho": {k: 1.0001}}).covered


def test_rho_at_the_end_must_be_above_2H(honest):
    engine, state, history, start = honest
    assert not certify(engine, replace(state, rho=1.0), history, start, ()).covered


@pytest.mark.parametrize("k", [2, 4])
def test_a_rise_is_one_that_rounding_does_not_make(honest, k):
    before = honest[2]["lagrangian"][k - 2]
    risen = certificate(honest, changes={"lagrangian": {k: before * (1 + 1e-12)}})
    assert risen.descent_violations == (k,)
    assert not risen.monotone
    assert not risen.certified
    rounded = certificate(honest, changes={"lagrangian": {k: before * (1 + 1e-14)}})
    unknown = certificate(honest, changes={"lagrangian": {k: math.nan}})
    assert unknown.descent_violations == unknown.sufficient_descent_violations == (k, k + 1)
    assert rounded.descent_violations == ()
    assert k in rounded.sufficient_descent_violations
    assert not rounded.sufficient_descent
    assert not rounded.certified


def test_slack_is_rounding_alone():
    assert rounding_slack(torch.float64) == pytest.approx(4.4e-14, rel=0.1)
    assert rounding_slack(torch.float32) == pytest.approx(2.4e-5, rel=0.1)


def test_sufficient_descent_is_c2_times_the_squared_steps(honest):
    history = honest[2]
    fall = history["lagrangian"][1] - history["lagrangian"][2]
    enough = fall / history["squared_steps"][2]
    short = certificate(honest, changes={"c2": {3: enough * (1 + 1e-6)}})
    assert short.sufficient_descent_violations == (3,)
    assert short.descent_violations == ()
    assert not short.certified
    assert certificate(honest, changes={"c2": {3: enough * (1 - 1e-6)}}).sufficient_descent
    assert certificate(honest, changes={"squared_steps": {3: 1e9}}).sufficient_descent_violations == (3,)


def test_only_exempt_iterations_are_passed_over(honest):
    before = honest[2]["lagrangian"][1]
    changes = {"lagrangian": {3: 2 * before}}
    assert certificate(honest, changes=changes).descent_violations == (3,)
    assert certificate(honest, (3,), changes).descent_violations == ()
    assert certificate(honest, (2, 4), changes).descent_violations == (3,)


def test_iterations_outside_the_theory_are_not_among_those_that_fell(honest):
    changes = {"lagrangian": {3: 2 * honest[2]["lagrangian"][1]}}
    said = str(certificate(honest, changes=changes))
    assert "the Lagrangian fell in 4 of 5 iterations, by at least C2 times the squared steps in 4 " in said
    said = str(certificate(honest, (3,), changes))
    assert "the Lagrangian fell in 4 of 4 iterations, by at least C2 times the squared steps in 4 " in said
    assert "Outside the theory: iteration 3 " in said


@pytest.mark.parametrize("how", [(), (True,), (False, "adam"), (False, None, True)])
def test_nothing_is_said_of_the_iterations_of_a_run_that_made_none(honest, how):
    engine, state, _, start = honest
    said = str(certify(engine, state, History(), start, (), *how))
    assert "No iteration was made" in said
    assert " of 0 " not in said
    assert "rise" not in said.partition("\n")[0]
    assert "never rises" not in said


@pytest.mark.parametrize("name", ["lagrangian", "primal_residual", "dual_optimality", "stationarity"])
def test_what_was_reported_must_be_what_is_recomputed(honest, name):
    good = certificate(honest)
    assert good.agrees
    scale = 1 + abs(good.lagrangian.recomputed) + good.largest_norm
    found = getattr(good, name)
    wrong = replace(good, **{name: Recomputed(found.recomputed + 1e-4 * scale, found.recomputed)})
    assert not wrong.agrees
    assert not wrong.certified
    near = replace(good, **{name: Recomputed(found.recomputed + 1e-7 * scale, found.recomputed)})
    assert near.agrees
    missing = replace(good, **{name: Recomputed(math.nan, found.recomputed)})
    assert not missing.agrees
    in_history = certificate(honest, changes={name: {5: found.reported + 1e-3 * scale}})
    assert not in_history.agrees


def test_a_cache_that_went_wrong_is_noticed(honest):
    """Predictions are recomputed from data and parameters, not taken from the caches that the run reported with."""
    engine, state, history, start = honest
    wrong = copy.deepcopy(state)
    wrong.predictions = [v + 0.01 for v in state.predictions]
    exact = certificate(honest)
    found = certify(engine, wrong, history, start, ())
    assert found.lagrangian.recomputed == pytest.approx(exact.lagrangian.recomputed, rel=1e-12)
    assert found.stationarity.recomputed == pytest.approx(exact.stationarity.recomputed, rel=1e-9)


@pytest.mark.parametrize("in_chunks", [False, True])
def test_in_double_it_is_the_same_problem(in_chunks):
    single, at = random_problem(1, depth=2, samples=40, nu=0.3, dtype=torch.float32)
    single.counts = torch.linspace(0.5, 3.0, 40)[:, None]
    for _ in range(2):
        single.sweep(at)
    made = in_double(single, at, in_chunks=in_chunks)
    assert made is not None
    engine, state = made
    exact, wanted = single.energy(at, single.raw_predictions(at)), engine.energy(state)
    for name in ("risk", "penalty", "coupling", "dual", "residual_squared"):
        assert float(getattr(wanted, name)) == pytest.approx(
            float(getattr(exact, name)), rel=1e-3, abs=1e-6
        ), name
    assert state.u.dtype == torch.float64
    assert torch.equal(state.u.float(), at.u)
    assert float(engine.stationarity(state)) == pytest.approx(
        float(single.stationarity(at)), rel=1e-2, abs=1e-5
    )


def test_the_relative_difference_is_relative_to_the_larger():
    assert Recomputed(1.0, 2.0).relative_difference == 0.5
    assert Recomputed(-1.0, 1.0).relative_difference == 2.0
    assert Recomputed(0.0, 0.0).relative_difference == 0.0


def test_c_k_is_the_smallest_of_all_iterations(honest):
    found = certificate(honest, changes={"squared_steps": {2: 1e-9}})
    assert (found.c_k, found.k_c_k) == (1e-9, 5e-9)


def test_rows_that_follow_the_forward_pass_are_not_covered(honest, monkeypatch):
    monkeypatch.setattr(type(honest[0].chain), "follows_forward", True)
    assert not certificate(honest).covered


def test_what_the_theory_does_not_speak_of_is_not_covered(honest):
    assert not certificate(honest, accelerated=True).covered
    assert not certificate(honest, streaming=True).covered
    assert not certificate(honest, baseline="adam").covered
    engine, state, history, start = honest
    constrained = copy.copy(engine)
    constrained.penalty = NonNegative()
    found = certify(constrained, state, history, start, ())
    assert not found.covered
    assert found.constrained


def test_a_certificate_needs_an_iteration_a_finite_end_and_digits(honest):
    good = certificate(honest)
    for change in ({"iterations": 0}, {"restored": 3}, {"failed": True}, {"resolved": False}, {"covered": False},
                   {"compared": False}, {"largest_norm": math.inf}, {"descent_violations": (1,)},
                   {"sufficient_descent_violations": (2,)}):  # fmt: skip
        assert not replace(good, **change).certified, change


def test_a_rise_of_a_streaming_run_is_the_largest_relative_one(honest):
    values = dict(enumerate([10.0, 12.0, 6.0, 9.0, 8.0], 1))
    found = certificate(honest, changes={"lagrangian": values}, streaming=True)
    assert found.largest_rise == pytest.approx(0.5)
    falling = dict(enumerate([5.0, 4.0, 3.0, 2.0, 1.0], 1))
    engine, state, history, _ = honest
    for k, value in falling.items():
        history = copy.deepcopy(history)
        history["lagrangian"][k - 1] = value
    assert certify(engine, state, history, 6.0, (), streaming=True).largest_rise == 0.0


def test_u_beside_a_large_output_is_not_resolved():
    _, state = random_problem(1, depth=2, samples=12, dtype=torch.float32)
    assert resolvable(state)
    state.outputs[-1].fill_(1e9)
    state.u.fill_(1.0)
    assert not resolvable(state)


# What a run is judged by while it goes ----------------------------------------------------------------------------


def history_of(**columns):
    return History({name: list(values) for name, values in columns.items()})


def test_c2_is_the_smallest_rate_of_what_moved(honest):
    engine, state = honest[0], copy.deepcopy(honest[1])
    steps = [s for s in engine.sweep(state) if s.rate is not None]
    row, _ = measure(state, vital_signs(engine, state, steps))
    assert row["c2"] == min(float(s.rate) for s in steps if float(s.squared) > 0)
    assert row["squared_steps"] == pytest.approx(sum(float(s.squared) for s in steps), rel=1e-12)
    still = [
        steps[0]._replace(squared=torch.zeros_like(steps[0].squared), rate=steps[0].rate * 0),
        *steps[1:],
    ]
    row, _ = measure(state, vital_signs(engine, state, still))
    assert row["c2"] == min(float(s.rate) for s in still[1:] if float(s.squared) > 0)


def test_divergence_is_a_rise_above_start_and_first():
    assert rose(history_of(lagrangian=[3.0, 1.0, 4.0]), 2.0)
    assert not rose(history_of(lagrangian=[3.0, 1.0, 2.5]), 2.0)
    assert not rose(history_of(lagrangian=[1.0, 1.0, 2.5]), 3.0)
    assert unbounded(history_of(lagrangian=[2.1e6]), -1.0)
    assert not unbounded(history_of(lagrangian=[1.9e6]), -1.0)
    assert not Status.DIVERGED.ok
    assert not Status.NON_FINITE.ok
    assert Status.MAX_ITER.ok


def test_settled_means_ten_iterations_together():
    falling = [100.0 - k for k in range(11)]
    assert not settled(history_of(lagrangian=falling), 0.1)
    assert settled(history_of(lagrangian=falling), 0.12)
    assert not settled(history_of(lagrangian=falling[:10]), 1.0)


def test_the_authors_rules_raise_rho_and_nu(honest):
    engine, state = copy.copy(honest[0]), copy.deepcopy(honest[1])
    authors, tenfold = (make_options("paper", rho_rule=rule) for rule in ("authors", "tenfold"))
    state.rho, state.nu = 1e-3, 2e-3
    engine.options = replace(engine.options, alpha0=1.0, t0=None)
    assert not raises_rho(authors, history_of(loss=[1.0, 2.0, 3.0]), state, engine)
    assert not raises_rho(authors, history_of(loss=[1.0, 2.0, 2.0, 3.0]), state, engine)
    assert not raises_rho(authors, history_of(loss=[2.0, 1.0, 2.0, 3.0]), state, engine)
    assert raises_rho(authors, history_of(loss=[1.0, 2.0, 3.0, 4.0]), state, engine)
    assert (state.rho, state.nu) == pytest.approx((1e-2, 2e-2))
    assert (engine.options.alpha0, engine.options.t0) == (10.0, None)
    state.rho = 0.1
    assert not raises_rho(authors, history_of(loss=[1.0, 2.0, 3.0, 4.0]), state, engine)
    assert not raises_rho(tenfold, history_of(iteration=[*range(1, TENFOLD_EVERY)]), state, engine)
    assert raises_rho(tenfold, history_of(iteration=[*range(1, TENFOLD_EVERY + 1)]), state, engine)
    assert state.rho == pytest.approx(1.0)
    assert not raises_rho(tenfold, history_of(iteration=[*range(1, TENFOLD_EVERY + 1)]), state, engine)


def test_convergence_needs_both_residuals_below_their_tolerances(honest):
    engine, state = honest[:2]
    options = type("Options", (), {"eps_abs": 1e-3, "eps_rel": 0.0})()
    variables = sum(v.numel() for v in state.outputs) + sum(
        p.numel() for b in state.params for p in b.values()
    )
    primal, stationary = 1e-3 * math.sqrt(state.u.numel()), 1e-3 * math.sqrt(variables)
    assert converged(engine, state, options, 0.999 * primal, 0.999 * stationary)
    assert not converged(engine, state, options, 1.001 * primal, 0.999 * stationary)
    assert not converged(engine, state, options, 0.999 * primal, 1.001 * stationary)
    options.eps_abs, options.eps_rel = 0.0, 1e-3
    z, m = (float(v.norm()) for v in (state.outputs[-1], state.predictions[-1]))
    assert converged(engine, state, options, 0.999e-3 * max(z, m), 0.999e-3 * float(state.u.norm()))
    assert not converged(engine, state, options, 1.001e-3 * max(z, m), 0.0)
    assert not converged(engine, state, options, 0.0, 1.001e-3 * float(state.u.norm()))


def test_scores_count_rows_and_weights(honest):
    risk = honest[0].risk
    z = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hits, losses = z.argmax(1) == risk.target.argmax(1), risk.loss.rows(z, risk.target)
    assert score(risk, z) == pytest.approx((float(losses.mean()), float(hits.double().mean())))
    counts = torch.arange(12, dtype=torch.float64)[:, None]
    weight = (torch.arange(12) % 3).double()[:, None]
    both = (counts * weight)[:, 0]
    expected = float(losses @ both / both.sum()), float(hits.double() @ both / both.sum())
    assert score(replace(risk, weight=weight), z, counts) == pytest.approx(expected)


def test_a_directed_graph_in_double_has_its_own_transpose():
    entries = np.array([[0.5, 0.25, 0.0], [0.0, 1.0, 0.75], [0.0, 0.0, 2.0]])
    matrix = SparseMatrix.of(sparse.csr_array(entries), torch.float32, torch.device("cpu"))
    made = _doubled(GraphConv(2, 2, get_activation("relu"), matrix)).graph.adjacency
    v = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    torch.testing.assert_close(made @ v, torch.from_numpy(entries) @ v)
    torch.testing.assert_close(made.T @ v, torch.from_numpy(entries).T @ v)


@pytest.mark.parametrize(("rows", "every"), [(999_999, 1), (1_000_000, 20)])
def test_what_costs_products_is_measured_every_time_below_two_billion_operations(rows, every):
    params = [{"W": torch.zeros(10, 100), "b": torch.zeros(10)}]
    assert diagnostics_interval(SimpleNamespace(params=params, outputs=[torch.zeros(1, 10)]), rows) == every
