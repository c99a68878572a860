"""The input's subproblem of the affine block, Equation 2: majorised or solved, one chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import repeat

import torch
from torch import Tensor

from dladmm.compute.chunks import over
from dladmm.compute.passes import by_columns, inner_products, row_squares, total_square
from dladmm.compute.work import Work, added
from dladmm.solvers.factor import damped_cholesky, full_precision_gram
from dladmm.solvers.linear_input import majorised_length, solved_step
from dladmm.solvers.subproblems import line_search
from dladmm.solvers.terms import Anchor, Step, Term

Heading = tuple[Work, Term, Tensor, Tensor, Tensor, Tensor]
"""Of one chunk: work, term, a, anchor's value, direction d and ``d W^T``."""


def gradient_a(W: Tensor, a: Tensor, value: Tensor, c: float, term: Term, work: Work) -> Tensor:
    """``a - f(z) + c E W``: the gradient of Equation 2 over nu, in a buffer; c is the term's weight over nu."""
    E = work.residual(term)
    return work.how.add_direction(work.offset(a, Anchor(1.0, value)), E, by_columns(W), c)


def quadratic_a(W: Tensor, a: Tensor, anchor: Anchor, term: Term, work: Work) -> Step:
    """``argmin_a Q(a; tau)``, Equations 3 and 16: along the gradient, as far as :func:`majorised_length` says."""
    c = term.weight / anchor.weight

    def headings() -> Iterator[Heading]:
        for part, own, a_own, value in work.terms(term, a, anchor.value):
            d = gradient_a(W, a_own, value, c, own, part)
            yield part, own, a_own, value, d, torch.mm(d, W.T, out=part.buffer("moved", own.prediction))

    kept = list(headings()) if work.one_chunk(len(a)) else None
    made = headings() if kept is None else kept
    if work.options.tau_per_sample:
        norms = [(row_squares(part.how, d), row_squares(part.how, moved)) for part, *_, d, moved in made]
        d_squared, moved_squared = (torch.cat(both) for both in zip(*norms, strict=True))
    else:
        norms = [
            (total_square(part.how, d, part.counts), total_square(part.how, moved, part.counts))
            for part, *_, d, moved in made
        ]
        d_squared, moved_squared = (reduce(Tensor.add_, both) for both in zip(*norms, strict=True))
    length, step = majorised_length(d_squared, moved_squared, anchor, term, work)
    lengths = over(work.chunk_rows, length) if length.ndim else repeat((length,))
    ties = [
        part.descend(a_own, d, moved, far, Anchor(anchor.weight, value), own)
        for (part, own, a_own, value, d, moved), (far,) in zip(
            headings() if kept is None else kept, lengths, strict=False
        )
    ]
    return step._replace(tie=added(ties))


def exact_a(W: Tensor, a: Tensor, anchor: Anchor, term: Term, work: Work) -> Step:
    """``argmin_a`` of Equation 2 itself: ``(c W^T W + I) move = -gradient`` (all over nu).

    With fewer outputs than inputs the Woodbury identity turns it into an ``n_out x n_out`` system. W is the
    same in the backward and in the forward update of a, so its factor is used twice. Every row has its own
    multiple of the move, so chunks of rows need nothing of each other.
    """
    c = term.weight / anchor.weight
    narrow = W.shape[0] < W.shape[1]

    def make() -> Tensor:
        gram = full_precision_gram((W.T if narrow else W).double())
        factor, _ = damped_cholesky(gram, 1 / c, torch.float64, blind=work.how.avoids_waiting(W))
        return (torch.cholesky_inverse(factor) / c).to(W.dtype)

    inverse = work.cached("input inverse", (W,), make, (c,))
    lengths, ties = [], []
    for part, own, a_own, value in work.terms(term, a, anchor.value):
        gradient = gradient_a(W, a_own, value, c, own, part)
        move = part.buffer("move", gradient)
        if narrow:
            torch.addmm(gradient, (gradient @ W.T) @ inverse, W, alpha=-c, out=move)
        else:
            torch.mm(gradient, inverse, out=move)
        # By Woodbury ``moved`` also equals gradient W^T inverse, but that drifts: it is what an exact inverse would
        # have moved, not what a rounded one did, and the cached prediction would keep the difference for ever.
        moved = torch.mm(move, W.T, out=part.buffer("moved", own.prediction))
        slope, squared = inner_products(part.how, gradient, move)
        moved_squared = row_squares(part.how, moved)
        multiple = line_search(slope, c * moved_squared + squared)
        ties.append(part.descend(a_own, move, moved, multiple, Anchor(anchor.weight, value), own))
        counted = multiple.square() if part.counts is None else multiple.square() * part.counts[:, 0]
        lengths.append((squared @ counted, moved_squared @ counted))
    squared, moved_squared = (reduce(Tensor.add_, each) for each in zip(*lengths, strict=True))
    return solved_step(squared, moved_squared, c, anchor)._replace(tie=added(ties))
