"""A network of any class as the layers of a chain.

An ``nn.Sequential`` is taken apart. A module of another class is followed by ``torch.fx`` (its forward pass is run on
symbols, not on data) and cut wherever one value alone goes on: a piece between two cuts is a layer of the module's, a
function that has a layer's name (``F.relu``, ``torch.flatten``), or, where paths part and join again as in a residual
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
from dladmm.network.recurrent_module import Recurrent


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a network in order, nested ``nn.Sequential`` taken apart."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [layer for child in module for layer in layers_of(child)]


def chain_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of any network in the order of its forward pass; they hold the network's own parameters."""
    if isinstance(module, nn.Sequential) or _known(module):
        found = [part for layer in layers_of(module) for part in _opened(layer)]
    else:
        found = [part for piece in _pieces(module) for layer in layers_of(piece) for part in _opened(layer)]
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


def _known(module: nn.Module) -> bool:
    """Whether the module is a layer, not a network: torch's own ones, and this library's."""
    return type(module).__module__.partition(".")[0] in ("torch", "dladmm")


def _opened(layer: nn.Module) -> list[nn.Module]:
    """A user's module inside a network: its layers where it is a chain of known ones, else itself."""
    if _known(layer):
        return [layer]
    try:
        pieces = [part for piece in _pieces(layer) for part in layers_of(piece)]
    except InputError:
        return [layer]
    plain = all(_known(piece) and not isinstance(piece, fx.GraphModule) for piece in pieces)
    return pieces if plain and pieces else [layer]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _pieces(module: nn.Module) -> list[nn.Module]:
    """What a module's forward pass is made of, one piece after the other."""
    name = type(module).__name__
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # a forward pass may raise whatever it likes when it is given symbols
        raise InputError(
            f"the forward pass of {name} cannot be followed ({error}). Write the network as an nn.Sequential; a module "
            "of yours inside it becomes one block."
        ) from error
    for node in reversed(list(graph.nodes)):  # such as the hidden state that nobody takes
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
        if _goes_on_alone(inputs[0], nodes, end) and not _half_taken(module, node):
            pieces += _layers(module, entry, nodes[begin : end + 1])
            begin, entry = end + 1, node
    return pieces


def _goes_on_alone(first: fx.Node, nodes: list[fx.Node], end: int) -> bool:
    """Whether of all that was computed up to ``end`` only that node is used later."""
    later = {*nodes[end + 1 :]}
    used = [n for n in (first, *nodes[: end + 1]) if any(u in later or u.op == "output" for u in n.users)]
    return used == [nodes[end]]


def _layers(module: nn.Module, entry: fx.Node, nodes: list[fx.Node]) -> list[nn.Module]:
    """One piece as layers: a child of the module, a function's layer, a reshaping, a recurrent layer, or as it is."""
    last = nodes[-1]
    arguments = [item for item in (*last.args[1:], *last.kwargs.values()) if isinstance(item, fx.Node)]
    if len(nodes) == 1 and last.args[:1] == (entry,) and not arguments:
        if last.op == "call_module" and len(last.args) == 1 and not last.kwargs:
            return [module.get_submodule(str(last.target))]
        made = _FUNCTIONS.get(last.target)
        if made is not None:
            kwargs = {name: value for name, value in last.kwargs.items() if name != "inplace"}
            try:
                return [made(*last.args[1:], **kwargs)]
            except (TypeError, ValueError):
                pass  # not as the layer takes them: a module of its own
    taken = _taken_of_recurrent(module, last)
    if taken is not None and nodes[0] is taken[0] and taken[0].args == (entry,):
        return [Recurrent(module.get_submodule(str(taken[0].target)), last=_kind(taken[1]) == "last")]
    reshaped = _reshaping(entry, nodes)
    return [_own_piece(module, entry, nodes)] if reshaped is None else reshaped


# Functions -----------------------------------------------------------------------------------------------------


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    if start_dim != 1:
        raise ValueError("samples must stay apart")
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
_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    torch.flatten: _flatten, "flatten": _flatten,
    F.dropout: lambda p=0.5, training=True: nn.Dropout(p),
    **{name: layer for layer, names in _NAMED for name in names},
}  # fmt: skip
"""Functions that are layers without parameters; their further arguments are the layer's."""


def _reshaping(entry: fx.Node, nodes: list[fx.Node]) -> list[nn.Module] | None:
    """``x.view(x.size(0), -1)`` and its like, where the samples stay apart."""
    *asking, last = nodes
    if last.op != "call_method" or last.target not in ("view", "reshape") or last.args[0] is not entry:
        return None
    asks = ("size", getattr, operator.getitem, len)
    if any(node.target not in asks for node in asking):
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


def _taken_of_recurrent(module: nn.Module, node: fx.Node) -> tuple[fx.Node, list[Any]] | None:
    """The recurrent layer whose output this node takes a part of, and which part; None for other nodes."""
    keys: list[Any] = []
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        keys.insert(0, node.args[1])
        node = node.args[0]
    return (node, keys) if isinstance(_child(module, node), nn.RNNBase) else None


def _kind(keys: list[Any]) -> str | None:
    """``output``, ``output[:, -1]`` or ``hidden[-1]`` of what torch's recurrent layers return; None for other parts."""
    if keys == [0]:
        return "all"
    of_output = len(keys) == 2 and keys[0] == 0 and isinstance(keys[1], tuple) and keys[1][1:2] == (-1,)
    of_hidden = len(keys) >= 2 and keys[:-1] in ([1], [1, 0]) and keys[-1] in (0, -1)
    whole = slice(None)
    if of_output:
        return "last" if all(key == whole for i, key in enumerate(keys[1]) if i != 1) else None
    return "last" if of_hidden else None


def _half_taken(module: nn.Module, node: fx.Node) -> bool:
    """Whether the node is a pair, or a part of one that the next node takes a part of: no place to cut."""
    taken = _taken_of_recurrent(module, node)
    if taken is None:
        return False
    kind, lstm = _kind(taken[1]), isinstance(_child(module, taken[0]), nn.LSTM)
    if kind is None or (lstm and taken[1][:1] == [1] and len(taken[1]) < 3):
        return True
    users = list(node.users)
    return kind == "all" and len(users) == 1 and (_kind([*taken[1], *users[0].args[1:2]]) == "last")


def _own_piece(module: nn.Module, entry: fx.Node, nodes: list[fx.Node]) -> nn.Module:
    """The piece as a module of its own, with the network's own parameters."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {entry: graph.placeholder("x")}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(copies[nodes[-1]])
    return fx.GraphModule(module, graph, class_name=f"{type(module).__name__}Part")
