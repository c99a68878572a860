"""The parameters of a recurrent layer: one step for all of time, where its inputs are uncorrelated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dladmm.blocks.recurrent_cells import Unrolled, pulled, squared_slopes
from dladmm.blocks.recurrent_parts import joined_parameters, parted_parameters
from dladmm.compute.work import Work, like_rows
from dladmm.solvers.factor import damped_cholesky, full_precision_gram
from dladmm.solvers.local_step import majorised_step
from dladmm.solvers.subproblems import Params, Step, Term

if TYPE_CHECKING:
    from dladmm.blocks.recurrent import RecurrentStates

SLOPE_FLOOR = 0.1
"""Of the mean squared slope: units that hardly answer are not moved further than that."""

SLOPE_SAMPLES = 256
"""Samples that the mean squared slopes are taken over, where all count alike."""


def whitened_step(
    block: RecurrentStates, v: Tensor, weight: float, quadratic: float, work: Work, at: Unrolled
) -> tuple[Step, Unrolled]:
    """``argmin_B sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2 + (lambda/2)||B||^2``: a majorised step in ``B L``.

    ``L L^T`` is the damped Gram matrix of the inputs (x, 1) and of (s, 1); the penalty is in the smooth term, as rows
    of its own. Returns the layer where the step ends, too.
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
    root = (quadratic / weight) ** 0.5
    counts = 1.0 if work.counts is None else like_rows(work.counts.to(s.dtype).sqrt(), s)

    def unwhitened(values: list[Tensor]) -> Params:
        solved = [
            torch.linalg.solve_triangular(L, p / scale, upper=False, left=False)
            for p, L, scale in zip(values, factors, scales, strict=True)
        ]
        return parted_parameters(solved, block.bias)

    def joined(trial: Params, predicted: Tensor) -> Tensor:
        parts = [counts * predicted, *(root * trial[name] for name in block.penalised)]
        return torch.cat([part.flatten() for part in parts])  # squares count as often as their sample

    tried = at

    def evaluate(values: list[Tensor]) -> Tensor:
        nonlocal tried
        trial = unwhitened(values)
        tried = block.unrolled(trial, v, s)
        return joined(trial, tried.predicted)

    slopes = gradients_of(block, v, at, weight * (at.predicted - s), work)
    for name in block.penalised:
        slopes[name] = slopes[name].add(params[name], alpha=quadratic)
    gradients = [
        torch.linalg.solve_triangular(L.T, slope, upper=True, left=False) / scale
        for slope, L, scale in zip(joined_parameters(slopes, block.bias), factors, scales, strict=True)
    ]
    wanted = (counts * s).flatten()
    target = torch.cat([wanted, wanted.new_zeros(sum(params[name].numel() for name in block.penalised))])
    own, uncounted = Term(weight, target, target), replace(work, counts=None)
    known = joined(params, at.predicted), gradients
    found = majorised_step(start, evaluate, None, None, own, uncounted, "B", known)
    return Step("W", found.squared, found.rate), at if found.prediction is None else tried


def gradients_of(block: RecurrentStates, v: Tensor, at: Unrolled, pull: Tensor, work: Work) -> Params:
    """A gradient in what the cells predict as one in B, every sample as often as it counts."""
    pull = work.counted(pull)
    found: Params = {}
    for name, of, x in (("ih", "inputs", v), ("hh", "states", at.before[..., : block.n_hidden])):
        sums = pulled(at.slopes, pull, of=of).flatten(0, 1)
        found[f"weight_{name}_l0"] = sums.T @ x.flatten(0, 1)
        if block.bias:
            found[f"bias_{name}_l0"] = sums.sum(0)
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
    damping = work.options.damping * gram.diagonal().mean()
    return damped_cholesky(gram, damping, rows.dtype)[0].to(rows.dtype)
