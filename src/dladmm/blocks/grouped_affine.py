"""Affine maps side by side: every group of columns has weights of its own, as copies of a network have."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.affine import Affine, parameter_order
from dladmm.blocks.base import Block, Support
from dladmm.compute.passes import column_sums, squared_norm, total_square
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.least_squares import update_linear_parameters
from dladmm.solvers.metric import Metric
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class GroupedAffine(Block):
    """``g((W, b), a)_k = a_k W_k^T + b_k`` for the groups k of columns of a: a block-diagonal :class:`Affine`.

    v is (N, groups * n_in), the output (N, groups * n_out); W is (groups * n_out, n_in), group after group. Products
    are batched over the groups, so no entry outside the diagonal is ever formed.
    """

    support = Support.COUNTS | Support.RANKS | Support.RECORDING
    linear = True
    penalised = ("W",)

    def __init__(self, groups: int, n_in: int, n_out: int) -> None:
        if min(groups, n_in, n_out) < 1:
            raise InputError(
                f"a grouped affine block needs groups, inputs and outputs, got {groups} of {n_in} -> {n_out}."
            )
        self.groups, self.inputs, self.outputs = groups, n_in, n_out
        self.n_in: int = groups * n_in
        self.n_out: int = groups * n_out

    def __repr__(self) -> str:
        return f"GroupedAffine({self.groups} x {self.inputs} -> {self.outputs})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        W = torch.randn(self.groups * self.outputs, self.inputs, generator=generator, dtype=torch.float64)
        W *= scale * math.sqrt(2.0 / self.inputs)
        return {"W": W, "b": torch.zeros(self.groups * self.outputs, dtype=torch.float64)}

    def split(self, v: Tensor) -> Tensor:
        """Columns as (groups, N, columns of a group)."""
        return v.view(len(v), self.groups, -1).transpose(0, 1)

    def join(self, parts: Tensor) -> Tensor:
        """(groups, N, columns of a group) as (N, all columns)."""
        return parts.transpose(0, 1).reshape(parts.shape[1], -1).contiguous()

    def weights(self, W: Tensor) -> Tensor:
        """W as (groups, n_out, n_in)."""
        return W.view(self.groups, self.outputs, self.inputs)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        b = params["b"].view(self.groups, 1, self.outputs)
        return self.join(torch.baddbmm(b, self.split(v), self.weights(params["W"]).mT))

    def to_module(self, params: Params) -> nn.Module:
        """An ordinary dense layer, zero outside the diagonal."""
        return Affine(self.n_in, self.n_out).to_module(self.dense(params))

    def dense(self, params: Params) -> Params:
        """The parameters of the same map as one :class:`Affine`."""
        W: Tensor = torch.block_diag(*self.weights(params["W"]))  # type: ignore[no-untyped-call]
        return {"W": W, "b": params["b"]}

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Algorithm 2, lines 7, 10, 12, 15, 17 and 21: the groups' least-squares problems, solved side by side."""
        operator = GroupedRows(self, v, term, work)
        return update_linear_parameters(parameter_order(params, work), params, operator, penalty, work)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """Algorithm 2, lines 5 and 19, by the dense block."""
        return Affine(self.n_in, self.n_out).update_input(self.dense(params), v, anchor, term, work)

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        product, sums, _ = GroupedRows(self, v, term, work).gradient(False)
        slope = term.weight * product.view(params["W"].shape)
        return squared_norm(penalty.stationarity(params["W"], slope)) + squared_norm(term.weight * sums)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual(), work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return self.join(torch.bmm(self.split(gradient), self.weights(params["W"])))

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.forward(moves, v)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self.join(torch.bmm(self.split(move), self.weights(params["W"]).mT))

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> GroupedRows:
        return GroupedRows(self, v, Term(1.0, prediction, prediction), work)


class GroupedRows:
    """The rows of every group, as the least-squares solver sees them."""

    gram_pays = False

    def __init__(self, block: GroupedAffine, v: Tensor, term: Term, work: Work) -> None:
        self.block, self.v, self.term, self.work = block, v, term, work
        self.weight, self.groups, self.n_inputs = term.weight, block.groups, block.inputs
        self.samples = work.samples(len(v))

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.adjoint(self.work.residual(self.term), with_column_sums)

    def adjoint(self, E: Tensor, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        E = self.work.counted(E)
        own = torch.bmm(self.block.split(E).mT, self.block.split(self.v))
        more = [self._own_column_sums()] if with_column_sums else []
        product, sums, *ones = self.work.total(own, column_sums(E), *more)
        return product, sums, ones[0] if ones else None

    def add_direction(
        self, running: Tensor, keep: float, E: Tensor, decay: Tensor | None, metric: Metric
    ) -> None:
        A, E = self.block.split(self.v), self.block.split(self.work.counted(E))
        if decay is None and self.work.shards is None and E.shape[1] < running.shape[1]:
            running.baddbmm_(E.mT, metric.of_rows(A), beta=keep, alpha=1 - keep)
            return
        product, sums = self.work.total(torch.bmm(E.mT, A), E.sum(1))
        metric.add_to(running, keep, product if decay is None else product + decay, sums)

    def mean(self) -> Tensor:
        return self.column_sums() / self.samples

    def moments(self, centre: Tensor | None, sketch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert sketch is None  # the metrics of groups are full
        A = self.block.split(self.v)
        centred = A if centre is None else A - centre[:, None]
        counts = self.work.counts
        shares = (centred if counts is None else centred * counts) / self.samples
        own = torch.bmm(centred.mT, shares)
        if centre is None:
            return self.work.total(own)[0], None
        second, first = self.work.total(own, shares.sum(1))
        return second, first

    def gram(self) -> Tensor:
        counted = self.block.split(self.work.counted(self.v))
        return self.work.total(torch.bmm(self.block.split(self.v).mT, counted).double())[0]

    def column_sums(self) -> Tensor:
        return self.work.total(self._own_column_sums())[0]

    def _own_column_sums(self) -> Tensor:
        return column_sums(self.v, self.work.counts).view(self.groups, self.n_inputs)

    def products(self, heading: Tensor) -> Tensor:
        return self.block.push_input({"W": heading}, self.v, self.v, self.term.prediction)

    def squared(self, products: Tensor) -> Tensor:
        return self.work.total(total_square(self.work.how, products, self.work.counts))[0]

    def advance(self, products: Tensor | None, multiple: Tensor | None, shift: Tensor | None) -> None:
        multiple = None if multiple is None or products is None else multiple.to(products.dtype)
        self.work.advance(self.term, products, multiple, shift)
