"""The subproblems of a recurrent layer: states, sample by sample, and parameters, one step for all of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dladmm.blocks.recurrent_cells import (
    Slopes,
    Unrolled,
    forward_through_time,
    pulled,
    squared_slopes,
    through_time,
)
from dladmm.blocks.recurrent_parts import joined_parameters, parted_parameters
from dladmm.compute.passes import ratio, row_squared_norms
from dladmm.compute.work import Work, like_rows
from dladmm.solvers.factor import damped_cholesky, full_precision_gram
from dladmm.solvers.local_step import MARGIN, Known, majorised_step
from dladmm.solvers.subproblems import Anchor, Params, Step, Term, rise_of_square

if TYPE_CHECKING:
    from dladmm.blocks.recurrent import RecurrentStates

SHARE = "share of the pull"
"""What of a sweep's pull on the states its parameters get to see."""

CONJUGATE_STEPS = 3
"""Of conjugate gradients towards the states that a sample asks for. A single one is a step against the gradient, which
sees little but the direction in which states explode (docs/network_notes.md)."""

LENGTH = 0.5
"""Of that move, how much is tried first: whole moves fitted no sooner, and knew less of other rows."""

TINY = 1e-30
"""The smallest curvature that a length is made of."""

METRIC_DAMPING = 0.5
"""Of the Gram matrices in whose coordinates parameters move, relative to their traces. Relative to the mean of their
diagonals many states go far along what hardly varies, and a few inputs hardly move."""

SLOPE_FLOOR = 0.1
"""Of the mean squared slope: units that hardly answer are not moved further than that."""

SLOPE_SAMPLES = 256
"""Samples that the mean squared slopes are taken over, where all count alike."""


def solved_states(
    block: RecurrentStates, term: Term, work: Work, at: Unrolled
) -> tuple[Step, Unrolled, Tensor]:
    """``argmin_s sum_t (c/2)||s_t - cell(x_t, s_{t-1})||^2 + (c/2)||y - s||^2``, every sample by itself.

    In ``e_t = s_t - cell(x_t, s_{t-1})`` the first sum is ``||e||^2``. The move comes close to Gauss and Newton's,
    ``(I + J^T J) m = -gradient`` with J = ds/de; a sample goes along it as far as the paper's test holds for it,
    whatever the others do. Returns the pull ``J^T c (s - y)``, too.
    """
    c, s, e = term.weight, at.states, at.states - at.predicted
    residual, U = s - term.target, at.params["weight_hh_l0"]
    pull = through_time(at.slopes, residual, U)
    gradient = pull + e
    move = _towards(at.slopes, gradient, U)
    slope = -_row_inner(gradient, move)
    slack = torch.finfo(e.dtype).eps / 2 * (row_squared_norms(residual) + row_squared_norms(e))
    lengths, left = torch.full_like(slope, LENGTH), torch.arange(len(s), device=s.device)
    ended: list[Tensor] = []
    for _ in range(work.options.max_backtracks):
        rows = left if ended else slice(None)
        length, falls = lengths[rows], lengths[rows] * slope[rows]
        step = move[rows] * like_rows(length.to(move.dtype), move)
        there = e[rows] + step
        states, held = block.rolled_out(at.params, at.inputs[rows], there)
        change = states - s[rows]
        rise = (_row_inner(change, change + 2 * residual[rows]) + _row_inner(step, step + 2 * e[rows])) / 2
        holds = rise <= slack[rows] - falls / 2
        found = [states, there, *(torch.stack(each, 1) for each in zip(*held, strict=True))]
        if ended:
            _write(ended, left[holds], [x[holds] for x in found])
        else:
            ended = found
        failed = ~holds
        left = left[failed]
        if len(left) == 0:
            break
        # The curvature along the move, beside the model's: what a quadratic function has would fail below it
        met = (2 * ratio(rise + falls, length * falls)[failed]).nan_to_num(0.0, 0.0, 0.0)
        bound = 1 / (MARGIN * met).clamp_min(TINY)
        lengths[left] = torch.minimum(length[failed] / work.options.growth, bound)
    else:  # nothing moves there
        lengths[left] = 0.0
        _write(ended, left, [x[left] for x in (s, e, *at.held)])
    fallen, squared = (
        work.counted(x[:, None]).sum() for x in (c / 2 * lengths * slope, row_squared_norms(ended[1] - e))
    )
    states, e, *parts = ended
    new = Unrolled(block.cell_kind, at.params, states, states - e, parts, inputs=at.inputs)
    return Step("s", squared, ratio(fallen, squared)), new, pull.mul_(c)


