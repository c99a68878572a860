"""Builds sparse matrices, labels and edge lists from the arrays of a file, after checking them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import DataError
from dladmm.base.scipy_sparse import sparse

MAX_SIDE = 2**24  #: rows or columns a matrix in a file may declare


def csr_from(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int], source: str
) -> sparse.csr_array:
    """A float32 csr_array with sorted columns and no stored zeros; raises DataError if the arrays are inconsistent."""

    def need(holds: bool, problem: str) -> None:
        if not holds:
            raise DataError(f"{source}: {problem}; the file is damaged, fetch it again")

    rows, columns = shape
    need(0 <= rows <= MAX_SIDE and 0 <= columns <= MAX_SIDE, f"a matrix of {rows} x {columns}")
    need(data.ndim == indices.ndim == indptr.ndim == 1, "sparse rows that are not vectors")
    need(indices.dtype.kind in "iu" and indptr.dtype.kind in "iu", "row pointers or columns are not integers")
    need(len(indptr) == rows + 1, f"{len(indptr)} row pointers for {rows} rows")
    need(len(data) == len(indices), f"{len(data)} values for {len(indices)} columns")
    need(int(indptr[0]) == 0 and int(indptr[-1]) == len(data), "row pointers that do not span the values")
    need(bool(np.all(indptr[1:] >= indptr[:-1])), "row pointers that go back")
    if len(indices):
        need(int(indices.min()) >= 0 and int(indices.max()) < columns, "a column that does not exist")
    need(bool(np.isfinite(data).all()), "a value that is not finite")
    with np.errstate(over="ignore"):
        values = data.astype(np.float32)
    need(bool(np.isfinite(values).all()), "a value too large for float32")
    matrix = sparse.csr_array((values, indices.astype(np.int32), indptr.astype(np.int32)), shape=shape)
    matrix.sort_indices()
    matrix.eliminate_zeros()
    need(bool(matrix.has_canonical_format), "a column twice in one row")
    return matrix


def shape_from(array: NDArray[Any], source: str) -> tuple[int, int]:
    """A matrix shape from an integer array of two entries."""
    if array.shape != (2,) or array.dtype.kind not in "iu":
        raise DataError(f"{source}: a matrix shape of {array.shape} {array.dtype}; two integers are needed")
    return int(array[0]), int(array[1])


def labels_from(array: NDArray[Any], nodes: int, source: str, *, most: int = 10_000) -> NDArray[np.int64]:
    """The labels as int64 of shape (nodes,), checked to be in 0..most-1."""
    if array.shape != (nodes,) or array.dtype.kind not in "iu":
        raise DataError(
            f"{source}: labels of shape {array.shape}, {array.dtype}; {nodes} integers are needed"
        )
    if nodes and not 0 <= int(array.min()) <= int(array.max()) < most:
        raise DataError(
            f"{source}: labels from {int(array.min())} to {int(array.max())}; 0..{most - 1} may be"
        )
    return array.astype(np.int64)


def undirected(row: NDArray[Any], col: NDArray[Any], nodes: int, source: str) -> torch.Tensor:
    """PyG's `edge_index` (2, E): both directions of every edge, sorted, without duplicates and self loops."""
    if len(row):
        low, high = min(int(row.min()), int(col.min())), max(int(row.max()), int(col.max()))
        if not 0 <= low <= high < nodes:
            raise DataError(f"{source}: an edge names a node outside 0..{nodes - 1}; the file is damaged")
    other = row != col
    row, col = row[other].astype(np.int64), col[other].astype(np.int64)
    keys = np.unique(np.concatenate([row * nodes + col, col * nodes + row]))
    if not len(keys):
        return torch.zeros(2, 0).long()
    return torch.from_numpy(np.stack([keys // nodes, keys % nodes]))
