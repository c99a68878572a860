"""The products with A~ that a graph block needs, each in the cheaper order, on all rows or on some."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dladmm.base.scipy_sparse import sparse
from dladmm.blocks.affine_rows import Rows
from dladmm.compute.sparse import SparseMatrix, scipy_matrix
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Term

Matrix = Tensor | SparseMatrix


class Propagation:
    """``A~ V W^T`` and what its derivatives need; A~ is the identity where ``adjacency`` is None.

    ``rows`` are the nodes whose entries of V_l are variables, None for all. Every sparse product has as few columns as
    the shapes allow: n_out or n_in.
    """

    def __init__(self, n_in: int, n_out: int, adjacency: SparseMatrix | None, rows: Tensor | None) -> None:
        self.adjacency, self.rows = adjacency, rows
        self._narrows = n_out <= n_in
        self._sparse_input: tuple[Tensor, SparseMatrix] | None = None
        self._to_rows = self._within_rows = adjacency
        if adjacency is not None and rows is not None:
            self._to_rows, self._within_rows = adjacency.select(rows), adjacency.select(rows, rows)

    def operand(self, v: Matrix) -> Matrix:
        """V as something with ``.T`` to multiply by: a sparse V, which never changes, gets its transpose stored."""
        if isinstance(v, SparseMatrix) or v.layout == torch.strided:
            return v
        if self._sparse_input is None or self._sparse_input[0] is not v:
            self._sparse_input = (v, SparseMatrix.of(scipy_matrix(v), v.dtype, v.device))
        return self._sparse_input[1]

    def pick(self, full: Tensor) -> Tensor:
        """The rows that are variables."""
        return full if self.rows is None else full[self.rows]

    def output(self, V: Matrix, W: Tensor, work: Work | None = None, out: Tensor | None = None) -> Tensor:
        """``A~ V W^T`` on all rows; with ``work`` the answer is lent from its buffers, ``out`` is memory for it."""
        n = V.shape[0]
        out = _buffer(work, "output", W, W.shape[0], n) if out is None else out
        if self.adjacency is None:
            return _mm(V, W.T, out)
        if self._narrows or isinstance(V, SparseMatrix):
            inner = _mm(V, W.T, _buffer(work, "inner", W, W.shape[0], n))
            return _mm(self.adjacency, inner, out)
        inner = _mm(self.adjacency, V, _buffer(work, "inner", W, W.shape[1], n))
        return _mm(inner, W.T, out)

    def output_rows(self, V: Matrix, W: Tensor, work: Work) -> Tensor:
        """``A~ V W^T`` on the rows that are variables, zero on the others."""
        assert self.rows is not None
        out = _buffer(work, "output", W, W.shape[0], V.shape[0]).zero_()
        return out.index_copy_(0, self.rows, self.input_rows(V, work) @ W.T)

    def change_by(self, d: Tensor, W: Tensor, work: Work) -> Tensor:
        """``A~ d W^T`` on all rows, for a move d of the rows that are variables."""
        if self.rows is None or self._to_rows is None:
            return self.output(d, W, work)
        return self._to_rows.T @ (d @ W.T)

    def weight_gradient(self, V: Matrix, G: Tensor, work: Work | None = None) -> Tensor:
        """``G^T A~ V``, for G on the rows that are variables."""
        if self.rows is not None:
            return _transposed_product(G, self.input_rows(V, work))
        if self.adjacency is None:
            return _transposed_product(G, V)
        if self._narrows or isinstance(V, SparseMatrix):
            inner = _mm(self.adjacency.T, G, _buffer(work, "inner", G, G.shape[1], len(G)))
            return _transposed_product(inner, V)
        return G.T @ _mm(self.adjacency, V, _buffer(work, "inner", V, V.shape[1], V.shape[0]))

    def input_gradient(self, W: Tensor, G: Tensor, work: Work | None = None) -> Tensor:
        """``A~^T G W``, of and on the rows that are variables."""
        out = _buffer(work, "d", G, W.shape[1], len(G))
        if self._within_rows is None:
            return _mm(G, W, out)
        if self._narrows:
            inner = _mm(self._within_rows.T, G, _buffer(work, "inner", G, G.shape[1], len(G)))
            return _mm(inner, W, out)
        inner = _mm(G, W, _buffer(work, "inner", G, W.shape[1], len(G)))
        return _mm(self._within_rows.T, inner, out)

    def input_rows(self, V: Matrix, work: Work | None = None) -> Matrix:
        """``A~ V`` on the rows that are variables, kept while V stays."""
        if work is None:
            return self._form_input_rows(V, None)
        return work.cached("input rows", (V,), lambda: self._form_input_rows(V, work))

    def _form_input_rows(self, V: Matrix, work: Work | None) -> Matrix:
        if self._to_rows is None:
            if self.rows is None:
                return V
            return V[self.rows] if isinstance(V, Tensor) else V.select(self.rows)
        if isinstance(V, Tensor):
            out = _buffer(work, "input rows", V, V.shape[1], self._to_rows.shape[0])
            return _mm(self._to_rows, V, out)
        product = sparse.csr_array(self._to_rows.to_scipy() @ V.to_scipy())
        return SparseMatrix.of(product, V.csr.dtype, V.csr.device)


class Propagated(torch.autograd.Function):
    """``A~ V W^T`` with the products the graph blocks have: deterministic, each in the cheaper order."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, V: Matrix, graph: Propagation) -> Tensor:
        ctx.W, ctx.V, ctx.graph = W.detach(), V.detach() if isinstance(V, Tensor) else V, graph
        return graph.output(ctx.V, ctx.W)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        G = gradients[0].contiguous()
        of_W = ctx.graph.weight_gradient(ctx.V, G)
        of_V = ctx.graph.input_gradient(ctx.W, G) if ctx.needs_input_grad[1] else None
        return of_W, of_V, None


def _buffer(work: Work | None, name: str, like: Tensor, columns: int, rows: int) -> Tensor:
    """A buffer of (rows, columns), a fresh tensor where there is no work."""
    if work is None:
        return like.new_empty(rows, columns)
    return work.buffer(name, like, columns, rows)


def _mm(left: Matrix, right: Tensor, out: Tensor) -> Tensor:
    if isinstance(left, SparseMatrix):
        return left.multiply(right, out)
    return torch.mm(left, right, out=out)


def _transposed_product(G: Tensor, V: Matrix) -> Tensor:
    """``G^T V``."""
    return G.T @ V if isinstance(V, Tensor) else (V.T @ G).T.contiguous()


class PropagatedRows(Rows):
    """``A~ V`` behind an activation with the derivative ``slope`` (None for the identity)."""

    def __init__(self, n_inputs: int, A: Tensor, term: Term, work: Work, slope: Tensor | None) -> None:
        super().__init__(n_inputs, A, term, work)
        self.slope = slope

    def as_rows(self, E: Tensor) -> Tensor:
        return E if self.slope is None else E * self.slope
