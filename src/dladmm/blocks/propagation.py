"""The products with A~ that a graph block needs, each in the cheaper order, on all rows or on some."""

from __future__ import annotations

from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from dladmm.blocks.scratch import Scratch
from dladmm.compute.sparse import SparseMatrix, scipy_matrix

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

    def operand(self, v: Tensor) -> Matrix:
        """V as something with ``.T`` to multiply by: a sparse V, which never changes, gets its transpose stored."""
        if v.layout == torch.strided:
            return v
        if self._sparse_input is None or self._sparse_input[0] is not v:
            self._sparse_input = (v, SparseMatrix.of(scipy_matrix(v), v.dtype, v.device))
        return self._sparse_input[1]

    def pick(self, full: Tensor) -> Tensor:
        """The rows that are variables."""
        return full if self.rows is None else full[self.rows]

    def output(self, V: Matrix, W: Tensor, scratch: Scratch | None = None) -> Tensor:
        """``A~ V W^T`` on all rows; with a scratch the answer is lent from there."""
        scratch = Scratch() if scratch is None else scratch
        n = V.shape[0]
        if self.adjacency is None:
            return _mm(V, W.T, scratch.take("output", W, W.shape[0], n))
        if self._narrows or isinstance(V, SparseMatrix):
            inner = _mm(V, W.T, scratch.take("inner", W, W.shape[0], n))
            return _mm(self.adjacency, inner, scratch.take("output", W, W.shape[0], n))
        inner = _mm(self.adjacency, V, scratch.take("inner", W, W.shape[1], n))
        return _mm(inner, W.T, scratch.take("output", W, W.shape[0], n))

    def change_by(self, d: Tensor, W: Tensor, scratch: Scratch) -> Tensor:
        """``A~ d W^T`` on all rows, for a move d of the rows that are variables."""
        if self.rows is None or self._to_rows is None:
            return self.output(d, W, scratch)
        return self._to_rows.T @ (d @ W.T)

    def weight_gradient(self, V: Matrix, G: Tensor, memory: dict[str, Any]) -> Tensor:
        """``G^T A~ V``, for G on the rows that are variables."""
        if self.rows is not None:
            return _transposed_product(G, self.input_rows(V, memory))
        if self.adjacency is None:
            return _transposed_product(G, V)
        scratch = Scratch.of(memory)
        if self._narrows or isinstance(V, SparseMatrix):
            return _transposed_product(_mm(self.adjacency.T, G, scratch.take("inner", G)), V)
        return G.T @ _mm(self.adjacency, V, scratch.take("inner", V))

    def input_gradient(self, W: Tensor, G: Tensor, scratch: Scratch) -> Tensor:
        """``A~^T G W``, of and on the rows that are variables."""
        out = scratch.take("d", G, W.shape[1])
        if self._within_rows is None:
            return _mm(G, W, out)
        if self._narrows:
            return _mm(_mm(self._within_rows.T, G, scratch.take("inner", G)), W, out)
        return _mm(self._within_rows.T, _mm(G, W, scratch.take("inner", G, W.shape[1])), out)

    def input_rows(self, V: Matrix, memory: dict[str, Any]) -> Matrix:
        """``A~ V`` on the rows that are variables, kept in the memory while V stays."""
        kept: Matrix | None = memory.get("AV")
        if kept is None:
            kept = memory["AV"] = self._form_input_rows(V, Scratch.of(memory))
        return kept

    def _form_input_rows(self, V: Matrix, scratch: Scratch) -> Matrix:
        if self._to_rows is None:
            if self.rows is None:
                return V
            return V[self.rows] if isinstance(V, Tensor) else V.select(self.rows)
        if isinstance(V, Tensor):
            return _mm(self._to_rows, V, scratch.take("AV", V, rows=self._to_rows.shape[0]))
        product = sparse.csr_array(self._to_rows.to_scipy() @ V.to_scipy())
        return SparseMatrix.of(product, V.csr.dtype, V.csr.device)


def _mm(left: Matrix, right: Tensor, out: Tensor) -> Tensor:
    if isinstance(left, SparseMatrix):
        return left.multiply(right, out)
    return torch.mm(left, right, out=out)


def _transposed_product(G: Tensor, V: Matrix) -> Tensor:
    """``G^T V``."""
    return G.T @ V if isinstance(V, Tensor) else (V.T @ G).T.contiguous()
