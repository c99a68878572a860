"""``train_graph``: the front door for people who bring a graph with some labelled nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dladmm.activations import Activation
from dladmm.api import fresh_parameters
from dladmm.callbacks import Callback
from dladmm.chain import Chain, gcn
from dladmm.datasets import GraphData
from dladmm.distributed import ALONE, Communicator, Shards
from dladmm.distributed.entrance import on_whole_graph
from dladmm.distributed.graph import own_graph
from dladmm.distributed.graph_part import GraphPart, own_part
from dladmm.distributed.partition import partitioned
from dladmm.errors import InputError
from dladmm.graph import (
    check_mask,
    check_node_features,
    check_unweighted,
    normalised_adjacency,
    propagated_features,
)
from dladmm.iteration import MethodFactory
from dladmm.losses import Loss, Risk, get_loss
from dladmm.options import make_options
from dladmm.regularizers import Regularizer
from dladmm.scaling import Scaling
from dladmm.sparse import SparseMatrix, csr_tensor
from dladmm.trainer import Result, Trainer
from dladmm.validation import (
    check_callbacks,
    check_device,
    check_dtype,
    check_seed,
    check_several_classes,
    to_tensor,
)

Rows = Literal["all", "train"]

MOST_CLASSES = 100_000
"""Labels above this are names and no numbers of classes: one output for each below them would fill the memory."""


@dataclass(frozen=True)
class GraphProblem:
    """What the engine needs of a graph: the chain bound to it, its input, and the risks on labelled nodes."""

    chain: Chain
    x: Tensor
    risk: Risk
    validation: tuple[Tensor, Risk] | None
    scaling: Scaling | None = None
    shards: Shards | None = None


@on_whole_graph
def train_graph(
    data: Any,
    edge_index: Any = None,
    y: Any = None,
    train_mask: Any = None,
    *,
    hidden: Sequence[int] = (128,),
    activation: str | dict[str, Any] | Activation = "relu",
    rows: Rows = "all",
    loss: str | dict[str, Any] | Loss = "cross_entropy",
    regularizer: str | dict[str, Any] | Regularizer | None = "auto",
    validation: Any = None,
    edge_weight: Any = None,
    n_classes: int | None = None,
    mu: float | None = None,
    preset: str = "default",
    prox: str = "auto",
    random_state: int = 0,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    callbacks: Sequence[Callback] = (),
    method: MethodFactory | None = None,
    communicator: Communicator | None = None,
    partition: Any = None,
    **options: Any,
) -> Result:
    """Train a GCN with dlADMM on the labelled nodes of a graph (Problem 6, Algorithm 5 of the paper).

    ``data`` is a :class:`~dladmm.datasets.GraphData`, a PyG ``Data``, or the features x (dense or sparse, one row a
    node) with ``edge_index``, ``y`` and ``train_mask`` beside it. ``validation`` is ``"val"``, ``"test"`` or a mask:
    history then shows loss and accuracy there. ``mu`` is the paper's name of the option nu; the other options are
    those of :func:`dladmm.train`.

    ``rows="all"`` is the paper's problem: every row of every Z_l is a variable. ``rows="train"`` leaves only labelled
    rows as variables and lets the others follow the forward pass, which the theory does not cover. A directed graph is
    made undirected, a repeated edge counts once, self loops are dropped (A~ adds its own).

    Where ``torch.distributed`` has been initialised, every rank calls this with the same graph and keeps its own nodes
    of it (docs/distributed.md); ``partition``, the rank of every node, is found where it is not given. Where no rank
    has the whole graph, ``data(rank, world)`` returns a :class:`~dladmm.distributed.graph_part.GraphPart`.

    >>> from dladmm import datasets
    >>> result = train_graph(datasets.load("karate"), hidden=(16,), max_iter=5)
    >>> result.status.name
    'MAX_ITER'
    """
    comm = ALONE if communicator is None else communicator
    if mu is not None:
        if "nu" in options:
            raise InputError("mu and nu are two names of one setting; give one of them.")
        options["nu"] = mu
    options.setdefault("dropout", 0.0)  # of a graph's features it helps nothing: docs/acceleration.md
    chosen = make_options(preset, **options)
    if chosen.max_memory is not None:
        raise InputError("max_memory is for networks of samples; the rows of a graph need each other.")
    torch_dtype, torch_device = check_dtype(dtype), check_device(device)
    random_state, callbacks = check_seed(random_state), check_callbacks(callbacks)
    settings: dict[str, Any] = {
        "hidden": hidden, "activation": activation, "rows": rows, "loss": get_loss(loss), "validation": validation,
        "prox": prox, "dtype": torch_dtype, "device": torch_device, "scaled": chosen.scale_inputs, "comm": comm,
    }  # fmt: skip
    if callable(data):
        with comm.together():
            part = data(comm.rank, comm.size)
        problem = part_problem(part, **settings)
    else:
        given = _given(data, edge_index, y, train_mask, edge_weight, n_classes)
        problem = graph_problem(given, partition=partition, **settings)
    params = fresh_parameters(
        problem.chain, random_state, chosen.init_scale, chosen.init_std, torch_dtype, torch_device
    )
    trainer = Trainer(
        problem.chain,
        problem.x,
        problem.risk,
        chosen,
        penalty=chosen.penalty(regularizer, problem.risk.n_labelled()),
        params=params,
        validation=problem.validation,
        callbacks=callbacks,
        method=method,
        scaling=problem.scaling,
        seed=random_state,
        comm=comm,
        shards=problem.shards,
    )
    return trainer.fit()


@dataclass(frozen=True)
class GivenGraph:
    """A graph as it was handed in, not yet checked."""

    x: Any
    edge_index: Any
    y: Any
    train_mask: Any
    val_mask: Any = None
    test_mask: Any = None
    n_classes: int | None = None


def _given(
    data: Any, edge_index: Any, y: Any, train_mask: Any, edge_weight: Any, n_classes: int | None
) -> GivenGraph:
    check_unweighted(edge_weight)
    if isinstance(data, GraphData) or (hasattr(data, "edge_index") and hasattr(data, "y")):
        if edge_index is not None or y is not None:
            raise InputError("edge_index and y are part of data already; give a graph or arrays, not both.")
        check_unweighted(getattr(data, "edge_weight", None))
        masks = {name: getattr(data, name, None) for name in ("val_mask", "test_mask")}
        mask = getattr(data, "train_mask", None) if train_mask is None else train_mask
        classes = getattr(data, "n_classes", None) if n_classes is None else n_classes
        return GivenGraph(data.x, data.edge_index, data.y, mask, **masks, n_classes=classes)
    missing = [name for name, value in (("edge_index", edge_index), ("y", y)) if value is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} missing: give a GraphData, a PyG Data, or x with edge_index, y and train_mask."
        )
    return GivenGraph(data, edge_index, y, train_mask, n_classes=n_classes)


def graph_problem(
    given: GivenGraph | GraphData,
    *,
    hidden: Sequence[int],
    activation: str | dict[str, Any] | Activation,
    rows: Rows,
    loss: Loss,
    validation: Any,
    prox: str,
    dtype: torch.dtype,
    device: torch.device,
    scaled: bool = False,
    comm: Communicator = ALONE,
    partition: Any = None,
) -> GraphProblem:
    """Check a graph and bind a chain to it; ``A~ X`` is formed here, once, where that is cheaper.

    On several ranks it is the problem of one rank's nodes.
    """
    if rows not in ("all", "train"):
        raise InputError(f"rows must be 'all' or 'train', got {rows!r}.")
    if prox not in ("auto", "fista"):
        raise InputError(f"prox must be 'auto' or 'fista', got {prox!r}.")
    features = check_node_features(given.x, dtype)
    n_nodes, n_features = features.shape
    if given.train_mask is None:
        raise InputError("train_mask is missing: it says which nodes are labelled.")
    train = check_mask(given.train_mask, n_nodes, "train_mask")
    held_out = _held_out(validation, given, n_nodes)
    labels = to_tensor(given.y, "y").cpu()
    if labels.ndim == 0 or len(labels) != n_nodes:
        raise InputError(f"y must have one entry a node, {n_nodes}; got shape {tuple(labels.shape)}.")
    seen = train if held_out is None else train | held_out
    if labels.is_floating_point() and not bool(torch.isfinite(labels[seen]).all()):
        raise InputError("y contains NaN or infinite values on labelled nodes.")
    n_outputs = _n_outputs(labels[seen], loss, given.n_classes)
    risk = _risk(loss, labels, train, n_outputs, prox, dtype, device)
    check_several_classes(loss, risk.target[train.to(device)])

    matrix = normalised_adjacency(given.edge_index, n_nodes)
    scaling = Scaling.of_nodes(features, dtype, device) if scaled else None
    widths = [n_features, *hidden, n_outputs]
    held_risk = None
    if held_out is not None:
        held_risk = _risk(loss, labels, held_out, n_outputs, prox, dtype, device)
    if not comm.alone:
        comm.all_clear()
        own = own_graph(matrix, features, partitioned(matrix, comm, partition), comm, dtype, device)
        variables = torch.nonzero(train.to(device)[own.nodes])[:, 0] if rows == "train" else None
        chain = gcn(widths, own.adjacency, activation, rows=variables, propagated=True)
        x = own.x if scaling is None else scaling.apply(own.x)
        second = None if held_risk is None else (x, own.risk(held_risk, comm))
        return GraphProblem(chain, x, own.risk(risk, comm), second, scaling, own.shards)
    formed, propagated = propagated_features(matrix, features)
    adjacency = SparseMatrix.of(matrix, dtype, device, symmetric=True)
    chain = gcn(
        widths,
        adjacency,
        activation,
        rows=torch.nonzero(train)[:, 0].to(device) if rows == "train" else None,
        propagated=propagated,
    )
    dense = isinstance(formed, torch.Tensor) or not hasattr(formed, "nnz")
    x = torch.from_numpy(formed).to(device, dtype) if dense else csr_tensor(formed, dtype, device)
    x = x if scaling is None else scaling.apply(x)
    second = None if held_risk is None else (x, held_risk)
    return GraphProblem(chain, x, risk, second, scaling)


def part_problem(
    part: GraphPart,
    *,
    hidden: Sequence[int],
    activation: str | dict[str, Any] | Activation,
    rows: Rows,
    loss: Loss,
    validation: Any,
    prox: str,
    dtype: torch.dtype,
    device: torch.device,
    scaled: bool,
    comm: Communicator,
) -> GraphProblem:
    """The same of a graph of which this rank has a part alone; ``validation`` is "val", "test" or None."""
    if rows != "all" or validation not in (None, "val", "test") or loss.kind != "classification":
        raise InputError(
            "a graph in parts is trained with rows='all', classes, and validation 'val' or 'test'."
        )
    own = own_part(part, comm, dtype, device)
    with comm.together():
        labels = to_tensor(part.y, "y").cpu()
        chosen = [part.train_mask, *([getattr(part, f"{validation}_mask")] if validation else [])]
        if any(mask is None for mask in chosen):
            raise InputError("a part needs train_mask, and the mask that validation names.")
        masks = [to_tensor(mask, "mask").cpu().bool() for mask in chosen]
        risks = [_risk(loss, labels, mask, part.n_classes, prox, dtype, device) for mask in masks]
    check_several_classes(loss, risks[0].target[masks[0].to(device)], comm)
    n_features = own.x.shape[1]
    chain = gcn([n_features, *hidden, part.n_classes], own.adjacency, activation, propagated=True)
    features = np.asarray(part.x, dtype=np.float64)
    scaling = Scaling.of_nodes(features, dtype, device, comm) if scaled else None
    x = own.x if scaling is None else scaling.apply(own.x)
    own_risks = [own.risk(risk, comm) for risk in risks]
    second = (x, own_risks[1]) if validation else None
    return GraphProblem(chain, x, own_risks[0], second, scaling, own.shards)


def _held_out(validation: Any, given: GivenGraph | GraphData, n_nodes: int) -> Tensor | None:
    if validation is None:
        return None
    name = "validation"
    if isinstance(validation, str):
        if validation not in ("val", "test"):
            raise InputError(f"validation must be 'val', 'test', a mask or None, got {validation!r}.")
        name = f"{validation}_mask"
        validation = getattr(given, name)
        if validation is None:
            raise InputError(f"validation asks for {name}, but the graph has none; give the mask itself.")
    return check_mask(validation, n_nodes, name)


def _n_outputs(labels: Tensor, loss: Loss, n_classes: int | None) -> int:
    """Classes of the labelled nodes, or columns of real targets."""
    if loss.kind != "classification":
        return 1 if labels.ndim == 1 else int(labels.shape[1])
    if n_classes is not None:
        if isinstance(n_classes, bool) or not isinstance(n_classes, Integral) or int(n_classes) < 1:
            raise InputError(f"n_classes must be a whole number >= 1, got {n_classes!r}.")
        return int(n_classes)
    largest = int(labels.max())
    if largest >= MOST_CLASSES:
        raise InputError(f"y names class {largest}; number the classes 0, 1, 2, ... or give n_classes.")
    return max(largest + 1, 2)


def _risk(
    loss: Loss,
    labels: Tensor,
    mask: Tensor,
    n_outputs: int,
    prox: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Risk:
    """The loss on the nodes of a mask. What y says of the others (-1, NaN) is not looked at."""
    known = labels.clone()
    known[~mask] = labels[mask][0] if bool(mask.any()) else 0  # a rank's nodes may have no label
    target = loss.encode(known, n_outputs, dtype).to(device)
    weight = mask.to(device, dtype)[:, None]
    return Risk(loss, target, weight, solver="fista" if prox == "fista" else "auto")
