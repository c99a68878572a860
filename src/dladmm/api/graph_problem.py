"""Checks a graph with labelled nodes and turns it into chain, input and risk, for one process or one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dladmm.activations import Activation
from dladmm.api.node_checks import n_outputs_of, named_nodes, node_weights
from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import ALONE, Communicator, Shards
from dladmm.compute.partition import checked_owner, partitioned
from dladmm.compute.sparse import SparseMatrix, csr_tensor
from dladmm.datasets import GraphData
from dladmm.engine.batches import Batch, OneBatch
from dladmm.losses import Loss, Risk
from dladmm.network.chain import Chain
from dladmm.network.given_graph import graph_fields, is_graph, refuse_several_graphs
from dladmm.network.graph import (
    check_node_features,
    check_node_mask,
    joined_nodes,
    normalised,
    propagated_features,
)
from dladmm.network.graph_chain import gcn
from dladmm.network.graph_part import GraphPart, own_part
from dladmm.network.graph_shard import own_graph
from dladmm.network.scaling import NODE_LENGTH, Scaling
from dladmm.training.checks import check_several_classes, to_tensor

VariableRows = Literal["all", "train", "fixed"]
"""Which rows of Z_l are variables: those of all nodes, or of labelled nodes only, the others following or held."""


PROX: dict[str, Literal["auto", "fista", "authors"]] = {
    "auto": "auto",
    "exact": "auto",
    "fista": "fista",
    "authors": "authors",
}
"""How Z_L is solved, by the name of the setting."""


@dataclass(frozen=True)
class GraphProblem:
    """What the engine needs: the chain for this graph, its input ``x`` (n_nodes, n_features), and the risks.

    ``risk`` is the loss on the labelled nodes, ``validation`` the input and the risk on held-out nodes, ``zeroed`` the
    nodes whose rows of Z_l start at zero.
    """

    chain: Chain
    x: Tensor
    risk: Risk
    validation: tuple[Tensor, Risk] | None
    scaling: Scaling | None = None
    shards: Shards | None = None
    given: dict[str, Any] | None = None
    zeroed: Tensor | None = None


@dataclass(frozen=True)
class GivenGraph:
    """A graph as the user passed it, not yet checked."""

    x: Any
    edge_index: Any
    y: Any
    train_mask: Any
    val_mask: Any = None
    test_mask: Any = None
    n_classes: int | None = None
    edge_weight: Any = None
    sample_weight: Any = None


@dataclass(frozen=True)
class CheckedGraph:
    """A whole graph after all checks: features (n_nodes, n_features), ``A + I``, labelled nodes, losses and widths."""

    features: sparse.csr_array | np.ndarray[Any, Any]
    joined: sparse.csr_array
    train: Tensor
    risk: Risk
    held_risk: Risk | None
    widths: list[int]
    zeroed: Tensor | None = None


@dataclass(frozen=True)
class GraphSettings:
    """The arguments of :func:`~dladmm.train_graph` besides the graph; ``apart`` leaves A~ X unformed.

    ``node_length`` is the mean length of scaled features.
    """

    hidden: Sequence[int]
    activation: str | dict[str, Any] | Activation
    rows: VariableRows
    loss: Loss
    validation: Any
    prox: str
    dtype: torch.dtype
    device: torch.device
    scaled: bool = False
    comm: Communicator = ALONE
    zeroed: Any = None
    apart: bool = False
    node_length: float = NODE_LENGTH

    def scaling(self, features: Any, comm: Communicator = ALONE) -> Scaling | None:
        """The scaling of features, with ``comm`` those of one rank's nodes; None where they stay as they are."""
        if not self.scaled:
            return None
        return Scaling.of_nodes(features, self.dtype, self.device, comm, self.node_length)

    def risk(self, labels: Tensor, mask: Tensor, n_outputs: int) -> Risk:
        """The loss on the nodes of a mask; labels of other nodes (-1, NaN) are ignored."""
        known = labels.clone()
        known[~mask] = labels[mask][0] if bool(mask.any()) else 0  # a rank may have no labelled node
        target = self.loss.encode(known, n_outputs, self.dtype).to(self.device)
        weight = mask.to(self.device, self.dtype)[:, None]
        return Risk(self.loss, target, weight, solver=PROX.get(self.prox, "auto"))


