"""Splits a torch module of any class into the layers of a chain.

An ``nn.Sequential`` is flattened. Another module is traced by ``torch.fx`` (its forward pass runs on symbols, not on
data) and cut wherever a single tensor is passed on. A piece between two cuts is a child layer of the module, a function
that corresponds to a layer (``F.relu``, ``torch.flatten``), or, where paths split and join again as in a residual
connection, a small module of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.network.chain import layers_of
from dladmm.network.recurrent_module import Recurrent


def chain_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of any network in the order of its forward pass; they share the network's parameters."""
    if isinstance(module, nn.Sequential) or _is_library_layer(module):
        found = [part for layer in layers_of(module) for part in _expanded(layer)]
    else:
        found = [part for piece in _pieces(module) for layer in layers_of(piece) for part in _expanded(layer)]
    held: set[int] = set()
    for layer in found:
        own = {id(p) for p in layer.parameters()}
        if held & own:
            raise InputError(
                f"{layer!r} shares parameters with a layer before it: every layer of a chain has its own. Put what "
                "shares them into one module, which becomes one block."
            )
        held |= own
    return found


def _is_library_layer(module: nn.Module) -> bool:
    """Whether the module's class belongs to torch or to this library, and is therefore a layer, not a network."""
    return type(module).__module__.partition(".")[0] in ("torch", "dladmm")


def _expanded(layer: nn.Module) -> list[nn.Module]:
    """The layers of a user's module inside a network if it is a chain of library layers, else the module itself."""
    if _is_library_layer(layer):
        return [layer]
    try:
        pieces = [part for piece in _pieces(layer) for part in layers_of(piece)]
    except InputError:
        return [layer]
    all_layers = all(_is_library_layer(p) and not isinstance(p, fx.GraphModule) for p in pieces)
    return pieces if all_layers and pieces else [layer]


class LeafTracer(fx.Tracer):
    """Follows a forward pass without looking into the modules that it calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _pieces(module: nn.Module) -> list[nn.Module]:
    """The pieces of a module's forward pass, in order."""
    name = type(module).__name__
    try:
        graph = LeafTracer().trace(module)
    except Exception as error:  # a forward pass may raise anything when it is given symbols
        raise InputError(
            f"the forward pass of {name} cannot be traced ({error}). Write the network as an nn.Sequential; a module "
            "of yours inside it becomes one block."
        ) from error
    for node in reversed(list(graph.nodes)):  # unused results, such as the hidden state of an RNN
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    if len(inputs) != 1 or not isinstance(result, fx.Node) or not nodes:
        raise InputError(f"{name} must be a function of one tensor that returns one tensor.")
    pieces: list[nn.Module] = []
    begin, entry = 0, inputs[0]
    for end, node in enumerate(nodes):
        if _is_cut(inputs[0], nodes, end) and not _is_partial_rnn_output(module, node):
            pieces += _layers(module, entry, nodes[begin : end + 1])
            begin, entry = end + 1, node
    return pieces


def _is_cut(first: fx.Node, nodes: list[fx.Node], end: int) -> bool:
    """Whether node ``end`` is the only result so far that is used later."""
    later = {*nodes[end + 1 :]}
    used = [n for n in (first, *nodes[: end + 1]) if any(u in later or u.op == "output" for u in n.users)]
    return used == [nodes[end]]


def _layers(module: nn.Module, entry: fx.Node, nodes: list[fx.Node]) -> list[nn.Module]:
    """The layers of one piece: a child of the module, a function, a reshape, a recurrent layer, or a traced module."""
    last = nodes[-1]
    arguments = [item for item in (*last.args[1:], *last.kwargs.values()) if isinstance(item, fx.Node)]
    if len(nodes) == 1 and last.args[:1] == (entry,) and not arguments:
        if last.op == "call_module" and len(last.args) == 1 and not last.kwargs:
            return [module.get_submodule(str(last.target))]
        made = FUNCTIONS.get(last.target)
        if made is not None:
            kwargs = {name: value for name, value in last.kwargs.items() if name != "inplace"}
            try:
                return [made(*last.args[1:], **kwargs)]
            except (TypeError, ValueError):
                pass  # arguments that the layer does not take: becomes a traced module
    selected = _rnn_selection(module, last)
    if selected is not None and nodes[0] is selected[0] and selected[0].args == (entry,):
        rnn, keys = selected
        return [Recurrent(module.get_submodule(str(rnn.target)), last=_rnn_part(keys) == "last")]
    reshaped = _reshaping(entry, nodes)
    return [_own_piece(module, entry, nodes)] if reshaped is None else reshaped


