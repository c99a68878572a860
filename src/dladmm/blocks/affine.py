"""Affine block: ``m = A W^T + b``, the paper's ``z_l = W_l a_{l-1} + b_l`` with samples as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.affine_input import exact_a, quadratic_a
from dladmm.blocks.base import Block, Support
from dladmm.compute.norms import squared_norm
from dladmm.compute.passes import by_columns, column_sums, total_square
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.factor import full_precision_gram
from dladmm.solvers.least_squares import update_linear_parameters
from dladmm.solvers.terms import Anchor, Params, Step, Term

ROWS_PER_INPUT = 4
"""With so many rows for every input, two steps of W are cheaper on the Gram matrix of the data than on its rows."""


class Affine(Block):
    """``g((W, b), a) = a W^T + b``, quadratic in W, in b and in a.

    With ``E = m - target`` and ``c`` the term's weight, phi is ``(c/2)||E||^2`` plus what does not depend on the
    variable at hand. The cached ``m`` moves with every update, so each update of W or a costs two products.
    """

    support = Support.ALL
    linear = True
    begins_with_residual = True
    joins_updates = True
    penalised = ("W",)

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        if n_in < 1 or n_out < 1:
            raise InputError(
                f"an affine block needs at least one input and one output, got {n_in} -> {n_out}."
            )
        self.n_in: int = n_in
        self.n_out: int = n_out
        self.bias = bias

    def __repr__(self) -> str:
        return f"Affine({self.n_in}, {self.n_out}{'' if self.bias else ', bias=False'})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        deviation = scale * math.sqrt(2.0 / self.n_in)
        W = torch.randn(self.n_out, self.n_in, generator=generator, dtype=torch.float64) * deviation
        b = torch.zeros(self.n_out, dtype=torch.float64)
        return {"W": W, "b": b} if self.bias else {"W": W}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return nn.functional.linear(v, params["W"], params.get("b"))

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        if not self.bias:
            return torch.mm(v, params["W"].T, out=out)
        return torch.addmm(params["b"], v, params["W"].T, out=out)

    def to_module(self, params: Params) -> nn.Module:
        W = params["W"]
        # skip_init: nn.Linear would otherwise draw from the caller's global generator
        module: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, self.n_in, self.n_out, bias=self.bias, device=W.device, dtype=W.dtype
        )
        with torch.no_grad():
            module.weight.copy_(W)
            if self.bias:
                module.bias.copy_(params["b"])
        return module

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Algorithm 2: lines 7, 10 and 12 backward (b, then W), lines 15, 17 and 21 forward (W, then b)."""
        return update_linear_parameters(
            parameter_order(params, work), params, Rows(self, v, term, work), penalty, work
        )

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        product, sums = work.sum(gradient_of_rows, term.target, term.prediction, v)
        total = squared_norm(penalty.stationarity(params["W"], term.weight * product))
        return total + squared_norm(term.weight * sums) if self.bias else total

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """Algorithm 2, lines 5 and 19: ``argmin_a (nu/2)||a - f(z)||^2 + (c/2)||a W^T + b - target||^2``."""
        solve = exact_a if work.options.a_solver == "exact" else quadratic_a
        return [solve(params["W"], v, anchor, term, work)]

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual(), work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return work.how.direction(gradient, by_columns(params["W"]))

    def steps_on_gram(self, n_rows: int) -> bool:
        """Whether several steps of W in a row are made on the Gram matrix of its input."""
        return n_rows >= ROWS_PER_INPUT * self.n_in


def parameter_order(params: Params, work: Work) -> list[str]:
    """b, then W in a backward update; W, then b in a forward one."""
    wanted = [name for forward in work.order for name in (("W", "b") if forward else ("b", "W"))]
    return [name for name in wanted if name in params]


def gradient_of_rows(work: Work, target: Tensor, prediction: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """``E^T A`` and the column sums of ``E = prediction - target`` of these rows, each as often as it counts."""
    E = work.residual(Term(1.0, target, prediction))
    if work.counts is not None:
        E.mul_(work.counts)
    return work.how.direction(E.T, A), column_sums(E)


class Rows:
    """``A``, the rows of a block's input, as the least-squares solver sees it."""

    groups = 1

    def __init__(self, block: Affine, A: Tensor, term: Term, work: Work) -> None:
        self.block, self.A, self.term, self.work = block, A, term, work
        self.weight, self.n_inputs = term.weight, block.n_in
        self.samples = work.samples(len(term.target))
        self._sources = (A, work.counts)
        self.gram_pays = block.steps_on_gram(work.n_rows(len(term.target)))

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        term, work = self.term, self.work
        product, sums = work.own_sum(gradient_of_rows, term.target, term.prediction, self.A)
        if not with_column_sums:
            product, sums = work.total(product, sums)
            return product, sums, None
        product, sums, ones = work.total(product, sums, self._own_column_sums().clone())
        return product, sums, ones

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

        return self.work.cached("own column sums", self._sources, lambda: self.work.own_sum(of_rows, self.A)[0])

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
