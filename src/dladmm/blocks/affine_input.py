"""The input's subproblem of the affine block, Equation 2: majorised or solved, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import repeat

import torch
from torch import Tensor

from dladmm.blocks.base import Anchor, Scope, Step, Term
from dladmm.blocks.quadratic_input import majorised_length, solved_step
from dladmm.passes import blind, by_columns, descend, gap, inner_products
from dladmm.precision import plus_direction
from dladmm.rows import Again, over
from dladmm.subproblems import damped_cholesky, full_precision_gram, line_search, row_squared_norms


def quadratic_a(W: Tensor, a: Tensor, c: float, anchor: Anchor, term: Term, scope: Scope) -> Step:
    """``argmin_a Q(a; tau)``, Equations 3 and 16: along the gradient, as far as :func:`majorised_length` says."""

    def headings() -> Iterator[tuple[Term, Tensor, Tensor, Tensor]]:
        for part, own, value in term.parts(a, anchor.value):
            d = _gradient(W, own, value, c, part, scope)
            yield part, own, d, torch.mm(d, W.T, out=scope.buffer("moved", part.prediction, part))

    made = Again(headings, term.whole)
    norms = [(row_squared_norms(d), row_squared_norms(moved)) for _, _, d, moved in made]
    d_squared, moved_squared = norms[0]
    if len(norms) > 1:
        d_squared, moved_squared = (torch.cat(both) for both in zip(*norms, strict=True))
    length, step = majorised_length(d_squared, moved_squared, anchor, term, scope)
    by_part = over(term.at_once, length) if length.ndim else repeat((length,))
    for (part, own, d, moved), (far,) in zip(made, by_part, strict=False):
        descend(own, d, far)
        descend(part.prediction, moved, far)
    return step


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
    lengths = []
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
        squared, moved_squared = row_squared_norms(move), row_squared_norms(moved)
        multiple = line_search(inner_products(gradient, move), c * moved_squared + squared)
        descend(own, move, multiple)
        descend(part.prediction, moved, multiple)
        counted = multiple.square() if part.rows is None else multiple.square() * part.rows[:, 0]
        lengths.append((squared @ counted, moved_squared @ counted))
    squared, moved_squared = (reduce(Tensor.add_, each) for each in zip(*lengths, strict=True))
    return solved_step(squared, moved_squared, c, anchor)


def _gradient(W: Tensor, a: Tensor, value: Tensor, c: float, part: Term, scope: Scope) -> Tensor:
    """``a - f(z) + c E W``, the gradient over nu, in a buffer."""
    E = scope.buffer("gap", part.prediction, part)
    gap(E, part.prediction, part.target, None)
    difference = torch.sub(a, value, out=scope.buffer("gradient", a, part))
    return plus_direction(difference, E, by_columns(W), c)
