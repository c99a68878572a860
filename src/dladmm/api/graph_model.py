"""``train_graph(data, model=network)``: any torch module ``network(x, edge_index)`` trained as it is.

A step sees the whole graph, the subgraph of a few clusters, or a batch of a loader, such as PyG's ``NeighborLoader``
and ``ClusterLoader``. PyG need not be installed: a network is any module, a batch anything with ``x``, ``edge_index``
and ``y``.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dladmm.api.graph_clusters import BATCH_NODES, ClusterBatches, Nodes, in_clusters
from dladmm.api.graph_penalty import graph_penalty, signal_of_labels
from dladmm.api.graph_problem import (
    CheckedGraph,
    GivenGraph,
    GraphProblem,
    GraphSettings,
    checked_graph,
    whole_graph,
)
from dladmm.api.handing_back import copy_into
from dladmm.base.errors import InputError, InputTypeError
from dladmm.blocks import WholeGraph
from dladmm.callbacks import Callback
from dladmm.engine.batches import Batch, Batches, GraphBatch, OneBatch
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain
from dladmm.network.given_graph import graph_fields, is_graph
from dladmm.network.given_module import evaluating
from dladmm.network.graph import check_edge_index, check_edge_weight, check_node_features, check_node_mask
from dladmm.regularizers import NoPenalty, Regularizer
from dladmm.training.result import Result
from dladmm.training.trainer import Trainer

STEPS, STEPS_ON_PARTS, FEWEST_PASSES = 100, 200, 10
"""Steps of a run on the whole graph and on parts of it, and passes over parts at least, unless max_iter is given."""

FEW_NODES = 100
"""Nodes on which a network is tried that is to be trained on parts of a graph."""


def train_graph_model(
    model: nn.Module,
    data: GivenGraph | Any,
    settings: GraphSettings,
    chosen: TrainOptions,
    regularizer: str | dict[str, Any] | Regularizer | None,
    seed: int,
    callbacks: Sequence[Callback],
    partition: Any = None,
    *,
    passes_given: bool = True,
) -> Result:
    """Train a module from its own weights, in place; ``result.module`` is the module.

    ``data`` is a graph or a loader of batches; without ``passes_given`` as many are made as :data:`STEPS` steps need.
    """
    if chosen.mode != "streaming":
        raise InputError(f"model is trained by mode='streaming' alone, got mode={chosen.mode!r}.")
    network = GraphModule(model, settings)
    if not isinstance(data, GivenGraph):
        loader = LoaderBatches(data, network, settings)
        batches: Batches = loader
        problem, signal = loader.monitor, lambda: 0.0
    elif in_clusters(data, chosen.batch_size, partition):
        clusters = batches = ModuleClusters(data, network, chosen.batch_size, seed, partition)
        problem, signal = clusters.monitor(), clusters.class_signal
    else:
        problem, graph = _whole_problem(data, network)
        batches = whole_graph(problem)
        signal = partial(signal_of_labels, graph.features, graph.joined, graph.risk)
    labelled, n_classes = batches.at_least, problem.risk.target.shape[1]
    penalty = graph_penalty(chosen, regularizer, labelled, n_classes, signal)
    if isinstance(batches, LoaderBatches) and not isinstance(penalty, NoPenalty):
        batches.count()
    if not passes_given:
        whole = isinstance(data, GivenGraph) and isinstance(batches, OneBatch)
        chosen = replace(chosen, max_iter=STEPS if whole else passes_on_parts(batches))
    trainer = Trainer(
        problem.chain,
        problem.x,
        problem.risk,
        chosen,
        penalty=penalty,
        params=problem.chain.initial_parameters(None, 1.0, dtype=settings.dtype, device=settings.device),
        validation=problem.validation,
        callbacks=callbacks,
        seed=seed,
        batches=batches,
    )
    result = trainer.fit()
    copy_into(model, result.module)
    return replace(result, module=model)


def passes_on_parts(batches: Batches) -> int:
    """Passes over parts of a graph, where nobody gave their number."""
    return max(FEWEST_PASSES, math.ceil(STEPS_ON_PARTS / (batches.batches_per_pass() or 1)))


def is_loader(data: Any) -> bool:
    """Whether data is a collection of graphs to be read again for every pass: a loader, or a list."""
    if is_graph(data) or hasattr(data, "shape") or isinstance(data, (str, bytes, dict)):
        return False
    return hasattr(data, "__iter__")


class GraphModule:
    """A module of the user, tried on graphs before it is trained on them."""

    def __init__(self, model: nn.Module, settings: GraphSettings) -> None:
        self.model, self.settings = model, settings
        self.name = type(model).__name__
        names = inspect.signature(model.forward).parameters.values()
        variable = any(p.kind is p.VAR_POSITIONAL for p in names)
        positional = [p for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(positional) < 2 and not variable:
            raise InputError(f"{self.name} must be a function of x and edge_index, as PyG's networks are.")
        self._takes_weights = len(positional) > 2 or variable
        self.n_outputs = 0
        self.block: WholeGraph | None = None

    def refuse_cached(self, parts: str) -> None:
        """Raise where a layer keeps the normalised edges of the first graph that it sees."""
        if any(getattr(part, "cached", False) for part in self.model.modules()):
            raise InputError(
                f"{self.name} keeps the normalised edges of its first graph (cached=True), and every batch of {parts} "
                "is another graph: make its layers with cached=False."
            )

    def edges(
        self, source: NDArray[Any], target: NDArray[Any], weight: NDArray[Any] | None
    ) -> tuple[Tensor, ...]:
        """What the module is called with besides the features."""
        device = self.settings.device
        index = torch.from_numpy(np.stack([source, target])).to(device, torch.long)
        if weight is None:
            return (index,)
        if not self._takes_weights:
            raise InputError(
                f"{self.name} is not given the edge_weight that the graph has: let its forward pass take "
                "(x, edge_index, edge_weight), or set data.edge_weight = None."
            )
        return index, torch.from_numpy(weight).to(device, self.settings.dtype)

    def features(self, x: Any) -> Tensor:
        """Node features (n_nodes, n_features) as a dense tensor."""
        dense = x if isinstance(x, np.ndarray) else x.toarray()
        return torch.from_numpy(np.ascontiguousarray(dense)).to(self.settings.device, self.settings.dtype)

    def chain(self, x: Tensor, edges: tuple[Tensor, ...]) -> Chain:
        """The module on these edges, as the one block of a chain; the first graph it is tried on."""
        if self.block is None:
            self._try(x, edges)
            self.block = WholeGraph(self.model, edges)
            if not self.block.trained:
                raise InputError("the network has no parameters to train, or all have requires_grad=False.")
        return Chain([self.block.on(*edges)])

    @torch.no_grad()
    def _try(self, x: Tensor, edges: tuple[Tensor, ...]) -> None:
        some = next(self.model.parameters(), x)
        # A copy: layers may keep what they find of the first graph (GCNConv(cached=True))
        tried = self.model if nn.parameter.is_lazy(some) else copy.deepcopy(self.model)
        place, dtype = some.device, x.dtype if nn.parameter.is_lazy(some) else some.dtype
        moved = [
            x.to(place, dtype),
            *(e.to(place, dtype if e.is_floating_point() else e.dtype) for e in edges),
        ]
        try:
            with evaluating(tried):
                output = tried(*moved)
        except (
            RuntimeError,
            ValueError,
            IndexError,
            TypeError,
            NotImplementedError,
            AttributeError,
        ) as error:
            raise InputError(
                f"the graph does not go through {self.name}: {tuple(x.shape)} features and {edges[0].shape[1]} edges "
                f"raised: {error}"
            ) from error
        if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(x):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"{self.name} must return a row of outputs for every node, ({len(x)}, n_classes), got {shape}; "
                "graph-level tasks (one label per graph) are not supported."
            )
        self.n_outputs = output.shape[1]

    def checked(self, given: GivenGraph, settings: GraphSettings) -> CheckedGraph:
        """The graph with as many classes as the module has outputs."""
        # Weights of edges are the module's own business; here edges only say which nodes are near each other
        plain = replace(given, n_classes=given.n_classes or self.n_outputs, edge_weight=None)
        graph = checked_graph(plain, settings)
        if graph.risk.target.shape[1] != self.n_outputs:
            raise InputError(
                f"the network has {self.n_outputs} outputs for {graph.risk.target.shape[1]} classes."
            )
        return graph


class Edges:
    """The edges of a graph from source to target, as PyG's messages go, in the order in which they were given."""

    def __init__(self, given: GivenGraph) -> None:
        self.n_nodes = len(given.y)
        self.source, self.target = check_edge_index(given.edge_index, self.n_nodes)
        self.weight = check_edge_weight(given.edge_weight, len(self.source))
        self._order = np.argsort(self.source, kind="stable")
        self._first = np.searchsorted(self.source[self._order], np.arange(self.n_nodes + 1))
        self._place = np.full(self.n_nodes, -1)

    def all(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        return self.source, self.target, self.weight

    def among(self, nodes: Nodes) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """The edges between some nodes, which are numbered in their order; takes as long as they have edges."""
        begin, count = self._first[nodes], np.diff(self._first)[nodes]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found = self._order[np.repeat(begin, count) + within]
        self._place[nodes] = np.arange(len(nodes))
        source, target = self._place[self.source[found]], self._place[self.target[found]]
        self._place[nodes] = -1
        kept = target >= 0
        return source[kept], target[kept], None if self.weight is None else self.weight[found[kept]]


def _whole_problem(given: GivenGraph, network: GraphModule) -> tuple[GraphProblem, CheckedGraph]:
    x = network.features(check_node_features(given.x, network.settings.dtype))
    chain = network.chain(x, network.edges(*Edges(given).all()))
    graph = network.checked(given, network.settings)
    held_out = None if graph.held_risk is None else (x, graph.held_risk)
    return GraphProblem(chain, x, graph.risk, held_out), graph


class ModuleClusters(ClusterBatches):
    """Batches of clusters for a module, which gets the edges among the nodes of a batch as they were given."""

    def __init__(
        self, given: GivenGraph, network: GraphModule, batch_size: int | None, seed: int, owner: Any
    ) -> None:
        if given.sample_weight is not None:
            raise InputError("sample_weight cannot be used with clusters of a graph; leave batch_size out.")
        network.refuse_cached("clusters")
        self._module, self._edges = network, Edges(given)
        features = check_node_features(given.x, network.settings.dtype)
        few = np.arange(min(FEW_NODES, len(given.y)))
        network.chain(network.features(features[few]), network.edges(*self._edges.among(few)))
        graph = network.checked(given, replace(network.settings, device=torch.device("cpu")))
        super().__init__(graph, network.settings, None, batch_size or BATCH_NODES, seed, owner)

    def problem(self, nodes: Nodes, total: float) -> GraphProblem:
        x = self._module.features(self.graph.features[nodes])
        chain = self._module.chain(x, self._module.edges(*self._edges.among(nodes)))
        return GraphProblem(chain, x, self._on_device(self._labels.on(nodes, total)), None)


class LoaderBatches:
    """The batches of a loader, every one a graph; ``monitor`` is the first, on which passes are measured.

    The loss of a batch is over its labelled nodes: those of ``train_mask`` where it has one, and where it has a
    ``batch_size``, as ``NeighborLoader`` makes them, over the first so many nodes. Batches without any are left out.
    """

    scaled = True
    rows_at_once = math.inf

    def __init__(self, loader: Any, network: GraphModule, settings: GraphSettings) -> None:
        if iter(loader) is loader:
            raise InputTypeError(
                f"data is a {type(loader).__name__}, which can be read once only; give a loader, or a list of graphs."
            )
        if settings.validation is not None:
            raise InputError(
                "validation cannot be used with a loader; evaluate the network on a graph afterwards."
            )
        network.refuse_cached("a loader")
        self.loader, self.network, self.settings = loader, network, settings
        found = next(self._problems(), None)
        if found is None:
            raise InputError("the loader has no batch with a labelled node.")
        self.monitor: GraphProblem = found
        self.at_least = found.risk.n_labelled()
        self.n_samples: float | None = self.at_least

    def count(self) -> None:
        """Count the labelled nodes of a pass, which a penalty is divided by."""
        self.n_samples = self.at_least = sum(p.risk.n_labelled() for p in self._problems())

    def batches_per_pass(self) -> int | None:
        return len(self.loader) if hasattr(self.loader, "__len__") else None

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        for i, problem in enumerate(self._problems()):
            if i >= skip:
                yield GraphBatch.of(whole_graph(problem).batch, problem.chain)

    def _problems(self) -> Iterator[GraphProblem]:
        for data in self.loader:
            given = self._given(data)
            if given is not None:
                yield _whole_problem(given, self.network)[0]

    def _given(self, data: Any) -> GivenGraph | None:
        """The graph of a batch; None where it has no labelled node."""
        found = graph_fields(data, from_loader=True)
        if found.y is None:
            raise InputError("a batch of the loader has no y, the labels of its nodes.")
        train = np.ones(len(found.x), dtype=bool)
        if found.train_mask is not None and np.any(np.asarray(found.train_mask)):
            train = check_node_mask(found.train_mask, len(found.x), "train_mask").numpy()
        elif found.train_mask is not None:
            return None
        seeds = getattr(data, "batch_size", None)
        if seeds is not None and getattr(data, "batch", None) is None:
            train = train & (np.arange(len(train)) < int(seeds))
        if not train.any():
            return None
        return GivenGraph(found.x, found.edge_index, found.y, train, edge_weight=found.edge_weight)
