"""PyG modules, ``network(x, edge_index)``, as chains: ``GCNConv`` and ``SAGEConv`` (mean) with what lies between them.

PyG need not be installed: convolutions are known by the name of their class and by their attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.blocks import Affine, Block, Frozen, NodeMap, Params
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.from_layer import blocks_of
from dladmm.network.tracing import FUNCTIONS, LeafTracer

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Edges:
    """The edges of a graph from source to target, as PyG's messages go; ``weight`` None means 1 each."""

    source: Array
    target: Array
    weight: Array | None
    n_nodes: int

    def matrix(self, values: Array) -> sparse.csr_array:
        """``M[target, source]``; what is given twice counts twice, as in PyG."""
        places = (self.target, self.source)
        return sparse.csr_array(sparse.coo_array((values, places), shape=(self.n_nodes, self.n_nodes)))

    def normalised(self) -> sparse.csr_array:
        """PyG's ``gcn_norm``: self loops of weight 1 where there are none, then by the roots of both ends' degrees."""
        weight = np.ones(len(self.source)) if self.weight is None else self.weight
        loop = self.source == self.target
        own = np.ones(self.n_nodes)
        own[self.source[loop]] = weight[loop]
        joined = self.matrix(np.where(loop, 0.0, weight)) + sparse.diags_array(own)
        degree = np.asarray(joined.sum(axis=1)).reshape(-1)
        root = sparse.diags_array(np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1e-300)), 0.0))
        return sparse.csr_array(root @ joined @ root)

    def means(self) -> sparse.csr_array:
        """The mean over the sources of a node's edges; 0 for a node without any."""
        found = self.matrix(np.ones(len(self.source)))
        count = np.asarray(found.sum(axis=1)).reshape(-1)
        return sparse.csr_array(sparse.diags_array(1 / np.maximum(count, 1.0)) @ found)


@dataclass(frozen=True)
class GraphChain:
    """The blocks of a PyG module, their parameters, and a function per block that writes trained ones back."""

    blocks: list[Block]
    params: list[Params]
    write: list[Callable[[Params], None]]


def graph_chain(model: nn.Module, edges: Edges, dtype: torch.dtype, device: torch.device) -> GraphChain:
    """The chain of a PyG module for one graph; raises by name for layers that are not known."""
    found = GraphChain([], [], [])
    run: list[nn.Module] = []
    for layer, weighted in _layers(model):
        if not _is_convolution(layer):
            run.append(layer)
            continue
        _add_run(found, run, dtype, device)
        run = []
        if edges.weight is not None and not weighted:
            raise InputError(
                f"{type(layer).__name__} is not given the edge_weight that the graph has: pass it on in the forward "
                "pass, or set data.edge_weight = None."
            )
        _add_convolution(found, layer, edges, dtype, device)
    _add_run(found, run, dtype, device)
    return found


def _add_run(found: GraphChain, run: list[nn.Module], dtype: torch.dtype, device: torch.device) -> None:
    """Layers that treat every node apart: Linear, activations, dropout."""
    with_parameters = (layer for layer in run if next(layer.parameters(), None) is not None)
    for block in blocks_of(run):
        known = block.initial_parameters(torch.Generator(), 1.0)
        layer = next(with_parameters) if known or isinstance(block, Frozen) else None
        own = {} if layer is None else {n: p for n, p in layer.named_parameters() if p.requires_grad}
        names = {n if n in known else _SHORT[n]: p for n, p in own.items()}
        _add(found, block, names, dtype, device)


_SHORT = {"weight": "W", "bias": "b"}


def _add(
    found: GraphChain, block: Block, own: dict[str, nn.Parameter], dtype: torch.dtype, device: torch.device
) -> None:
    def write(params: Params) -> None:
        for name, p in own.items():
            p.copy_(params[name])

    found.blocks.append(block)
    found.params.append({name: p.detach().to(device, dtype).clone() for name, p in own.items()})
    found.write.append(write)


def _is_convolution(layer: nn.Module) -> bool:
    return type(layer).__name__ in ("GCNConv", "SAGEConv")