def majorised_states(
    block: RecurrentStates, term: Term, work: Work, at: Unrolled
) -> tuple[Step, Unrolled, Tensor]:
    """The same by one step against the gradient, as long for all samples."""
    s, e = at.states, at.states - at.predicted
    held: list[tuple[Tensor, ...]] = []

    def evaluate(values: list[Tensor]) -> Tensor:
        nonlocal held
        found, held = block.rolled_out(at.params, at.inputs, values[0])
        return found

    residual = s - term.target
    pull = through_time(at.slopes, term.weight * residual, at.params["weight_hh_l0"])
    known, anchor = Known(s, residual, [pull], centre=e), Anchor(term.weight, e.new_zeros(()))
    found = majorised_step([e], evaluate, None, anchor, term, work, "S", known)
    step = Step("s", found.squared, found.rate)
    if found.prediction is None:
        return step, at, pull
    parts = [torch.stack(each, 1) for each in zip(*held, strict=True)]
    predicted = found.prediction - found.values[0]
    ended = Unrolled(block.cell_kind, at.params, found.prediction, predicted, parts, inputs=at.inputs)
    return step, ended, pull


def _towards(slopes: Slopes, gradient: Tensor, U: Tensor) -> Tensor:
    """``(I + J^T J)^-1 (-gradient)`` of every sample, as far as a few steps of conjugate gradients come."""
    left = -gradient
    towards, move = left, torch.zeros_like(left)
    squared = row_squared_norms(left)
    for step in range(CONJUGATE_STEPS):
        of_states = forward_through_time(slopes, towards, U)
        curved = row_squared_norms(of_states) + row_squared_norms(towards)
        length = like_rows(ratio(squared, curved).to(move.dtype), move)
        move = torch.addcmul(move, length, towards)
        if step + 1 < CONJUGATE_STEPS:
            left = left - length * through_time(slopes, of_states, U).add_(towards)
            before, squared = squared, row_squared_norms(left)
            towards = torch.addcmul(left, like_rows(ratio(squared, before).to(move.dtype), move), towards)
    return move


def _row_inner(x: Tensor, y: Tensor) -> Tensor:
    """``<x_i, y_i>`` of every sample, float64: in the given precision within one step of time."""
    return (x * y).sum(-1).flatten(1).sum(1, dtype=torch.float64)


def _write(into: list[Tensor], rows: Tensor, values: list[Tensor]) -> None:
    for mine, new in zip(into, values, strict=True):
        mine[rows] = new


