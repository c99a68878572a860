"""Searches for a curvature: what they accept majorises, what they passed over did not, rounding is forgiven."""

from __future__ import annotations

import pytest
import torch

from dladmm.activations import get_activation
from dladmm.blocks import Anchor, Term, Work
from dladmm.regularizers import L1, L2
from dladmm.solvers.fista import fista
from dladmm.solvers.linear_input import conjugate_gradients
from dladmm.solvers.local_step import (
    MARGIN,
    _first_curvature,
    local_gradients,
    majorised_step,
    proximal_point,
)
from dladmm.solvers.proximal_gram import proximal_on_gram
from dladmm.solvers.step_along import StepAlong
from dladmm.solvers.subproblems import (
    SubproblemOptions,
    Trial,
    backtracked,
    line_search,
    rise_of_square,
    searched,
    searched_blindly,
)

F64 = torch.float64
OPTIONS = SubproblemOptions(growth=2.0, max_backtracks=12)


def randn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def quadratic(q):
    """Trials of ``phi(x) = -x + (q/2) x^2`` from 0, the step ``1/curvature``."""

    def trial(curvature):
        s = 1 / curvature
        return Trial(-s + q / 2 * s * s, -s, s * s)

    return trial


@pytest.mark.parametrize(
    ("q", "found"), [(0.5, 1.0), (1.0, 1.0), (1.01, 2.0), (7.9, 8.0), (8.0, 8.0), (8.1, 16.0)]
)
def test_the_first_power_that_majorises_is_taken(q, found):
    assert searched(quadratic(q), 1.0, lambda: 0.0, OPTIONS) == found
    tried = 2.0 ** torch.arange(12, dtype=F64)
    excess = torch.tensor(
        [(lambda t: t.rise - t.linear - c / 2 * t.squared)(quadratic(q)(c)) for c in tried.tolist()]
    )
    assert float(searched_blindly(excess, tried, torch.zeros((), dtype=F64))) == found


def test_a_search_forgives_its_slack_and_no_more_and_ends():
    shy = quadratic(1.5)  # the excess at 1 is 0.25
    assert searched(shy, 1.0, lambda: 0.26, OPTIONS) == 1.0
    assert searched(shy, 1.0, lambda: 0.24, OPTIONS) == 2.0
    assert searched(lambda curvature: Trial(1.0, 0.0, 0.0), 1.0, lambda: 0.5, OPTIONS) is None


@pytest.mark.parametrize("q", [0.3, 1.0, 5.0, 1000.0])
def test_a_search_that_leaps_finds_the_same_in_two_trials(q):
    """The curvature that a failed trial met says where the majoriser of a quadratic function holds."""
    tried: list[float] = []

    def trial(curvature: float) -> Trial:
        tried.append(curvature)
        found = quadratic(q)(curvature)
        assert found.curvature == pytest.approx(q)
        return found

    assert searched(trial, 1.0, lambda: 0.0, OPTIONS, leaps=True) == searched(
        quadratic(q), 1.0, lambda: 0.0, OPTIONS
    )
    assert len(tried) <= 2


def test_small_numbers():
    change, residual = randn(0, 4, 3), randn(1, 4, 3)
    direct = (residual + change).square().sum() - residual.square().sum()
    torch.testing.assert_close(rise_of_square(change, residual), direct)
    two, three = torch.tensor(2.0, dtype=F64), torch.tensor(3.0, dtype=F64)
    assert float(line_search(two, three)) == pytest.approx(2 / 3)
    assert float(line_search(-two, three)) == 0.0
    assert float(line_search(two, 0 * three)) == 1.0