def graph_problem(
    given: GivenGraph | GraphData, settings: GraphSettings, partition: Any = None
) -> GraphProblem:
    """Check a graph and build its problem; ``A~ X`` is precomputed here where that is cheaper.

    On several ranks the result is the problem of this rank's nodes.
    """
    graph = checked_graph(given, settings)
    rows, comm, dtype, device = settings.rows, settings.comm, settings.dtype, settings.device
    some, held = rows != "all", rows == "fixed"
    features, train, risk, held_risk = graph.features, graph.train, graph.risk, graph.held_risk
    matrix, widths = normalised(graph.joined), graph.widths
    scaling = settings.scaling(features)
    if comm.alone and partition is not None:
        checked_owner(partition, matrix.shape[0])  # not used in one process
    if not comm.alone:
        comm.all_clear()
        own = own_graph(matrix, features, partitioned(matrix, comm, partition), comm, dtype, device)
        variables = torch.nonzero(train.to(device)[own.nodes])[:, 0] if some else None
        chain = gcn(widths, own.adjacency, settings.activation, rows=variables, held=held, propagated=True)
        x = own.x if scaling is None else scaling.apply(own.x)
        second = None if held_risk is None else (x, own.risk(held_risk, comm))
        return GraphProblem(chain, x, own.risk(risk, comm), second, scaling, own.shards)
    formed, propagated = (features, False) if settings.apart else propagated_features(matrix, features)
    adjacency = SparseMatrix.of(matrix, dtype, device, symmetric=True)
    chain = gcn(
        widths,
        adjacency,
        settings.activation,
        rows=torch.nonzero(train)[:, 0].to(device) if some else None,
        held=held,
        propagated=propagated,
    )
    dense = isinstance(formed, torch.Tensor) or not hasattr(formed, "nnz")
    x = torch.from_numpy(formed).to(device, dtype) if dense else csr_tensor(formed, dtype, device)
    x = x if scaling is None else scaling.apply(x)
    second = None if held_risk is None else (x, held_risk)
    kept = {name: getattr(given, name, None) for name in ("y", "edge_index", "edge_weight", "sample_weight")}
    kept |= {"X": features, "train_mask": train}
    zeroed = None if graph.zeroed is None else torch.nonzero(graph.zeroed)[:, 0].to(device)
    return GraphProblem(chain, x, risk, second, scaling, given=kept, zeroed=zeroed)


def check_names(rows: Any, prox: Any) -> None:
    """Raise where a name is none that there is."""
    if rows not in get_args(VariableRows):
        raise InputError(f"rows must be one of {get_args(VariableRows)}, got {rows!r}.")
    if prox not in PROX:
        raise InputError(f"prox must be one of {', '.join(PROX)}, got {prox!r}.")


def checked_graph(given: GivenGraph | GraphData, settings: GraphSettings) -> CheckedGraph:
    """A graph as the user passed it, checked and with its losses."""
    rows, loss, dtype = settings.rows, settings.loss, settings.dtype
    check_names(rows, settings.prox)
    if settings.zeroed is not None and not settings.comm.alone:
        raise InputError("zeroed rows are for graphs in one process; leave zeroed out.")
    features = check_node_features(given.x, dtype)
    n_nodes, n_features = features.shape
    if given.train_mask is None:
        raise InputError("train_mask is missing: it says which nodes are labelled.")
    train = check_node_mask(given.train_mask, n_nodes, "train_mask")
    held_out = named_nodes(settings.validation, "validation", given, n_nodes)
    labels = to_tensor(given.y, "y").cpu()
    if labels.ndim == 0 or len(labels) != n_nodes:
        raise InputError(f"y must have one entry per node, {n_nodes}; got shape {tuple(labels.shape)}.")
    seen = train if held_out is None else train | held_out
    if labels.is_floating_point() and not bool(torch.isfinite(labels[seen]).all()):
        raise InputError("y contains NaN or infinite values on labelled nodes.")
    n_outputs = n_outputs_of(labels[seen], loss, given.n_classes)
    risk = settings.risk(labels, train, n_outputs)
    check_several_classes(loss, risk.target[train.to(settings.device)])
    sample_weight = getattr(given, "sample_weight", None)
    if sample_weight is not None:
        assert risk.weight is not None
        counts = node_weights(sample_weight, train).to(risk.weight)
        risk = replace(risk, weight=risk.weight * counts[:, None])
    held_risk = None if held_out is None else settings.risk(labels, held_out, n_outputs)
    widths = [n_features, *settings.hidden, n_outputs]
    joined = joined_nodes(given.edge_index, n_nodes, getattr(given, "edge_weight", None))
    zeroed = named_nodes(settings.zeroed, "zeroed", given, n_nodes)
    return CheckedGraph(features, joined, train, risk, held_risk, widths, zeroed)


