"""One rank's part of a graph problem: its nodes, their rows of A~ and of A~ X, and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import Communicator, Shards
from dladmm.compute.halo import HaloMatrix, halo_matrix
from dladmm.compute.partition import Partition
from dladmm.compute.sparse import csr_tensor
from dladmm.losses import Risk
from dladmm.network.graph import DENSE_ENTRY_COST


@dataclass(frozen=True)
class OwnGraph:
    """One rank's data: ``nodes`` (n_own,), rows of A~ as ``adjacency``, rows of A~ X as ``x`` (n_own, n_features)."""

    nodes: Tensor
    adjacency: HaloMatrix
    x: Tensor
    shards: Shards | None

    def risk(self, whole: Risk, comm: Communicator) -> Risk:
        """The risk on this rank's nodes."""
        nodes = self.nodes.to(whole.target.device)
        weight = None if whole.weight is None else whole.weight[nodes]
        return Risk(whole.loss, whole.target[nodes], weight, whole.solver, comm)


def own_graph(
    matrix: sparse.csr_array,
    features: sparse.csr_array | np.ndarray[Any, Any],
    partition: Partition,
    comm: Communicator,
    dtype: torch.dtype,
    device: torch.device,
) -> OwnGraph:
    """This rank's part; ``A~ X`` is formed for its own nodes, sparse only where that is cheaper on all ranks."""
    nodes = torch.from_numpy(partition.nodes(comm.rank))
    product = matrix[nodes.numpy()] @ features
    if sparse.issparse(product):
        counts = torch.tensor([float(product.nnz), float(np.prod(product.shape))], dtype=torch.float64)
        (counts,) = comm.total(counts.to(getattr(comm, "device", counts.device)))
        if float(counts[0]) > DENSE_ENTRY_COST * float(counts[1]):
            product = product.toarray()
    if sparse.issparse(product):
        x = csr_tensor(product, dtype, device)
    else:
        x = torch.from_numpy(np.ascontiguousarray(product)).to(device, dtype)
    shards = Shards.of(comm, len(nodes), nodes=nodes)
    return OwnGraph(nodes.to(device), halo_matrix(matrix, partition, comm, dtype, device), x, shards)
