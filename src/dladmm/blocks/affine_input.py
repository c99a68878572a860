"""The input's subproblem of the affine block, Equation 2: majorised or solved, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import repeat

import torch
from torch import Tensor

from dladmm.blocks.base import Anchor, Scope, Step, Term
from dladmm.blocks.quadratic_input import majorised_length, solved_step
from dladmm.compute.chunks import Again, over
from dladmm.compute.passes import blind, by_columns, descend, inner_products, row_squares, total_square
from dladmm.compute.precision import plus_direction
from dladmm.solvers.subproblems import damped_cholesky, full_precision_gram, line_search


def quadratic_a(W: Tensor, a: Tensor, c: float, anchor: Anchor, term: Term, scope: Scope) -> Step:
    """``argmin_a Q(a; tau)``, Equations 3 and 16: along the gradient, as far as :func:`majorised_length` says."""

    def headings() -> Iterator[tuple[Term, Tensor, Tensor, Tensor]]:
        for part, own, value in term.parts(a, anchor.value):
            d = _gradient(W, own, value, c, part, scope)
            yield part, own, d, torch.mm(d, W.T, out=scope.buffer("moved", part.prediction, part))

    made = Again(headings, term.whole)
    norms: list[tuple[Tensor, Tensor]]
    if scope.options.tau_per_sample:
        norms = [(row_squares(d), row_squares(moved)) for _, _, d, moved in made]
        d_squared, moved_squared = (torch.cat(both) for both in zip(*norms, strict=True))
    else:
        norms = [(total_square(d, part.rows), total_square(moved, part.rows)) for part, _, d, moved in made]
        d_squared, moved_squared = (reduce(Tensor.add_, both) for both in zip(*norms, strict=True))
    length, step = majorised_length(d_squared, moved_squared, anchor, term, scope)
    by_part = over(term.at_once, length) if length.ndim else repeat((length,))
    ties = []
    for (part, own, d, moved), (far,), (value,) in zip(
        made, by_part, over(term.at_once, anchor.value), strict=False
    ):
        ties.append(_move(own, d, value, part, moved, far, scope))
    return step._replace(tie=_sum(ties))


def exact_a(W: Tensor, a: Tensor, c: float, anchor: Anchor, term: Term, scope: Scope) -> Step:
    """``argmin_a`` of Equation 2 itself: ``(c W^T W + I) move = -gradient`` (all over nu).

    With fewer outputs than inputs the Woodbury identity turns it into an ``n_out x n_out`` system. W is the
    same in the backward and in the forward update of a, so its factor is used twice. Every row has its own
    multiple of the move, so chunks of rows need nothing of each other.
    """
    narrow = W.shape[0] < W.shape[1]
    if scope.memory.get("input", (None,))[0] != c:
        gram = full_precision_gram((W.T if narrow else W).double())
        factor, _ = damped_cholesky(gram, 1 / c, torch.float64, blind=blind(W))
        scope.memory["input"] = (c, (torch.cholesky_inverse(factor) / c).to(W.dtype))
    inverse = scope.memory["input"][1]
    lengths, ties = [], []
    for part, own, value in term.parts(a, anchor.value):
        gradient = _gradient(W, own, value, c, part, scope)
        move = scope.buffer("move", gradient, part)
        if narrow:
            torch.addmm(gradient, (gradient @ W.T) @ inverse, W, alpha=-c, out=move)
        else:
            torch.mm(gradient, inverse, out=move)
        # By Woodbury ``moved`` also equals gradient W^T inverse, but that drifts: it is what an exact inverse would
        # have moved, not what a rounded one did, and the cached prediction would remember the difference for ever.
        moved = torch.mm(move, W.T, out=scope.buffer("moved", part.prediction, part))
        slope, squared = inner_products(gradient, move)
        moved_squared = row_squares(moved)
        multiple = line_search(slope, c * moved_squared + squared)
        ties.append(_move(own, move, value, part, moved, multiple, scope))
        counted = multiple.square() if part.rows is None else multiple.square() * part.rows[:, 0]
        lengths.append((squared @ counted, moved_squared @ counted))
    squared, moved_squared = (reduce(Tensor.add_, each) for each in zip(*lengths, strict=True))
    return solved_step(squared, moved_squared, c, anchor)._replace(tie=_sum(ties))


def _move(
    a: Tensor, d: Tensor, value: Tensor, part: Term, moved: Tensor, far: Tensor, scope: Scope
) -> Tensor | None:
    """``a -= far d`` and the prediction along with it; after that ``||a - f(z)||^2``, which the forward sweep asks."""
    if not scope.forward:
        descend(a, d, far)
        descend(part.prediction, moved, far)
        return None
    gap = None
    if scope.asked == "term":
        gap = scope.leave("gap", part.prediction, part.target, part)
    descend(part.prediction, moved, far, None if gap is None else part.target, gap=gap)
    # The gradient has had its day. Unless a link further on takes its buffer, the next sweep finds a - f(z) there
    apart = scope.leave("gradient", a, value, part, stays=True) if scope.goes_on else None
    return descend(a, d, far, value, gap=apart, rows=part.rows, tied=True)


def _sum(ties: Sequence[Tensor | None]) -> Tensor | None:
    known = [tie for tie in ties if tie is not None]
    return reduce(Tensor.add_, known) if known else None


def _gradient(W: Tensor, a: Tensor, value: Tensor, c: float, part: Term, scope: Scope) -> Tensor:
    """``a - f(z) + c E W``, the gradient over nu, in a buffer."""
    E = scope.difference("gap", part.prediction, part.target, part)
    return plus_direction(scope.difference("gradient", a, value, part), E, by_columns(W), c)