def along(activation, weight=1.7):
    H, target = randn(0, 6, 3), randn(1, 6, 3)
    f = get_activation(activation)
    term = Term(weight, target, f(H))
    return f, H, term, StepAlong(f, term, H.clone(), None, Work(OPTIONS))


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
def test_a_step_along_a_direction_knows_its_gradient_rise_and_slack(activation):
    f, H, term, step = along(activation)
    leaf = H.clone().requires_grad_()
    value = term.weight / 2 * (term.target - f.module()(leaf)).square().sum()
    (gradient,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(step.gradient().clone(), gradient)
    change = randn(2, 6, 3)
    step.aim(change, change, change)
    after = term.weight / 2 * (term.target - f(H - 0.3 * change)).square().sum()
    if activation != "identity":
        assert step.rise(0.3) == pytest.approx(float(after - value.detach()), rel=1e-9)
    assert float(step.slack()) == pytest.approx(
        torch.finfo(F64).eps * term.weight / 2 * float((term.prediction - term.target).square().sum())
    )


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("strength", [0.0, 0.6])
def test_the_curvature_that_is_accepted_majorises_and_half_of_it_does_not(activation, strength):
    """phi(W) = (c/2)||f(V W^T) - target||^2 along d = g + strength W, the step 1/(sigma + strength)."""
    f, V, W = get_activation(activation), randn(4, 6, 4), randn(5, 3, 4)
    term = Term(40.0, randn(1, 6, 3), f(V @ W.T))
    step = StepAlong(f, term, V @ W.T, None, Work(OPTIONS))
    g = step.gradient().clone().T @ V
    d = g + strength * W
    step.aim(V @ d.T, d, g, strength)

    def excess(sigma):
        s = 1 / (sigma + strength)
        rise = 20.0 * (
            (f(V @ (W - s * d).T) - term.target).square().sum() - (f(V @ W.T) - term.target).square().sum()
        )
        return float(rise + s * (g * d).sum() - sigma / 2 * s * s * d.square().sum())

    found = float(step.curvature(1.0, OPTIONS))
    assert found > 1.0
    assert excess(found) <= 1e-9
    assert excess(found / 2) > 0
    length = float(step.advance(torch.tensor(found, dtype=F64)))
    assert length == pytest.approx(1 / (found + strength))
    torch.testing.assert_close(step.H_all, V @ (W - length * d).T)
    torch.testing.assert_close(term.prediction, f(V @ (W - length * d).T))


COUNTS = torch.tensor([[1.0], [2.0], [1.0], [3.0], [1.0], [2.0]], dtype=F64)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("anchored", [False, True])
def test_a_majorised_step_of_any_function_falls_by_its_rate(counted, anchored):
    """``tanh(v W^T)`` in v (anchored) or in W, without a closed form."""
    v, W, target = randn(4, 6, 4), randn(5, 3, 4), randn(6, 6, 3)
    counts = COUNTS if counted else None
    rows = torch.ones(6, 1, dtype=F64) if counts is None else counts
    anchor = Anchor(0.7, v + randn(7, 6, 4)) if anchored else None
    term = Term(1.3, target, torch.tanh(v @ W.T))

    def evaluate(values):
        return torch.tanh(values[0] @ W.T) if anchored else torch.tanh(v @ values[0].T)

    def value(x):
        own = 0.0 if anchor is None else anchor.weight / 2 * (rows * (x - anchor.value) ** 2).sum()
        return float(own + term.weight / 2 * (rows * (evaluate([x]) - target) ** 2).sum())

    start = v if anchored else W
    work = Work(OPTIONS, counts=counts)
    point = (lambda c, g: [start - g[0] / c]) if anchored else proximal_point({"W": W}, L2(0.0), ("W",))
    found = majorised_step([start], evaluate, point, anchor, term, work, "V" if anchored else "B")
    moved = (rows if anchored else 1.0) * (found.values[0] - start) ** 2
    assert float(found.squared) == pytest.approx(float(moved.sum()), rel=1e-12)
    assert value(start) - value(found.values[0]) >= float(found.rate * found.squared) - 1e-12
    assert float(found.rate) == work.curvatures["V" if anchored else "B"] / 2
    torch.testing.assert_close(found.prediction, evaluate(found.values))


def test_local_gradients_count_rows():
    v, W, target = randn(4, 6, 4), randn(5, 3, 4), randn(6, 6, 3)
    leaf = W.clone().requires_grad_()
    value = 1.3 / 2 * (COUNTS * (torch.tanh(v @ leaf.T) - target) ** 2).sum()
    (expected,) = torch.autograd.grad(value, leaf)
    term = Term(1.3, target, target)
    prediction, (found,) = local_gradients([W], lambda values: torch.tanh(v @ values[0].T), term, COUNTS)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(prediction, torch.tanh(v @ W.T))


@pytest.mark.parametrize("damping", [0.0, 0.8])
def test_weights_with_l1_on_a_gram_matrix_meet_the_optimality_condition(damping):
    A, W, E, c, penalty = randn(0, 12, 4), randn(1, 3, 4), randn(2, 12, 3), 1.3, L1(0.5)
    gram = A.T @ A
    move, delta = proximal_on_gram(W, E.T @ A, gram, c, torch.tensor(damping, dtype=F64), penalty)
    assert float(delta) == pytest.approx(c * max(damping, float(gram.diagonal().mean()) * 1.2e-7), rel=0.01)
    gradient = c * (E + A @ move.T).T @ A + delta * move
    distance = penalty.stationarity(W + move, gradient)
    assert float(distance.max()) < 1e-5


def test_a_local_step_forgives_rounding_alone():
    """phi = x^2/2 from x = 1: a curvature that lacks 1e-12 of what it needs is not enough."""
    x = torch.ones(1, 1, dtype=F64)
    term, start = Term(1.0, torch.zeros_like(x), x.clone()), 1 - 1e-12
    work = Work(SubproblemOptions(alpha0=start))
    point = proximal_point({"W": x}, L2(0.0), ("W",))
    found = majorised_step([x], lambda values: values[0], point, None, term, work, "B")
    assert float(found.rate) == start  # half of twice the start


@pytest.mark.parametrize("power", [1, 3, 17, 40])
@pytest.mark.parametrize("growth", [2.0, 1.5])
def test_backtracking_never_stops_below_what_is_required(power, growth):
    """A requirement one unit above a power: its logarithm is that of the power."""
    reached = torch.tensor(3.0 * growth**power, dtype=F64)
    beyond = torch.nextafter(reached, torch.tensor(torch.inf, dtype=F64))
    assert float(backtracked(beyond, 3.0, growth)) == pytest.approx(3.0 * growth ** (power + 1), rel=1e-12)
    assert float(backtracked(reached, 3.0, growth)) == pytest.approx(3.0 * growth**power, rel=1e-12)


def test_conjugate_gradients_need_as_many_steps_as_there_are_eigenvalues():
    """``nu (v - value) + c K (K v - target) = 0`` with K = diag(1, 3, 9): three steps."""
    K = torch.tensor([1.0, 3.0, 9.0], dtype=F64)
    v, target = randn(0, 5, 3), randn(1, 5, 3)
    anchor, term = Anchor(0.7, randn(2, 5, 3)), Term(1.3, target, K * v)
    best = (0.7 * anchor.value + 1.3 * K * target) / (0.7 + 1.3 * K * K)
    gradient = v - anchor.value + 1.3 / 0.7 * K * (K * v - target)
    product = lambda d: K * d  # noqa: E731
    conjugate_gradients(v, gradient, product, product, anchor, term, Work(OPTIONS), 0.0, 3)
    torch.testing.assert_close(v, best, rtol=0, atol=1e-10)
    torch.testing.assert_close(term.prediction, K * best, rtol=0, atol=1e-9)


def test_a_proximal_point_moves_all_and_shrinks_what_is_penalised():
    params, gradients = {"W": randn(0, 3, 2), "b": randn(1, 3)}, [randn(2, 3, 2), randn(3, 3)]
    W, b = proximal_point(params, L1(0.8), ["W"])(4.0, gradients)
    moved = params["W"] - gradients[0] / 4
    torch.testing.assert_close(W, moved.sign() * (moved.abs() - 0.2).clamp_min(0))
    torch.testing.assert_close(b, params["b"] - gradients[1] / 4)


def test_the_next_search_begins_at_a_quarter_of_this_one_at_least():
    """A step along which the energy hardly bends says little of the next."""
    work = Work(SubproblemOptions())
    term = Term(1.0, torch.ones(3, dtype=F64), torch.zeros(3, dtype=F64))
    majorised_step([randn(0, 3)], lambda values: 1e-3 * values[0], None, None, term, work, "B")
    assert work.curvatures["B"] == 0.25


def test_dampings_and_lengths():
    options = SubproblemOptions(damping=0.1, last_damping=0.3)
    assert [options.damping_of(7, last=last) for last in (False, True)] == pytest.approx([0.1, 2.1])
    assert options.damped(4.0).last_damping == pytest.approx(1.2)
    assert float(line_search(torch.tensor(-1.0), torch.tensor(2.0))) == 0.0, "never uphill"


def test_conjugate_gradients_end_by_samples_as_often_as_they_count():
    """A row that counts nine times ends the loop where nine rows do."""
    ended = set()
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        K = torch.randn(6, 5, generator=generator, dtype=F64) * torch.logspace(0, 1.5, 5, dtype=F64)
        v, value = (torch.randn(4, 5, generator=generator, dtype=F64) for _ in range(2))
        target = torch.randn(4, 6, generator=generator, dtype=F64)
        often = torch.tensor([[9.0], [1.0], [1.0], [2.0]], dtype=F64)
        found = []
        for rows in (torch.arange(4), torch.arange(4).repeat_interleave(often[:, 0].long())):
            own, prediction = v[rows].clone(), v[rows] @ K.T
            counts = often if len(rows) == 4 else None
            gradient = (own - value[rows]) + 2.0 * (prediction - target[rows]) @ K
            asked = []
            conjugate_gradients(
                own, gradient, lambda p, K=K, asked=asked: asked.append(0) or p @ K.T, lambda r, K=K: r @ K,
                Anchor(1.0, value[rows]), Term(2.0, target[rows], prediction), Work(OPTIONS, counts=counts), 0.1, 20,
            )  # fmt: skip
            found.append((own, len(asked)))
        (counted, steps), (repeated, again) = found
        assert steps == again
        ended.add(steps)
        torch.testing.assert_close(counted[-1], repeated[-1])
        torch.testing.assert_close(counted[0], repeated[0])
    assert len(ended) > 1


def test_a_blind_search_takes_what_the_search_takes_where_nothing_is_forgiven():
    excess, curvatures = torch.tensor([1.0, 0.0, -1.0], dtype=F64), torch.tensor([1.0, 2.0, 4.0], dtype=F64)
    assert float(searched_blindly(excess, curvatures, torch.tensor(-0.5, dtype=F64))) == 2.0
    assert float(searched_blindly(excess, curvatures, torch.tensor(0.0, dtype=F64))) == 2.0
    assert float(searched_blindly(excess, curvatures, torch.tensor(1.0, dtype=F64))) == 1.0
    assert float(searched_blindly(excess[:1], curvatures[:1], torch.tensor(0.0, dtype=F64))) == float("inf")


def test_where_a_search_begins():
    work = Work(SubproblemOptions(alpha0=3.0))
    work.curvatures["V"], work.curvatures["B"] = 8.0, 8.0
    assert _first_curvature(work, "B", 1.0, 0.0, leaps=True) == 3.0
    assert _first_curvature(work, "V", 1.0, 0.5, leaps=False) == 2.0
    assert _first_curvature(work, "V", 1.0, 5.0, leaps=False) == 5.0
    assert _first_curvature(work, "V", 1.0, 0.5, leaps=True) == MARGIN * 8.0
    assert _first_curvature(work, "S", 1.0, 0.5, leaps=False) == 1.0
    assert _first_curvature(work, "S", 1.0, 2.5, leaps=True) == 2.5


def test_layers_behind_images_are_damped_by_the_root_of_their_inputs():
    assert SubproblemOptions(damping=0.5, map_damping=3.0).behind_maps(16).damping == 0.5 * 3.0 * 4.0
    assert SubproblemOptions(damping=0.5).behind_maps(16).damping == 0.5


def test_fista_makes_the_steps_of_its_definition():
    """Rows by themselves: momentum at most that of the condition number, anew where a row has run uphill."""
    scales = torch.tensor([[1.0, 10.0], [2.0, 40.0], [40.0, 39.0]], dtype=F64)
    asked = []

    def value_grad(x):
        asked.append(x)
        return (scales * x.square()).sum() / 2, scales * x

    start = torch.tensor([[1.0, -1.0], [3.0, 2.0], [1.0, 1.0]], dtype=F64)
    fista(value_grad, start, 40.0, 1.0, tol=0.0, max_iter=40)
    limit = (40**0.5 - 1) / (40**0.5 + 1)
    limited = restarted = 0
    for row, own in zip(start, scales, strict=True):
        i = [bool(torch.equal(row, each)) for each in start].index(True)
        x = y = row
        t = 1.0
        for k in range(40):
            torch.testing.assert_close(asked[k][i], y, rtol=1e-12, atol=1e-14)
            gradient = own * y
            new = y - gradient / 40
            if float(gradient @ (new - x)) > 0:
                t, restarted = 1.0, restarted + 1
            following = (1 + (1 + 4 * t * t) ** 0.5) / 2
            limited += (t - 1) / following > limit
            y = new + min((t - 1) / following, limit) * (new - x)
            x, t = new, following
    assert limited
    assert restarted
