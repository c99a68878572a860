"""The rows of a block's input as the least-squares solver sees them: products, sums and the Gram matrix, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor

from dladmm.compute.passes import column_sums, total_square
from dladmm.compute.work import Work
from dladmm.solvers.factor import full_precision_gram
from dladmm.solvers.terms import Term

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


class Rows:
    """``A``, the rows of a block's input, as the least-squares solver sees it."""

    groups = 1

    def __init__(self, n_inputs: int, A: Tensor, term: Term, work: Work) -> None:
        self.A, self.term, self.work = A, term, work
        self.weight, self.n_inputs = term.weight, n_inputs
        self.samples = work.samples(len(term.target))
        self._sources = (A, work.counts)
        self.gram_pays = gram_pays(work.n_rows(len(term.target)), n_inputs)

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        target, prediction = self.term.target, self.term.prediction
        own = self.work.own_sum(gradient_of_rows, target, prediction, self.A)
        return self._totals(own, with_column_sums)

    def adjoint(self, E: Tensor, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        return self._totals(self.work.own_sum(adjoint_of_rows, E, self.A), with_column_sums)

    def _totals(self, own: list[Tensor], with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Made sums over all ranks in one go."""
        more = [self._own_column_sums().clone()] if with_column_sums else []
        product, sums, *ones = self.work.total(*own, *more)
        return product, sums, ones[0] if ones else None

    def gram(self) -> Tensor:
        def of_rows(work: Work, A: Tensor) -> tuple[Tensor]:
            return (full_precision_gram(A, work.counts),)

        return self.work.cached("gram", self._sources, lambda: self.work.sum(of_rows, self.A)[0])

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
            yield work, term, torch.mm(some, self.heading.T, out=work.buffer("moved", term.prediction))