def whitened_step(
    block: RecurrentStates, v: Tensor, weight: float, quadratic: float, work: Work, at: Unrolled
) -> tuple[Step, Unrolled]:
    """``argmin_B sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2 + (lambda/2)||B||^2``: a majorised step in ``B L``.

    ``L L^T`` is the damped Gram matrix of the inputs (x, 1) and of (s, 1); the penalty is smooth, and part of phi.
    Returns the layer where the step ends, too.
    """
    params, s = at.params, at.states
    matrices = joined_parameters(params, block.bias)
    factors, scales = work.once_per_sweep(
        f"coordinates {work.order}",
        lambda: (
            [_factor(block, inputs, work) for inputs in (v, at.before[..., : block.n_hidden])],
            _scales(at, work),
        ),
    )
    start = [p @ L * scale for p, L, scale in zip(matrices, factors, scales, strict=True)]
    tried = at

    def evaluate(values: list[Tensor]) -> Tensor:
        nonlocal tried
        solved = [
            torch.linalg.solve_triangular(L, p / scale, upper=False, left=False)
            for p, L, scale in zip(values, factors, scales, strict=True)
        ]
        tried = block.unrolled(parted_parameters(solved, block.bias), v, s, at.before)
        return tried.predicted

    def of_penalty() -> float:
        pairs = [(params[name], tried.params[name]) for name in block.penalised]
        return quadratic / 2 * sum(float(rise_of_square(new - p, p)) for p, new in pairs)

    residual = at.predicted - s
    slopes = gradients_of(block, v, at, weight * residual, work)
    for name in block.penalised:
        slopes[name] = slopes[name].add(params[name], alpha=quadratic)
    gradients = [
        torch.linalg.solve_triangular(L.T, slope, upper=True, left=False) / scale
        for slope, L, scale in zip(joined_parameters(slopes, block.bias), factors, scales, strict=True)
    ]
    known = Known(at.predicted, residual, gradients, of_penalty)
    found = majorised_step(start, evaluate, None, None, Term(weight, s, s), work, "B", known)
    return Step("W", found.squared, found.rate), at if found.prediction is None else tried


def share_of_pull(pull: Tensor, e: Tensor, weight: float, work: Work) -> Tensor:
    """``-<pull, c e> / ||pull||^2``, from 0 to 1: the share of what pulls the states that e hands to the parameters.

    The cells are asked to move by e, a short step against the pull; the pull is what a gradient through all of time
    would ask of them. A penalty that counted in full beside that share would outweigh the loss.
    """
    counted = work.counted(pull)
    inner, squared = ((counted * x).flatten(1).sum(1).sum(dtype=torch.float64) for x in (e, pull))
    return ratio(-weight * inner, squared, 1.0).clamp(0.0, 1.0)


def gradients_of(block: RecurrentStates, v: Tensor, at: Unrolled, pull: Tensor, work: Work) -> Params:
    """A gradient in what the cells predict as one in B, every sample as often as it counts."""
    slopes, pull = at.slopes, work.counted(pull)
    of_inputs = pulled(slopes, pull, of="inputs").flatten(0, 1)
    added = slopes.states is slopes.inputs  # the two sums, in all cells but a GRU's
    of_states = of_inputs if added else pulled(slopes, pull, of="states").flatten(0, 1)
    hidden = at.before[..., : block.n_hidden]
    found = {
        "weight_ih_l0": of_inputs.T @ v.flatten(0, 1),
        "weight_hh_l0": of_states.T @ hidden.flatten(0, 1),
    }
    if block.bias:
        found["bias_ih_l0"] = of_inputs.sum(0)
        found["bias_hh_l0"] = found["bias_ih_l0"] if added else of_states.sum(0)
    return found


def _scales(at: Unrolled, work: Work) -> list[Tensor]:
    """One number per row of B: with it and L a step of curvature c is nearly a Gauss-Newton step.

    A unit answers to its own rows alone, so that the Gauss-Newton matrix is, gate by gate, the Gram matrix of the
    inputs times the squared slopes of the unit.
    """
    n, time = at.before.shape[:2]
    samples = work.samples(n) * time
    every = max(1, n // SLOPE_SAMPLES) if work.counts is None else 1
    share = None if work.counts is None else (work.counts[:, 0] / samples).repeat_interleave(time)
    slopes = squared_slopes(at.slopes.some(every), share)
    return [((d + SLOPE_FLOOR * d.mean()) * samples).sqrt()[:, None] for d in slopes]


def _factor(block: RecurrentStates, inputs: Tensor, work: Work) -> Tensor:
    """L, from the mean over samples and time."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if block.bias else rows
    counts = None if work.counts is None else work.counts.repeat_interleave(inputs.shape[1], 0)
    gram = full_precision_gram(rows, counts) / (work.samples(len(inputs)) * inputs.shape[1])
    damping = work.options.damping * METRIC_DAMPING * gram.diagonal().sum()
    return damped_cholesky(gram, damping, rows.dtype)[0].to(rows.dtype)
