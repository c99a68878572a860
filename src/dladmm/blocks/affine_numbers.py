"""The few numbers an update of the affine block's parameters turns on: how far it goes, and what that promises."""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.compute.norms import ratio, squared_norm
from dladmm.compute.passes import one_launch
from dladmm.solvers.subproblems import backtracked, line_search


@one_launch
def mean_numbers(
    sums: Tensor, b: Tensor, *, samples: float | Tensor, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``b -= sums / samples`` in place; the shift, its squared length and what it promises."""
    shift = -(sums / samples).to(b.dtype)
    b += shift
    return shift, squared_norm(shift), sums.new_ones(()) * (weight / 2 * samples)


@one_launch
def majorised_numbers(
    squared: Tensor,
    moved_squared: Tensor,
    power: Tensor | float,
    *,
    c: float,
    curvature: float | Tensor,
    start: float | None,
    growth: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Multiple of the heading, squared length of the step and what it promises, from the lengths of h and A h^T."""
    alpha = backtracked(c * ratio(moved_squared, squared), start, growth)
    multiple = torch.where(squared > 0, power * c / (alpha + curvature), torch.zeros_like(alpha))
    return multiple, squared * multiple.square(), (alpha + curvature) / 2


@one_launch
def solved_numbers(
    squared: Tensor,
    moved_squared: Tensor,
    slope: Tensor,
    total: Tensor,
    *,
    c: float,
    curvature: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a heading that solves the subproblem: the best multiple, which is 1 up to rounding."""
    multiple = line_search(slope, moved_squared + total * squared)
    rate = c * (ratio(moved_squared, squared) / 2 + total) - curvature / 2
    return multiple, squared * multiple.square(), rate


def plus(x: Tensor, y: Tensor, multiple: float | Tensor) -> Tensor:
    """``x + multiple y`` in place; a multiple that only the device knows is not asked for."""
    if isinstance(multiple, Tensor):
        return x.add_(y * multiple)
    return x.add_(y, alpha=multiple) if multiple > 0 else x
