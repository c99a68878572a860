"""A sparse matrix whose rows are spread over ranks: products exchange the boundary rows they need.

A rank has the rows of its own nodes. Their columns are its own nodes and the *halo*: nodes of other ranks that are
neighbours of its own. ``M @ V`` first fetches the halo's rows of V (all-to-all); ``M.T @ G`` makes the halo's part of
the sum here and returns it to the nodes' owners, which add what they are sent. Both add in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import Communicator
from dladmm.compute.partition import Partition
from dladmm.compute.sparse import SparseMatrix

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Halo:
    """What a rank sends and receives in an exchange of boundary rows.

    ``sent`` are its own rows in the order in which they are sent, rank after rank; ``spread`` (own rows x sent rows)
    adds what comes back to them.
    """

    comm: Communicator
    sent: Tensor
    to_each: tuple[int, ...]
    from_each: tuple[int, ...]
    spread: SparseMatrix

    def fetch(self, own: Tensor) -> Tensor:
        """The rows of own nodes, then those of the halo."""
        rows = own.index_select(0, self.sent)
        return torch.cat([own, self.comm.exchange(rows, self.to_each, self.from_each)])

    def give_back(self, sums: Tensor) -> Tensor:
        """Sums for own nodes and for the halo, as sums for own nodes of what all ranks have for them."""
        n_own = sums.shape[0] - sum(self.from_each)
        returned = self.comm.exchange(sums[n_own:].contiguous(), self.from_each, self.to_each)
        return sums[:n_own] + self.spread @ returned


class HaloMatrix(SparseMatrix):
    """The rows of one rank, as a matrix that multiplies what lies on all ranks."""

    def __init__(self, local: SparseMatrix, halo: Halo, n_own: int, picked: Tensor | None = None) -> None:
        object.__setattr__(self, "csr", local.csr)
        object.__setattr__(self, "transposed", local.transposed)
        object.__setattr__(self, "local", local)
        object.__setattr__(self, "halo", halo)
        object.__setattr__(self, "n_own", n_own)
        object.__setattr__(self, "picked", picked)

    local: SparseMatrix
    halo: Halo
    n_own: int
    picked: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.local.shape[0], self.n_own

    @property
    def T(self) -> SparseMatrix:
        return _Adjoint(self)

    def multiply(self, dense: Tensor, out: Tensor) -> Tensor:
        return self.local.multiply(self.halo.fetch(dense), out)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.multiply(dense, dense.new_empty(self.local.shape[0], dense.shape[1]))

    def select(self, rows: Tensor, columns: Tensor | None = None) -> SparseMatrix:
        """These of the own rows; with columns the adjoint's answer is that of those own rows alone."""
        return HaloMatrix(self.local.select(rows), self.halo, self.n_own, columns)


class _Adjoint(SparseMatrix):
    """``M.T`` of such a matrix."""

    def __init__(self, matrix: HaloMatrix) -> None:
        object.__setattr__(self, "csr", matrix.transposed)
        object.__setattr__(self, "transposed", matrix.csr)
        object.__setattr__(self, "matrix", matrix)

    matrix: HaloMatrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.n_own, self.matrix.local.shape[0]

    def multiply(self, dense: Tensor, out: Tensor) -> Tensor:
        return out.copy_(self @ dense)

    def __matmul__(self, dense: Tensor) -> Tensor:
        whole = self.matrix.halo.give_back(self.matrix.local.T @ dense)
        return whole if self.matrix.picked is None else whole[self.matrix.picked]


def halo_matrix(
    matrix: sparse.csr_array,
    partition: Partition,
    comm: Communicator,
    dtype: torch.dtype,
    device: torch.device,
) -> HaloMatrix:
    """This rank's rows of a matrix that every rank knows whole."""
    nodes = [partition.nodes(rank) for rank in range(partition.size)]
    own = nodes[comm.rank]
    needed = [_outside(matrix, nodes[rank], partition.owner, rank) for rank in range(partition.size)]
    halo = needed[comm.rank]
    place = np.full(matrix.shape[0], -1, dtype=np.int64)
    place[own] = np.arange(len(own))
    place[halo] = len(own) + np.arange(len(halo))
    rows = sparse.coo_array(matrix[own])
    shape = (len(own), len(own) + len(halo))
    local = sparse.csr_array((rows.data, (rows.coords[0], place[rows.coords[1]])), shape=shape)
    mine = [wanted[partition.owner[wanted] == comm.rank] for wanted in needed]
    sent = place[np.concatenate(mine)] if mine else np.empty(0, dtype=np.int64)
    spread = sparse.csr_array((np.ones(len(sent)), (sent, np.arange(len(sent)))), shape=(len(own), len(sent)))
    from_each = np.bincount(partition.owner[halo], minlength=partition.size)
    plan = Halo(
        comm,
        torch.from_numpy(sent).to(device),
        tuple(map(len, mine)),
        tuple(from_each.tolist()),
        SparseMatrix.of(spread, dtype, device),
    )
    return HaloMatrix(SparseMatrix.of(local, dtype, device), plan, len(own))


def _outside(matrix: sparse.csr_array, nodes: Ids, owner: Ids, rank: int) -> Ids:
    """The neighbours of a rank's nodes that belong to others, by owner and then by number."""
    columns: Any = np.unique(matrix[nodes].indices)
    others = columns[owner[columns] != rank].astype(np.int64)
    found: Ids = others[np.argsort(owner[others], kind="stable")]
    return found