def part_problem(part: GraphPart, settings: GraphSettings) -> GraphProblem:
    """The problem of a graph of which each rank has only a part; ``validation`` is "val", "test" or None."""
    loss, validation, comm = settings.loss, settings.validation, settings.comm
    dtype, device = settings.dtype, settings.device
    if settings.rows != "all" or validation not in (None, "val", "test") or loss.kind != "classification":
        raise InputError(
            "a graph given in parts needs rows='all', a classification loss, and validation 'val', 'test' or None."
        )
    own = own_part(part, comm, dtype, device)
    with comm.together():
        labels = to_tensor(part.y, "y").cpu()
        chosen = [part.train_mask, *([getattr(part, f"{validation}_mask")] if validation else [])]
        if any(mask is None for mask in chosen):
            raise InputError("a part needs train_mask, and the mask that validation names.")
        masks = [to_tensor(mask, "mask").cpu().bool() for mask in chosen]
        risks = [settings.risk(labels, mask, part.n_classes) for mask in masks]
    check_several_classes(loss, risks[0].target[masks[0].to(device)], comm)
    n_features = own.x.shape[1]
    chain = gcn(
        [n_features, *settings.hidden, part.n_classes], own.adjacency, settings.activation, propagated=True
    )
    features = np.asarray(part.x, dtype=np.float64)
    scaling = settings.scaling(features, comm)
    x = own.x if scaling is None else scaling.apply(own.x)
    own_risks = [own.risk(risk, comm) for risk in risks]
    second = (x, own_risks[1]) if validation else None
    return GraphProblem(chain, x, own_risks[0], second, scaling, own.shards)


def given_graph(
    data: Any, edge_index: Any, y: Any, train_mask: Any, edge_weight: Any, n_classes: int | None
) -> GivenGraph:
    """The graph of a graph object, or of arrays."""
    refuse_several_graphs(data)
    if is_graph(data):
        if edge_index is not None or y is not None or edge_weight is not None:
            raise InputError(
                "edge_index, edge_weight and y are part of data already; give a graph or arrays, not both."
            )
        found = graph_fields(data)
        if found.y is None:
            raise InputError("the graph has no y, the labels of its nodes.")
        mask = found.train_mask if train_mask is None else train_mask
        classes = found.n_classes if n_classes is None else n_classes
        masks = {"val_mask": found.val_mask, "test_mask": found.test_mask}
        return GivenGraph(
            found.x,
            found.edge_index,
            found.y,
            mask,
            **masks,
            n_classes=classes,
            edge_weight=found.edge_weight,
        )
    missing = [name for name, value in (("edge_index", edge_index), ("y", y)) if value is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} missing: give a GraphData, a PyG Data, or x with edge_index, y and train_mask."
        )
    return GivenGraph(data, edge_index, y, train_mask, n_classes=n_classes, edge_weight=edge_weight)


def whole_graph(problem: GraphProblem) -> OneBatch:
    """The batch of streaming mode: the whole graph, whose unlabelled nodes weigh nothing in the loss.

    A step divides by the number of rows, so weights grow until the rows weigh one each in the mean: losses, curvatures
    and the bounds on them are then means over the labelled nodes, as many as the penalty is divided by.
    """
    risk = problem.risk
    assert risk.weight is not None
    labelled = risk.n_labelled()
    rows = float(risk.comm.total(torch.tensor(float(len(risk.target)), device=risk.target.device))[0])
    weight = risk.weight * (rows / labelled)
    return OneBatch(Batch(problem.x, risk.target, weight), labelled)