def _add_convolution(
    found: GraphChain, layer: Any, edges: Edges, dtype: torch.dtype, device: torch.device
) -> None:
    gcn = type(layer).__name__ == "GCNConv"
    usual = {"flow": "source_to_target", **(_USUAL_GCN if gcn else _USUAL_SAGE)}
    for name, value in usual.items():
        if getattr(layer, name, value) != value:
            raise InputError(f"{layer!r} has {name}={getattr(layer, name)!r}; only {value!r} is supported.")
    matrix = SparseMatrix.of(edges.normalised() if gcn else edges.means(), dtype, device)
    beside = not gcn and bool(layer.root_weight)
    parts = [layer.lin.weight] if gcn else [layer.lin_l.weight, *([layer.lin_r.weight] if beside else [])]
    bias = layer.bias if gcn else layer.lin_l.bias
    trained = {p.requires_grad for p in layer.parameters()}
    if len(trained) > 1:
        raise InputError(f"{layer!r} is frozen in part; freeze a graph convolution whole or not at all.")
    _add(found, NodeMap(matrix, beside=beside), {}, dtype, device)
    W = torch.cat([p.detach() for p in parts], dim=1)
    affine = Affine(W.shape[1], W.shape[0], bias=bias is not None)
    params = {"W": W} | ({} if bias is None else {"b": bias.detach()})
    if trained == {False}:
        _add(found, Frozen(affine, params), {}, dtype, device)
        return

    def write(new: Params) -> None:
        begin = 0
        for p in parts:
            p.copy_(new["W"][:, begin : begin + p.shape[1]])
            begin += p.shape[1]
        if bias is not None:
            bias.copy_(new["b"])

    found.blocks.append(affine)
    found.params.append({name: p.to(device, dtype).clone() for name, p in params.items()})
    found.write.append(write)


_USUAL_GCN = {"improved": False, "add_self_loops": True, "normalize": True}
_USUAL_SAGE = {"aggr": "mean", "normalize": False, "project": False}


def _layers(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """The layers of the forward pass in order, and of convolutions whether they are given edge weights."""
    name = type(model).__name__
    try:
        graph = LeafTracer().trace(model)
    except Exception as error:  # a forward pass may raise anything when it is given symbols
        raise InputError(f"the forward pass of {name} cannot be traced ({error}).") from error
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) < 2:
        raise InputError(f"{name} must be a function of x and edge_index, as PyG's networks are.")
    current, found = inputs[0], []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.args[:1] != (current,):
            raise InputError(
                f"{node} of {name} does not go on from the layer before it: a chain of layers is needed."
            )
        found.append(_layer(model, node, inputs))
        current = node
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    if result is not current:
        raise InputError(f"{name} must return the output of its last layer.")
    return found


def _layer(model: nn.Module, node: fx.Node, inputs: list[fx.Node]) -> tuple[nn.Module, bool]:
    others = [arg for arg in (*node.args[1:], *node.kwargs.values()) if isinstance(arg, fx.Node)]
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        if _is_convolution(layer):
            if others[:1] != [inputs[1]]:
                raise InputError(f"{layer!r} must be given the network's edge_index.")
            return layer, len(others) > 1
        if others:
            raise InputError(
                f"{layer!r} is not known as a graph convolution; GCNConv and SAGEConv (mean) are taken in. Pooling of "
                "nodes belongs to graph-level tasks, which are not supported."
            )
        return layer, False
    made = FUNCTIONS.get(node.target)
    if made is not None and not others:
        kwargs = {name: value for name, value in node.kwargs.items() if name != "inplace"}
        return made(*node.args[1:], **kwargs), False
    if node.target in (F.log_softmax, F.softmax, torch.log_softmax, "log_softmax", "softmax"):
        raise InputError("leave the softmax at the end of the network to the loss.")
    label = getattr(node.target, "__name__", str(node.target))
    if "pool" in label:
        raise InputError(f"{label}: graph-level tasks (one label per graph) are not supported.")
    raise InputError(f"{label} is not known as a layer of a graph network.")


def features(x: sparse.csr_array | Array, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Node features (n_nodes, n_features) as a dense tensor."""
    dense = x if isinstance(x, np.ndarray) else x.toarray()
    return torch.from_numpy(np.ascontiguousarray(dense)).to(device, dtype)
