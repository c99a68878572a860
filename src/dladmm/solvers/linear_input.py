"""The input's subproblem where the block is linear in it, for samples of any shape.

``argmin_v (nu/2)||v - value||^2 + (c/2)||K v + b - target||^2``, Equation 2, with K known by its products alone: the
majorised step of Equations 3 and 16, or conjugate gradients, one sample apart from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dladmm.compute.passes import ratio, row_squared_norms
from dladmm.compute.work import Work, like_rows
from dladmm.solvers.subproblems import Anchor, Step, Term, line_search, majorised_length, solved_step

Product = Callable[[Tensor], Tensor]

MAX_STEPS, TOLERANCE = 20, 1e-2
"""Conjugate gradients end when the gradient is this much of what it was, or after so many steps."""


def update_linear_input(
    v: Tensor, apply: Product, adjoint: Product, anchor: Anchor, term: Term, work: Work
) -> list[Step]:
    """Lines 5 and 19 of Algorithm 2, lines 4 and 9 of Algorithm 1: ``apply`` is K, ``adjoint`` its transpose.

    Both are asked for all samples or for some.
    """
    c = term.weight / anchor.weight
    gradient = v - anchor.value
    for of_some, prediction, target in work.parts(gradient, term.prediction, term.target):
        of_some.add_(adjoint(prediction - target), alpha=c)
    if work.options.a_solver == "exact":
        return [conjugate_gradients(v, gradient, apply, adjoint, anchor, term, work)]
    return [_majorised(v, gradient, apply, anchor, term, work)]


def _majorised(v: Tensor, d: Tensor, apply: Product, anchor: Anchor, term: Term, work: Work) -> Step:
    """``argmin_a Q(a; tau)``, Equations 3 and 16; all over nu."""
    moved = apply(d)
    length, step = majorised_length(row_squared_norms(d), row_squared_norms(moved), anchor, term, work)
    scale = -length.to(d.dtype)
    work.move(v, d * like_rows(scale, d))
    work.move(term.prediction, moved.mul_(like_rows(scale, moved)))
    return step


def conjugate_gradients(
    v: Tensor,
    gradient: Tensor,
    apply: Product,
    adjoint: Product,
    anchor: Anchor,
    term: Term,
    work: Work,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> Step:
    """``(c K^T K + I) move = -gradient`` (all over nu), each sample with its own step lengths.

    Every step minimises over all directions so far, so the value falls by half the squared length of the move in the
    subproblem's own metric, however early the loop ends. With nu of the size of c the matrix is well conditioned and
    a few steps are enough. A last line search keeps that true in float32. Its slope is ``<r_0, move>``, which is the
    sum of ``alpha_k ||r_k||^2`` because ``<r_0, p_k> = ||r_k||^2``.

    K's products are made part by part; of all samples there are the residual, for which the gradient is given up, the
    direction and the move alone.
    """
    c = term.weight / anchor.weight
    r = gradient.neg_()
    p, move = r.clone(), torch.zeros_like(v)
    rest = row_squared_norms(r)
    slope = torch.zeros_like(rest)

    def left() -> Tensor:
        """Over all samples, each as often as it counts."""
        return work.total((rest if work.counts is None else rest * work.counts[:, 0]).sum())[0]

    enough = tolerance**2 * left()
    end = _End(work, v, max_steps)
    for step in range(end.steps):
        more = step < end.steps - 1
        for rows in work.parts(term.prediction, p, r, move, rest, slope):
            _advance(rows[1:], c, apply, adjoint if more else None)
        previous, rest = rest, row_squared_norms(r) if more else rest
        if not more or end.reached(left() <= enough):
            break
        p = p.mul_(like_rows(ratio(rest, previous).to(v.dtype), p)).add_(r)
    end.leave()
    squared, moved_squared = slope.new_zeros(()), slope.new_zeros(())
    counts = torch.ones_like(slope) if work.counts is None else work.counts[:, 0].double()
    for prediction, some, by, falls, weights in work.parts(term.prediction, v, move, slope, counts):
        moved = apply(by)
        lengths, moved_lengths = row_squared_norms(by), row_squared_norms(moved)
        best = line_search(falls, c * moved_lengths + lengths)
        scale = best.to(v.dtype)
        work.move(some, by.mul_(like_rows(scale, by)))
        work.move(prediction, moved.mul_(like_rows(scale, moved)))
        counted = best.square() * weights
        squared, moved_squared = squared + lengths @ counted, moved_squared + moved_lengths @ counted
    return solved_step(squared, moved_squared, c, anchor)


class _End:
    """When the steps end: where they were enough or, where nobody may ask, as calls before foresaw."""

    def __init__(self, work: Work, like: Tensor, most: int) -> None:
        self._work, self._asks = work, not work.how.never_waits(like)
        self._name = "forward" if work.order[-1] else "backward"
        self._insufficient: list[Tensor] = []
        self.steps = most if self._asks else work.workspace.foresight.steps(work.owner, self._name, most)

    def reached(self, enough: Tensor) -> bool:
        if self._asks:
            return bool(enough)
        self._insufficient.append(~enough)
        return False

    def leave(self) -> None:
        if not self._asks:
            self._work.workspace.foresight.count(self._work.owner, self._name, self._insufficient)


def _advance(rows: Sequence[Tensor], c: float, apply: Product, adjoint: Product | None) -> None:
    """One step along p of some samples; without ``adjoint`` it is the last, after which nobody asks for r."""
    p, r, move, rest, slope = rows
    product = apply(p)
    alpha = ratio(rest, row_squared_norms(p) + c * row_squared_norms(product)).to(p.dtype)
    move.addcmul_(p, like_rows(alpha, p))
    slope.addcmul_(alpha.double(), rest)
    if adjoint is not None:
        r.sub_(p.add(adjoint(product), alpha=c).mul_(like_rows(alpha, p)))
