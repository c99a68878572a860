"""Sparse matrices whose products are deterministic, on the CPU and on a GPU.

Everything is CSR with the transpose stored beside it, so that no product is a scatter. On a GPU torch asks cuSPARSE for
an algorithm that adds in a different order from run to run, so there a row is summed by a kernel written by hand, as
fast as cuSPARSE, or by ``embedding_bag``, which is the same product. On the CPU the product is
torch's (MKL), but that of float32 with many columns is ``embedding_bag`` too: it asks for rows before it needs them,
where MKL waits for each as soon as they lie beyond the caches.
"""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.scipy_sparse import sparse
from dladmm.compute.chunks import slices
from dladmm.compute.execution import CACHED, on_gpu
from dladmm.compute.hand_written import HandWritten

MANY_COLUMNS = 16
"""From so many on a row of float32 fills a line of the cache, and waiting for it is what a product on a CPU does."""

LONGEST_PIECE = 512
"""A GPU thread adds one entry after the other: longer rows are summed in pieces first."""

_ROW_SUMS_BY_HAND = HandWritten("row_sums")


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A fixed sparse matrix and its transpose: ``M @ dense`` and ``M.T @ dense``, as with a dense tensor."""

    csr: Tensor
    transposed: Tensor

    @classmethod
    def of(
        cls, matrix: sparse.csr_array, dtype: torch.dtype, device: torch.device, *, symmetric: bool = False
    ) -> SparseMatrix:
        csr = csr_tensor(matrix, dtype, device)
        return cls(csr, csr if symmetric else csr_tensor(matrix.T, dtype, device))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.csr.shape
        return rows, columns

    @cached_property
    def T(self) -> SparseMatrix:
        return SparseMatrix(self.transposed, self.csr)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.multiply(dense, dense.new_empty(self.csr.shape[0], dense.shape[1]))

    def multiply(self, dense: Tensor, out: Tensor) -> Tensor:
        """``M @ dense``, on the CPU written into ``out``; torch.mm would clear and copy a buffer of its own first."""
        if dense.is_cuda:
            return self._row_sums @ dense
        if dense.shape[1] >= MANY_COLUMNS and dense.dtype == self.csr.dtype == out.dtype == torch.float32:
            return _write_row_sums(self.csr, dense.contiguous(), out)
        return torch.addmm(out, self.csr, dense, beta=0, out=out)

    @cached_property
    def _row_sums(self) -> RowSums:
        return RowSums(self.csr)

    def with_values(self, values: Tensor, transposed: Tensor) -> SparseMatrix:
        """The same places with other entries; ``transposed`` are those of the transpose, in its own order."""
        made = SparseMatrix(_with_values(self.csr, values), _with_values(self.transposed, transposed))
        if values.is_cuda:  # where rows begin is known, and asking again would wait for the GPU
            made.__dict__["_row_sums"] = self._row_sums.with_values(values)
            made.T.__dict__["_row_sums"] = self.T._row_sums.with_values(transposed)
        return made

    def to_scipy(self) -> sparse.csr_array:
        return scipy_matrix(self.csr)

    def select(self, rows: Tensor, columns: Tensor | None = None) -> SparseMatrix:
        """The sub-matrix of these rows (and columns)."""
        part = self.to_scipy()[rows.cpu().numpy()]
        part = part if columns is None else part[:, columns.cpu().numpy()]
        return SparseMatrix.of(sparse.csr_array(part), self.csr.dtype, self.csr.device)


class RowSums:
    """``M @ dense`` as weighted sums of rows, in the order in which the entries stand."""

    def __init__(self, csr: Tensor) -> None:
        starts = csr.crow_indices()
        self.columns, self.values = csr.col_indices(), csr.values()
        lengths = (starts[1:] - starts[:-1]).cpu()
        pieces = torch.ceil(lengths / LONGEST_PIECE).long().clamp_min(1)
        self.starts, self.piece_starts, self.order = starts, None, None
        if len(pieces) and int(pieces.max()) > 1:
            first = torch.zeros(len(pieces) + 1, dtype=torch.long)
            first[1:] = pieces.cumsum(0)
            place = torch.arange(int(first[-1])) - first[:-1].repeat_interleave(pieces)
            begins = starts[:-1].cpu().repeat_interleave(pieces) + place * LONGEST_PIECE
            ends = torch.cat([begins, starts[-1:].cpu()])
            self.starts = ends.to(starts)
            self.piece_starts = first.to(starts)
            self.order = torch.arange(len(begins)).to(starts)

    def with_values(self, values: Tensor) -> RowSums:
        made = copy(self)
        made.values = values
        return made

    def __matmul__(self, dense: Tensor) -> Tensor:
        if not len(self.columns):  # no entry at all: a rank whose nodes have no neighbour elsewhere
            return dense.new_zeros(len(self.starts) - 1, dense.shape[1])
        sums = _row_sums(self.columns, self.values, self.starts, dense.contiguous())
        if self.piece_starts is None or self.order is None:
            return sums
        return _row_sums(self.order, None, self.piece_starts, sums)


def _row_sums(columns: Tensor, values: Tensor | None, starts: Tensor, dense: Tensor) -> Tensor:
    """Row i: the sum of ``values[e] dense[columns[e]]`` over the entries e from ``starts[i]`` to ``starts[i + 1]``."""
    sums = _ROW_SUMS_BY_HAND(columns, values, starts, dense) if on_gpu(dense) else None
    if sums is None:
        sums = F.embedding_bag(
            columns, dense, starts, mode="sum", per_sample_weights=values, include_last_offset=True
        )
    return sums


def _write_row_sums(csr: Tensor, dense: Tensor, out: Tensor) -> Tensor:
    """``M @ dense`` as weighted sums of rows, some rows at a time: ``embedding_bag`` cannot be given its answer's
    memory, and fresh pages for all of it would cost as much as half of the product."""
    starts, columns, values = csr.crow_indices(), csr.col_indices(), csr.values()
    at = starts.numpy()  # whose entries torch need not be asked for one by one
    for rows in slices(out.shape[0], max(1, CACHED // dense.shape[1])):
        first, last = int(at[rows.start]), int(at[rows.stop])
        if first == last:
            out[rows] = 0.0
            continue
        out[rows] = F.embedding_bag(
            columns[first:last],
            dense,
            starts[rows.start : rows.stop + 1] - first,
            mode="sum",
            per_sample_weights=values[first:last],
            include_last_offset=True,
        )
    return out


def csr_tensor(matrix: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A scipy matrix as a torch CSR tensor with 32-bit indices."""
    ordered = sparse.csr_array(matrix)
    ordered.sort_indices()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        return torch.sparse_csr_tensor(
            _fresh(ordered.indptr, torch.int32),
            _fresh(ordered.indices, torch.int32),
            _fresh(ordered.data, dtype),
            size=ordered.shape,
            check_invariants=True,
            device=device,
        )


def _with_values(csr: Tensor, values: Tensor) -> Tensor:
    """The same places with other entries."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(
            csr.crow_indices(), csr.col_indices(), values, size=tuple(csr.shape), check_invariants=False
        )


def _fresh(values: Any, dtype: torch.dtype) -> Tensor:
    """A copy with strides of its own: those of an empty numpy array are 0, which torch refuses in sparse tensors."""
    return torch.empty(len(values), dtype=dtype).copy_(torch.from_numpy(values))


def scipy_matrix(x: Tensor) -> sparse.csr_array:
    """A torch sparse tensor (COO or CSR) as a scipy CSR matrix."""
    x = x.detach().cpu()
    rows, columns = x.shape
    if x.layout == torch.sparse_csr:
        parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
        return sparse.csr_array(parts, shape=(rows, columns))
    coo = x.to_sparse(layout=torch.sparse_coo).coalesce()
    row, column = coo.indices().numpy()
    return sparse.csr_array((coo.values().numpy(), (row, column)), shape=(rows, columns))
