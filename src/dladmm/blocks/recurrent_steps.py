"""The parameters of a recurrent layer: one step for all of time, where its inputs are uncorrelated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dladmm.blocks.recurrent_cells import Unrolled, pulled, squared_slopes
from dladmm.blocks.recurrent_parts import joined_parameters, parted_parameters
from dladmm.compute.passes import ratio
from dladmm.compute.work import Work
from dladmm.solvers.factor import damped_cholesky, full_precision_gram
from dladmm.solvers.local_step import Known, majorised_step
from dladmm.solvers.subproblems import Params, Step, Term, rise_of_square

if TYPE_CHECKING:
    from dladmm.blocks.recurrent import RecurrentStates

METRIC_DAMPING = {"GRU": 10.0}
"""Of the Gram matrices in whose coordinates parameters move, beside that of other blocks. Two updates an iteration go
far along what hardly varies: they fitted the rows they saw no sooner, and knew less of others."""

SLOPE_FLOOR = 0.1
"""Of the mean squared slope: units that hardly answer are not moved further than that."""

SLOPE_SAMPLES = 256
"""Samples that the mean squared slopes are taken over, where all count alike."""


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
    damping = work.options.damping * METRIC_DAMPING.get(block.cell_kind, 1.0) * gram.diagonal().mean()
    return damped_cholesky(gram, damping, rows.dtype)[0].to(rows.dtype)
