"""What the affine block does with rows, one chunk at a time.

For W and b: products, sums and the Gram matrix, as the least-squares solver asks for them. For its input: Equation 2,
majorised or solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from dladmm.compute.chunks import in_chunks
from dladmm.compute.execution import on_gpu, plus_times, times
from dladmm.compute.passes import by_columns, column_sums, inner_products, row_squares, total_square
from dladmm.compute.products import headings
from dladmm.compute.work import Work
from dladmm.solvers.factor import damped_cholesky, full_precision_gram
from dladmm.solvers.metric import Metric
from dladmm.solvers.subproblems import Anchor, Step, Term, line_search, majorised_length, solved_step

ROWS_PER_INPUT = 4
"""With so many rows for every input, two steps of W are cheaper on the Gram matrix of the data than on its rows."""


def gram_pays(n_rows: int, n_inputs: int) -> bool:
    """Whether several steps of W in a row are made on the Gram matrix."""
    return n_rows >= ROWS_PER_INPUT * n_inputs


def gradient_of_rows(work: Work, target: Tensor, prediction: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """``E^T A`` and the column sums of ``E = prediction - target`` of these rows, each as often as it counts."""
    E = work.residual(Term(1.0, target, prediction))
    if work.counts is not None:
        E.mul_(work.counts)
    return work.how.direction(E.T, A), column_sums(E)


def adjoint_of_rows(work: Work, E: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """``E^T A`` and the column sums of any E."""
    E = work.counted(E)
    return work.how.direction(E.T, A), column_sums(E)


def _gram_of_rows(work: Work, A: Tensor) -> tuple[Tensor]:
    return (full_precision_gram(A, work.counts),)


class Rows:
    """``A``, the rows of a block's input, as the least-squares solver sees it."""

    groups = 1

    def __init__(self, n_inputs: int, A: Tensor, term: Term, work: Work) -> None:
        self.A, self.term, self.work = A, term, work
        self.weight, self.n_inputs = term.weight, n_inputs
        self.samples = work.samples(len(term.target))
        self._sources = (A, work.counts)
        self.gram_pays = work.few_messages or gram_pays(work.n_rows(len(term.target)), n_inputs)
        self._ahead = (A, work.counts, term.target, term.prediction)

    def fetch(self) -> None:
        """Where messages are dear: gradient, Gram matrix and column sums in one of them, kept for those who ask."""
        own = [*self._own_gradient(), self._own_column_sums().clone()]
        known = self.work.find("gram", self._sources)
        if known is None:
            own.append(self.work.own_sum(_gram_of_rows, self.A)[0])
        product, sums, ones, *gram = self.work.total(*own, halves=[3] if known is None else [])
        for found in gram:
            self.work.keep("gram", found, self._sources)
        self.work.keep("column sums", ones, self._sources)
        self.work.keep("ahead", (product, sums), self._ahead)

    def _own_gradient(self) -> list[Tensor]:
        return self.work.own_sum(gradient_of_rows, self.term.target, self.term.prediction, self.A)

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        if not self.work.few_messages:
            return self._totals(self._own_gradient(), with_column_sums)
        if self.work.find("ahead", self._ahead) is None:
            self.fetch()
        fetched: Any = self.work.find("ahead", self._ahead)
        product, sums = fetched
        return product.clone(), sums.clone(), self.column_sums() if with_column_sums else None

    def as_rows(self, E: Tensor) -> Tensor:
        """E, given in the shape of the block's output, with the rows of A."""
        return E

    def adjoint(self, E: Tensor, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        return self._totals(self.work.own_sum(adjoint_of_rows, self.as_rows(E), self.A), with_column_sums)

    def add_direction(
        self, running: Tensor, keep: float, E: Tensor, decay: Tensor | None, metric: Metric
    ) -> None:
        """With fewer rows than outputs ``E^T ([A, 1] K)``, which is the shorter of the two products."""
        work, E = self.work, self.as_rows(E)
        plain = work.shards is None and work.one_chunk(len(E)) and not work.how.rounded_directions
        if plain and decay is None and len(E) < len(running):
            running.addmm_(work.counted(E).T, metric.of_rows(self.A), beta=keep, alpha=1 - keep)
            return
        product, sums = work.sum(adjoint_of_rows, E, self.A)
        metric.add_to(running, keep, product if decay is None else product + decay, sums.to(running.dtype))

    def mean(self) -> Tensor:
        def of_rows(work: Work, A: Tensor) -> tuple[Tensor]:
            return (work.counted(A).sum(0),)

        return self.work.sum(of_rows, self.A)[0] / self.samples

    def moments(self, centre: Tensor | None, sketch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """In the precision of the run: about a centre near the mean nothing cancels."""

        def of_rows(work: Work, A: Tensor) -> tuple[Tensor, ...]:
            centred = A if centre is None else A - centre
            shares = work.counted(centred) / self.samples
            second = centred.T @ (shares if sketch is None else shares @ sketch)
            return (second,) if centre is None else (second, shares.T @ A.new_ones(len(A)))

        own = self.work.own_sum(of_rows, self.A)
        second, *first = self.work.total(*own, halves=[] if sketch is not None else [0])
        return second, first[0] if first else None

    def _totals(self, own: list[Tensor], with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Made sums over all ranks in one go."""
        more = [self._own_column_sums().clone()] if with_column_sums else []
        product, sums, *ones = self.work.total(*own, *more)
        return product, sums, ones[0] if ones else None

    def gram(self) -> Tensor:
        if self.work.few_messages and self.work.find("gram", self._sources) is None:
            self.fetch()

        def make() -> Tensor:
            return self.work.total(*self.work.own_sum(_gram_of_rows, self.A), halves=[0])[0]

        return self.work.cached("gram", self._sources, make)

    def column_sums(self) -> Tensor:
        make = lambda: self.work.total(self._own_column_sums().clone())[0]  # noqa: E731
        return self.work.cached("column sums", self._sources, make)

    def _own_column_sums(self) -> Tensor:
        def of_rows(work: Work, A: Tensor) -> tuple[Tensor]:
            return (column_sums(A, work.counts),)

        return self.work.cached(
            "own column sums", self._sources, lambda: self.work.own_sum(of_rows, self.A)[0]
        )

    def products(self, heading: Tensor) -> ChunkProducts:
        return ChunkProducts(self.A, heading, self.term, self.work)

    def squared(self, products: ChunkProducts) -> Tensor:
        if self.work.few_messages:
            heading = products.heading.double()
            return ((heading @ self.gram()) * heading).sum()
        squares = (total_square(work.how, moved, work.counts) for work, _, moved in products)
        return self.work.total(reduce(Tensor.add_, squares))[0]

    def advance(self, products: ChunkProducts | None, multiple: Tensor | None, shift: Tensor | None) -> None:
        if products is None or multiple is None:
            for work, term in self.work.terms(self.term):
                work.advance(term, None, None, shift)
            return
        for work, term, moved in products:
            work.advance(term, moved, multiple.to(moved.dtype), shift)


class ChunkProducts:
    """``A heading^T`` of every chunk of rows: of one chunk it is kept, of several it is made each time it is read."""

    def __init__(self, A: Tensor, heading: Tensor, term: Term, work: Work) -> None:
        self.A, self.heading, self.term, self.work = A, heading, term, work
        self._kept = list(self._make()) if work.one_chunk(len(term.target)) else None

    def __iter__(self) -> Iterator[tuple[Work, Term, Tensor]]:
        return self._make() if self._kept is None else iter(self._kept)

    def _make(self) -> Iterator[tuple[Work, Term, Tensor]]:
        for work, term, some in self.work.terms(self.term, self.A):
            yield work, term, times(some, self.heading.T, work.buffer("moved", term.prediction))


Heading = tuple[Work, Term, Tensor, Tensor, Tensor, Tensor, Sequence[Tensor]]
"""Of one chunk: work, term, a, anchor's value, direction d, ``d W^T`` and their squared lengths."""


def heading_a(
    W: Tensor, a: Tensor, value: Tensor, c: float, term: Term, work: Work, *, measured: bool
) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """``d = a - f(z) + c E W``, the gradient of Equation 2 over nu, and ``d W^T``, in buffers.

    c is the term's weight over nu. ``measured`` gives the squared lengths of both too, of all rows or of each.
    """
    how, E, o = work.how, work.residual(term), work.offset(a, Anchor(1.0, value))
    moved = work.buffer("moved", term.prediction)
    by_rows = work.options.tau_per_sample
    if on_gpu(E) and how.kernels and not (by_rows or how.rounded_directions or work.counts is not None):
        squares = headings(o, E, W, c, moved)
        if squares is not None:
            return o, moved, squares.unbind()
    d = how.add_direction(o, E, by_columns(W, len(E)), c)
    times(d, W.T, moved)
    if not measured:
        return d, moved, ()
    if by_rows:
        return d, moved, [row_squares(how, x) for x in (d, moved)]
    return d, moved, [total_square(how, x, work.counts) for x in (d, moved)]


def quadratic_a(W: Tensor, a: Tensor, anchor: Anchor, term: Term, work: Work) -> Step:
    """``argmin_a Q(a; tau)``, Equations 3 and 16: along the gradient, as far as :func:`majorised_length` says."""
    c = term.weight / anchor.weight

    def made(*, measured: bool) -> Iterator[Heading]:
        for part, own, a_own, value in work.terms(term, a, anchor.value):
            d, moved, squares = heading_a(W, a_own, value, c, own, part, measured=measured)
            yield part, own, a_own, value, d, moved, squares

    kept = list(made(measured=True)) if work.one_chunk(len(a)) else None
    norms = [squares for *_, squares in (made(measured=True) if kept is None else kept)]
    joined: Callable[..., Tensor] = torch.cat if work.options.tau_per_sample else partial(reduce, Tensor.add_)
    d_squared, moved_squared = (joined(both) for both in zip(*norms, strict=True))
    length, step = majorised_length(d_squared, moved_squared, anchor, term, work)
    lengths = in_chunks(work.chunk_rows, length) if length.ndim else repeat((length,))
    ties = [
        part.descend(a_own, d, moved, far, Anchor(anchor.weight, value), own)
        for (part, own, a_own, value, d, moved, _), (far,) in zip(
            made(measured=False) if kept is None else kept, lengths, strict=False
        )
    ]
    return step._replace(tie=_added(ties))


def exact_a(W: Tensor, a: Tensor, anchor: Anchor, term: Term, work: Work) -> Step:
    """``argmin_a`` of Equation 2 itself: ``(c W^T W + I) move = o + c E W`` (all over nu), ``o = a - f(z)``.

    With ``P = c (c W W^T + I)^-1 W`` the answer is ``o + (E - o W^T) P``, a product less where the link holds and o is
    zero. Solving for the right-hand side would cost digits: it is longer than the move by up to the condition number. W
    is the same in the backward and in the forward update of a, so P is used twice. Every row has its own multiple of
    the move, so chunks of rows need nothing of each other.
    """
    c = term.weight / anchor.weight
    narrow = W.shape[0] <= W.shape[1]

    def make() -> tuple[Tensor, Tensor]:
        exact = W.double()
        gram = full_precision_gram(exact.T if narrow else exact)
        factor, _ = damped_cholesky(gram, 1 / c, torch.float64, without_waiting=work.how.avoids_waiting(W))
        inverse = torch.cholesky_inverse(factor) / c
        P = c * (inverse @ exact if narrow else exact @ inverse)
        return inverse.to(W.dtype), by_columns(P.to(W.dtype), len(a))

    inverse, P = work.cached("input inverse", (W,), make, (c,))
    lengths, ties = [], []
    for part, own, a_own, value in work.terms(term, a, anchor.value):
        E, move, moved = part.residual(own), part.buffer("move", a_own), part.buffer("moved", own.prediction)
        o = None if work.plan.in_holds else part.offset(a_own, Anchor(1.0, value))
        if o is None:
            part.how.direction(E, P, move)
        elif narrow:
            plus_times(E, o, W.T, -1.0, out=moved)
            part.how.add_direction(o, moved, P, 1.0, out=move)
        else:  # o - c o W^T P = o (c W^T W + I)^-1, the shorter product
            part.how.add_direction(times(o, inverse, move), E, P, 1.0)
        # ``moved`` also equals what the solution implies, but that drifts: it is what an exact inverse would have
        # moved, not what a rounded one did, and the cached prediction would keep the difference for ever.
        times(move, W.T, moved)
        slope, squared = (
            (0.0, row_squares(part.how, move)) if o is None else inner_products(part.how, o, move)
        )
        slope_of_E, moved_squared = inner_products(part.how, E, moved)
        multiple = line_search(slope + c * slope_of_E, c * moved_squared + squared)
        ties.append(part.descend(a_own, move, moved, multiple, Anchor(anchor.weight, value), own))
        counted = multiple.square() if part.counts is None else multiple.square() * part.counts[:, 0]
        lengths.append((squared @ counted, moved_squared @ counted))
    squared, moved_squared = (reduce(Tensor.add_, each) for each in zip(*lengths, strict=True))
    return solved_step(squared, moved_squared, c, anchor)._replace(tie=_added(ties))


def _added(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the parts that are known; None if none is."""
    known = [part for part in parts if part is not None]
    return reduce(Tensor.add_, known) if known else None
