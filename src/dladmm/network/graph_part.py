"""A graph distributed over ranks: each rank provides its own nodes and the edges that touch them.

Degrees and features of the halo (neighbours on other ranks) are fetched from their owners once, before training; after
that a part is the same as one cut from a whole graph (:mod:`dladmm.network.graph_shard`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import Communicator, Shards
from dladmm.compute.halo import Halo, HaloMatrix
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.graph_shard import OwnGraph

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class GraphPart:
    """One rank's part of a graph, as returned by a function ``data(rank, world)`` given to :func:`dladmm.train_graph`.

    Parameters
    ----------
    owner : array of shape (n_nodes,)
        The rank of every node of the whole graph; may be a memmap.
    edge_index : array of shape (2, E)
        Every edge that touches a node of this rank, in the node numbers of the whole graph.
    x : array of shape (n_own, n_features)
        Dense features of this rank's nodes, in the order of their numbers.
    y : array of shape (n_own,)
        Class indices of this rank's nodes.
    train_mask : array of shape (n_own,)
        Which of this rank's nodes are labelled.
    n_classes : int
    val_mask, test_mask : array of shape (n_own,), optional
    """

    owner: Any
    edge_index: Any
    x: Any
    y: Any
    train_mask: Any
    n_classes: int
    val_mask: Any = None
    test_mask: Any = None


def own_part(part: GraphPart, comm: Communicator, dtype: torch.dtype, device: torch.device) -> OwnGraph:
    """This rank's part with its halo; an error on one rank is raised on all."""
    with comm.together():
        nodes, owner, rows = _checked(part, comm)
    n_own = len(nodes)
    columns: Ids = np.unique(rows.indices).astype(np.int64)
    others = columns[owner[columns] != comm.rank]
    halo = others[np.argsort(owner[others], kind="stable")]
    from_each, to_each = _counts(rows, halo, owner, comm)
    requested = comm.exchange(torch.from_numpy(halo).to(_device_of(comm)), from_each, to_each).cpu().numpy()
    sent = torch.from_numpy(np.searchsorted(nodes, requested))
    spread = sparse.csr_array(
        (np.ones(len(sent)), (sent.numpy(), np.arange(len(sent)))), shape=(n_own, len(sent))
    )

    def with_halo(own: Tensor) -> Tensor:
        """Rows of this rank's nodes, followed by the rows of its halo from the other ranks."""
        received = comm.exchange(own.index_select(0, sent).to(_device_of(comm)), to_each, from_each)
        return torch.cat([own, received.cpu()])

    local_index = np.full(len(owner), -1, dtype=np.int64)
    local_index[nodes], local_index[halo] = np.arange(n_own), n_own + np.arange(len(halo))
    entries = sparse.coo_array(rows)
    own = np.concatenate([entries.coords[0], np.arange(n_own)])  # A + I
    near = np.concatenate([local_index[entries.coords[1]], np.arange(n_own)])
    degree = with_halo(torch.from_numpy(1.0 + np.diff(rows.indptr))).numpy()
    local = sparse.csr_array(
        (1 / np.sqrt(degree[own] * degree[near]), (own, near)), shape=(n_own, n_own + len(halo))
    )
    product = local @ with_halo(torch.from_numpy(np.asarray(part.x, dtype=np.float64))).numpy()
    plan = Halo(comm, sent.to(device), to_each, from_each, SparseMatrix.of(spread, dtype, device))
    shards = Shards.of(comm, n_own, nodes=torch.from_numpy(nodes))
    adjacency = HaloMatrix(SparseMatrix.of(local, dtype, device), plan, n_own)
    x = torch.from_numpy(product).to(device, dtype)
    return OwnGraph(torch.arange(n_own, device=device), adjacency, x, shards)


def _device_of(comm: Communicator) -> torch.device:
    return getattr(comm, "device", torch.device("cpu"))


def _checked(part: Any, comm: Communicator) -> tuple[Ids, Ids, sparse.csr_array]:
    """Numbers of the own nodes (n_own,), rank of every node (n_nodes,), and the own rows of A (no self loops)."""
    if not isinstance(part, GraphPart):
        raise InputTypeError(
            f"a function in place of a graph must return a GraphPart, got {type(part).__name__}."
        )
    owner = np.asarray(part.owner)
    if owner.ndim != 1 or owner.dtype.kind not in "iu" or owner.min() < 0 or owner.max() >= comm.size:
        raise InputError(f"owner must hold a rank 0..{comm.size - 1} for every node of the graph.")
    nodes = np.flatnonzero(owner == comm.rank).astype(np.int64)
    x = np.asarray(part.x)
    if x.ndim != 2 or x.dtype.kind not in "biuf" or not np.isfinite(x).all():
        raise InputError("x of a part must be a dense, finite matrix with one row for each own node.")
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        value = getattr(part, name)
        if value is not None and len(value) != len(nodes):
            raise InputError(f"{name} has {len(value)} rows, but owner gives this rank {len(nodes)} nodes.")
    edges = np.asarray(part.edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.size and edges.dtype.kind not in "iu"):
        raise InputError(f"edge_index must hold whole numbers in the shape (2, edges), got {edges.shape}.")
    edges = edges.astype(np.int64)
    if edges.size and (edges.min() < 0 or edges.max() >= len(owner)):
        raise InputError(f"edge_index names nodes beyond 0..{len(owner) - 1}.")
    both = np.concatenate([edges, edges[::-1]], axis=1)
    both = both[:, (both[0] != both[1]) & (owner[both[0]] == comm.rank)]
    place = np.searchsorted(nodes, both[0])
    rows = sparse.csr_array(
        sparse.coo_array((np.ones(both.shape[1]), (place, both[1])), shape=(len(nodes), len(owner)))
    )
    rows.sum_duplicates()
    return nodes, owner.astype(np.int64), rows


def _counts(
    rows: sparse.csr_array, halo: Ids, owner: Ids, comm: Communicator
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many halo rows come from and go to each rank; raises if an edge is known to only one of its ranks."""
    both = torch.zeros(2, comm.size, comm.size, dtype=torch.int64, device=_device_of(comm))
    both[0, comm.rank] = torch.from_numpy(np.bincount(owner[halo], minlength=comm.size)).to(both.device)
    n_edges = torch.from_numpy(np.bincount(owner[rows.indices], minlength=comm.size))
    both[1, comm.rank] = n_edges.to(both.device)
    wanted, edges = comm.total(both)[0].cpu()
    if not torch.equal(edges, edges.T):
        raise InputError(
            "every edge between two ranks must be in the edge_index of both ranks; some are in only one."
        )
    return tuple(wanted[comm.rank].tolist()), tuple(wanted[:, comm.rank].tolist())
