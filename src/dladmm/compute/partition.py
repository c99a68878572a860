"""Which rank gets which nodes of a graph: few edges between ranks, and about as many nodes on each.

METIS does it where pymetis is installed. Without it nodes are put in an order in which neighbours stand close
together (reverse Cuthill-McKee), cut into equal pieces, and moved over the borders while that cuts fewer edges.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import Communicator

PASSES = 20
"""Rounds of moving nodes over the borders, at most."""

SLACK = 1.05
"""A part may have this many times its even share of the nodes."""


@dataclass(frozen=True)
class Partition:
    """The rank of every node, and how good that is: ``str()`` says it."""

    owner: NDArray[np.int64]
    size: int
    method: str
    edges: int
    cut: int
    halo: tuple[int, ...]

    @classmethod
    def of(cls, matrix: sparse.csr_array, owner: NDArray[Any], size: int, method: str) -> Partition:
        """The quality of a partition of the graph whose edges are the off-diagonal entries of ``matrix``."""
        entries = sparse.coo_array(matrix)
        row, column = entries.coords
        apart = owner[row] != owner[column]
        # Nodes of other ranks whose rows a rank receives
        halo = tuple(len(np.unique(column[apart & (owner[row] == rank)])) for rank in range(size))
        edges = int((row != column).sum()) // 2
        return cls(owner.astype(np.int64), size, method, edges, int(apart.sum()) // 2, halo)

    def nodes(self, rank: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.owner == rank)

    def __str__(self) -> str:
        counts = np.bincount(self.owner, minlength=self.size)
        share = 100 * self.cut / max(1, self.edges)
        return (
            f"{self.size} parts by {self.method}: {self.cut:,} of {self.edges:,} edges cut ({share:.1f} %), "
            f"{counts.min():,} to {counts.max():,} nodes and {min(self.halo):,} to {max(self.halo):,} halo rows a rank"
        )


def partitioned(matrix: sparse.csr_array, comm: Communicator, owner: Any = None) -> Partition:
    """The partition that rank 0 makes, on every rank; ``owner``, the rank of every node, is one of the user's own."""
    n = matrix.shape[0]
    if owner is not None:
        given = checked_owner(owner, n)
        if given.max() >= comm.size:
            raise InputError(f"partition must hold a rank 0..{comm.size - 1} for each of the {n} nodes.")
        return Partition.of(matrix, given, comm.size, "the given ranks")
    shared = torch.zeros(n, dtype=torch.int64, device=getattr(comm, "device", torch.device("cpu")))
    method = ""
    if comm.rank == 0:
        found, method = parts_of(matrix, comm.size)
        shared.copy_(torch.from_numpy(found))
    method = comm.texts(method)[0]
    comm.from_first(shared)
    return Partition.of(matrix, shared.cpu().numpy(), comm.size, method)


def checked_owner(owner: Any, n_nodes: int) -> NDArray[Any]:
    """The part of every node, as it was given."""
    given = np.asarray(owner)
    if given.shape != (n_nodes,) or given.dtype.kind not in "iu" or given.min() < 0:
        raise InputError(
            f"partition must hold the number of a rank or cluster, 0 or more, for each of the {n_nodes} nodes."
        )
    return given


def parts_of(matrix: sparse.csr_array, size: int, use_metis: bool = True) -> tuple[NDArray[np.int64], str]:
    """A part 0..size-1 for every node, and who made it."""
    edges = sparse.csr_array(matrix, copy=True)
    edges.setdiag(0)
    edges.eliminate_zeros()
    edges.data = np.ones_like(edges.data)
    if use_metis and size > 1:
        try:
            pymetis = importlib.import_module("pymetis")
        except ImportError:
            pass
        else:
            _, member = pymetis.part_graph(size, xadj=edges.indptr.tolist(), adjncy=edges.indices.tolist())
            return np.asarray(member, dtype=np.int64), "METIS"
    return refined(edges, cut_in_order(edges, size), size), "Cuthill-McKee order and border moves"


MOST_COUNTS = 20_000_000
"""Counts of neighbours by node and part that border moves may make: above, an order alone is cut."""


def clusters_of(matrix: sparse.csr_array, size: int) -> NDArray[np.int64]:
    """A cluster 0..size-1 for every node; without border moves, which count, for very many nodes and clusters."""
    if size <= 1:
        return np.zeros(matrix.shape[0], dtype=np.int64)
    if matrix.shape[0] * size > MOST_COUNTS:
        return cut_in_order(matrix, size)
    return parts_of(matrix, size)[0]


def cut_in_order(edges: sparse.csr_array, size: int) -> NDArray[np.int64]:
    """Equal pieces of an order in which neighbours stand close together."""
    from scipy.sparse import csgraph  # not for runs without graphs

    n = edges.shape[0]
    order = csgraph.reverse_cuthill_mckee(sparse.csr_matrix(edges), symmetric_mode=True)
    owner = np.empty(n, dtype=np.int64)
    owner[order] = np.arange(n) * size // max(n, 1)
    return owner


def refined(edges: sparse.csr_array, owner: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Nodes moved to where most of their neighbours are, half of the willing at a time, while that cuts fewer edges."""
    n = len(owner)
    limit = int(np.ceil(SLACK * n / size))
    rng = np.random.default_rng(0)
    row, column = sparse.coo_array(edges).coords
    best, fewest = owner, int((owner[row] != owner[column]).sum())
    for _ in range(PASSES):
        inside = sparse.csr_array((np.ones(n), (np.arange(n), best)), shape=(n, size))
        neighbours = np.asarray((edges @ inside).todense())
        wanted = neighbours.argmax(1)
        gain = neighbours[np.arange(n), wanted] - neighbours[np.arange(n), best]
        willing = np.flatnonzero((gain > 0) & (rng.random(n) < 0.5))
        trial, counts = best.copy(), np.bincount(best, minlength=size)
        for node in willing[np.argsort(-gain[willing], kind="stable")]:
            if counts[wanted[node]] < limit:
                counts[trial[node]] -= 1
                counts[wanted[node]] += 1
                trial[node] = wanted[node]
        cut = int((trial[row] != trial[column]).sum())
        if cut < fewest:
            best, fewest = trial, cut
    return best