# Functions -----------------------------------------------------------------------------------------------------


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    if start_dim != 1:
        raise ValueError("the sample dimension must be kept")
    return nn.Flatten(start_dim, end_dim)


_NAMED: list[tuple[type[nn.Module], tuple[Any, ...]]] = [
    (nn.ReLU, (torch.relu, F.relu, "relu", "relu_")),
    (nn.Tanh, (torch.tanh, F.tanh, "tanh")),
    (nn.Sigmoid, (torch.sigmoid, F.sigmoid, "sigmoid")),
    (nn.LeakyReLU, (F.leaky_relu,)), (nn.ELU, (F.elu,)), (nn.Hardtanh, (F.hardtanh,)), (nn.Softplus, (F.softplus,)),
    (nn.GELU, (F.gelu,)), (nn.SiLU, (F.silu,)),
    (nn.MaxPool1d, (F.max_pool1d, torch.max_pool1d)), (nn.MaxPool2d, (F.max_pool2d, torch.max_pool2d)),
    (nn.AvgPool1d, (F.avg_pool1d,)), (nn.AvgPool2d, (F.avg_pool2d,)),
    (nn.AdaptiveAvgPool1d, (F.adaptive_avg_pool1d,)), (nn.AdaptiveAvgPool2d, (F.adaptive_avg_pool2d,)),
]  # fmt: skip
FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    torch.flatten: _flatten, "flatten": _flatten,
    F.dropout: lambda p=0.5, training=True: nn.Dropout(p),
    **{name: layer for layer, names in _NAMED for name in names},
}  # fmt: skip
"""Functions that correspond to parameter-free layers; their arguments after the input are the layer's."""


def _reshaping(entry: fx.Node, nodes: list[fx.Node]) -> list[nn.Module] | None:
    """Layers for ``x.view(x.size(0), -1)`` and similar reshapes that keep the sample dimension, else None."""
    *size_queries, last = nodes
    if last.op != "call_method" or last.target not in ("view", "reshape") or last.args[0] is not entry:
        return None
    if any(node.target not in ("size", getattr, operator.getitem, len) for node in size_queries):
        return None
    sizes: Any = last.args[1:]
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    samples, *rest = sizes
    if not (samples == -1 or isinstance(samples, fx.Node)) or not all(type(size) is int for size in rest):
        return None
    if len(rest) == 1:
        return [nn.Flatten()]
    return [nn.Flatten(), nn.Unflatten(1, tuple(rest))] if rest else None


# Recurrent layers ----------------------------------------------------------------------------------------------


def _child(module: nn.Module, node: fx.Node) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


def _rnn_selection(module: nn.Module, node: fx.Node) -> tuple[fx.Node, list[Any]] | None:
    """The recurrent layer whose output this node indexes, and the index keys; None for other nodes."""
    keys: list[Any] = []
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        keys.insert(0, node.args[1])
        node = node.args[0]
    return (node, keys) if isinstance(_child(module, node), nn.RNNBase) else None


def _rnn_part(keys: list[Any]) -> str | None:
    """Which part of a recurrent layer's result: "all" is ``output``, "last" ``output[:, -1]`` or ``hidden[-1]``."""
    if keys == [0]:
        return "all"
    of_output = len(keys) == 2 and keys[0] == 0 and isinstance(keys[1], tuple) and keys[1][1:2] == (-1,)
    of_hidden = len(keys) >= 2 and keys[:-1] in ([1], [1, 0]) and keys[-1] in (0, -1)
    whole = slice(None)
    if of_output:
        return "last" if all(key == whole for i, key in enumerate(keys[1]) if i != 1) else None
    return "last" if of_hidden else None


def _is_partial_rnn_output(module: nn.Module, node: fx.Node) -> bool:
    """Whether the node is a recurrent layer's pair, or a part of it that the next node indexes further."""
    selected = _rnn_selection(module, node)
    if selected is None:
        return False
    rnn, keys = selected
    part = _rnn_part(keys)
    if part is None or (isinstance(_child(module, rnn), nn.LSTM) and keys[:1] == [1] and len(keys) < 3):
        return True
    users = list(node.users)
    return part == "all" and len(users) == 1 and (_rnn_part([*keys, *users[0].args[1:2]]) == "last")


def _own_piece(module: nn.Module, entry: fx.Node, nodes: list[fx.Node]) -> nn.Module:
    """The piece as a traced module that shares the network's parameters."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {entry: graph.placeholder("x")}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(copies[nodes[-1]])
    return fx.GraphModule(module, graph, class_name=f"{type(module).__name__}Part")
