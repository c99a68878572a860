"""Streaming mode on a graph by its parts: every batch is the subgraph of a few clusters.

As in Cluster-GCN (Chiang et al. 2019) the nodes are parted into clusters with few edges between them. A batch joins
some clusters drawn at random and keeps all edges among their nodes, normalised for that subgraph alone:
``A~ = (D + I)^-1/2 (A + I) (D + I)^-1/2`` of its own degrees. So work and memory of a step follow the batch, not the
graph; a batch of all clusters is the whole graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.api.graph_penalty import signal_of_labels
from dladmm.api.graph_problem import CheckedGraph, GivenGraph, GraphProblem, GraphSettings, checked_graph
from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.partition import checked_owner, clusters_of
from dladmm.compute.sparse import SparseMatrix, csr_tensor
from dladmm.engine.batches import Batch, GraphBatch, shuffled
from dladmm.losses import Risk
from dladmm.network.chain import Chain
from dladmm.network.graph import normalised
from dladmm.network.graph_chain import gcn
from dladmm.network.scaling import Scaling
from dladmm.network.whole_gcn import WholeGCN

CLUSTERS_PER_BATCH = 4
"""Clusters of a batch: drawn anew for every pass, so that edges between clusters are seen now and then."""

WHOLE_GRAPH, BATCH_NODES = 100_000, 10_000
"""Nodes up to which a step sees the whole graph unless batch_size is given, and nodes of a batch beyond."""

DENSE_FEATURES = 4096
"""Up to so many features ``A~ X`` of a batch is made dense, and the first layer is solved in its metric: running
gradients, which sparse rows get, learn words worse that only some batches have."""

MONITOR_PASS = 1_000_000
"""The draw of clusters on which passes are measured, one that no pass makes."""

Nodes = NDArray[np.int64]


def in_clusters(given: GivenGraph, batch_size: int | None, owner: Any) -> bool:
    """Whether a graph is streamed by its parts: where that was asked for, or where it is large."""
    n_nodes = int(getattr(given.x, "shape", (0,))[0])
    return batch_size is not None or owner is not None or n_nodes > WHOLE_GRAPH


def clustered_graph(
    given: GivenGraph, settings: GraphSettings, batch_size: int | None, seed: int, owner: Any = None
) -> ClusterBatches:
    """Check a graph and part it; targets and features stay on the CPU, batches go to the device."""
    if given.sample_weight is not None:
        raise InputError("sample_weight cannot be used with clusters of a graph; leave batch_size out.")
    graph = checked_graph(given, replace(settings, device=torch.device("cpu")))
    scaling = settings.scaling(graph.features)
    return ClusterBatches(graph, settings, scaling, batch_size or BATCH_NODES, seed, owner)


@dataclass(frozen=True)
class NodeTargets:
    """Of all nodes, on the CPU: targets of a loss, and which nodes it counts."""

    risk: Risk
    counts: NDArray[np.bool_]

    @classmethod
    def of(cls, risk: Risk) -> NodeTargets:
        assert risk.weight is not None
        return cls(risk, (risk.weight[:, 0] > 0).cpu().numpy())

    def on(self, nodes: Nodes, total: float) -> Risk:
        """The loss on some nodes, whose weights sum to ``total``."""
        chosen = torch.from_numpy(nodes)
        weight = torch.from_numpy(self.counts[nodes]).to(self.risk.target.dtype)[:, None]
        weight *= total / max(float(weight.sum()), 1.0)
        return replace(self.risk, target=self.risk.target[chosen], weight=weight)


class ClusterBatches:
    """The batches of a clustered graph; every one has labelled nodes, on which its loss is a mean.

    ``wanted_size`` is the number of nodes of a batch, about. Clusters without labels fill batches up; those that are
    left over wait for another pass.
    """

    scaled = True
    rows_at_once = math.inf

    def __init__(
        self,
        graph: CheckedGraph,
        settings: GraphSettings,
        scaling: Scaling | None,
        wanted_size: int,
        seed: int,
        owner: Any = None,
    ) -> None:
        self.graph, self.settings, self.scaling, self.seed = graph, settings, scaling, seed
        n_nodes = graph.joined.shape[0]
        n_batches = max(1, round(n_nodes / wanted_size))
        if owner is None:
            n_clusters = 1 if n_batches == 1 else min(n_nodes, n_batches * CLUSTERS_PER_BATCH)
            owner = clusters_of(graph.joined, n_clusters)
        self.clusters = _members(np.asarray(owner), n_nodes)
        self._labels = NodeTargets.of(graph.risk)
        self._has_labels = np.array([self._labels.counts[nodes].any() for nodes in self.clusters])
        self._n_batches: int = min(n_batches, int(self._has_labels.sum()))
        self._per_batch = max(1, len(self.clusters) // n_batches)
        self.at_least = float(self._labels.counts.sum())
        self.n_samples: float | None = self.at_least
        self.network: WholeGCN | None = None
        """The network that is trained, where it is a GCN."""
        self._dense = not sparse.issparse(graph.features) or graph.widths[0] <= DENSE_FEATURES

    def batches_per_pass(self) -> int | None:
        return self._n_batches

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        for nodes in self.nodes_of_pass(number)[skip:]:
            yield self.batch(nodes)

    def nodes_of_pass(self, number: int) -> list[Nodes]:
        """The nodes of every batch of a pass, in order; this depends on the seed and the number alone."""
        order = shuffled(len(self.clusters), self.seed, number).numpy()
        labelled, others = order[self._has_labels[order]], iter(order[~self._has_labels[order]])
        dealt = [list(labelled[j :: self._n_batches]) for j in range(self._n_batches)]
        for chosen in dealt:
            chosen += [c for c, _ in zip(others, range(self._per_batch - len(chosen)), strict=False)]
        return [np.sort(np.concatenate([self.clusters[c] for c in chosen])) for chosen in dealt]

    def batch(self, nodes: Nodes) -> Batch:
        """The subgraph of these nodes: its labelled nodes weigh so that the mean over all rows is theirs."""
        problem = self.problem(nodes, float(len(nodes)))
        risk = problem.risk
        chain = problem.chain if self.network is None else Chain([self.network.on(problem.chain)])
        return GraphBatch.of(Batch(problem.x, risk.target, risk.weight), chain)

    def problem(self, nodes: Nodes, total: float) -> GraphProblem:
        """The problem on the subgraph of these nodes, whose labelled ones weigh ``total`` together."""
        settings, graph = self.settings, self.graph
        matrix = self._adjacency(nodes)
        x = self._rows(matrix, nodes)
        adjacency = SparseMatrix.of(matrix, settings.dtype, settings.device, symmetric=True)
        chain = gcn(graph.widths, adjacency, settings.activation, propagated=True)
        scaled = x if self.scaling is None else self.scaling.apply(x)
        return GraphProblem(chain, scaled, self._on_device(self._labels.on(nodes, total)), None, self.scaling)

    def monitor(self) -> GraphProblem:
        """The problem on which passes are measured: one batch, standing for all labelled nodes."""
        nodes = self.nodes_of_pass(MONITOR_PASS)[0]
        problem = self.problem(nodes, self.at_least)
        if self.graph.held_risk is None:
            return problem
        held = NodeTargets.of(self.graph.held_risk)
        if not held.counts[nodes].any():
            raise InputError(
                f"none of the {len(nodes)} nodes on which a clustered run is measured is a validation node; give a "
                "larger batch_size, more validation nodes, or none."
            )
        risk = self._on_device(held.on(nodes, float(held.counts[nodes].sum())))
        return replace(problem, validation=(problem.x, risk))

    def class_signal(self) -> float:
        """As :func:`~dladmm.api.graph_penalty.class_signal`, of the whole graph and without a copy of its features."""
        scale = None if self.scaling is None else self.scaling.scale.cpu()
        graph = self.graph
        return signal_of_labels(graph.features, graph.joined, graph.risk, len(graph.widths) - 1, scale)

    def _adjacency(self, nodes: Nodes) -> sparse.csr_array:
        return normalised(sparse.csr_array(self.graph.joined[nodes][:, nodes]))

    def _rows(self, matrix: sparse.csr_array, nodes: Nodes) -> torch.Tensor:
        """``A~ X`` of the subgraph, in the same layout for every batch."""
        rows = matrix @ self.graph.features[nodes]
        if self._dense:
            found = rows.toarray() if sparse.issparse(rows) else rows
            return torch.from_numpy(np.asarray(found)).to(self.settings.device, self.settings.dtype)
        return csr_tensor(rows, self.settings.dtype, self.settings.device)

    def _on_device(self, risk: Risk) -> Risk:
        assert risk.weight is not None
        device = self.settings.device
        return replace(risk, target=risk.target.to(device), weight=risk.weight.to(device))


def _members(owner: NDArray[Any], n_nodes: int) -> list[Nodes]:
    """The nodes of every cluster that has any."""
    checked_owner(owner, n_nodes)
    order = np.argsort(owner, kind="stable")
    found = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    return [nodes.astype(np.int64) for nodes in found if len(nodes)]
