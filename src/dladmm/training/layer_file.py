"""Layers of a network as JSON and back; no user code is stored or executed.

Layers of torch and of this library are described by a name from a fixed table and their arguments. Of any other module
a file holds only the weights, and loading needs the module.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.activations import from_module as activation_of
from dladmm.activations import get_activation
from dladmm.base.errors import InputError
from dladmm.base.fields import fields, flag, text, whole
from dladmm.network.graph_module import GraphLayer
from dladmm.network.recurrent_module import Recurrent
from dladmm.network.soft_clip import SoftClip
from dladmm.network.table_inputs import TableInputs
from dladmm.training.layer_fields import check_arguments

_CONVOLUTION = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias", "padding_mode",
)  # fmt: skip
_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVERAGE_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_BATCH_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")

LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv1d: _CONVOLUTION, nn.Conv2d: _CONVOLUTION,
    nn.MaxPool1d: _MAX_POOL, nn.MaxPool2d: _MAX_POOL, nn.MaxPool3d: _MAX_POOL,
    nn.AvgPool1d: _AVERAGE_POOL,
    nn.AvgPool2d: (*_AVERAGE_POOL, "divisor_override"), nn.AvgPool3d: (*_AVERAGE_POOL, "divisor_override"),
    nn.AdaptiveAvgPool1d: ("output_size",), nn.AdaptiveAvgPool2d: ("output_size",),
    nn.AdaptiveAvgPool3d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"), nn.Unflatten: ("dim", "unflattened_size"),
    nn.ZeroPad1d: ("padding",), nn.ZeroPad2d: ("padding",),
    nn.PixelShuffle: ("upscale_factor",), nn.PixelUnshuffle: ("downscale_factor",),
    nn.Upsample: ("size", "scale_factor", "mode", "align_corners"),
    nn.BatchNorm1d: _BATCH_NORM, nn.BatchNorm2d: _BATCH_NORM, nn.BatchNorm3d: _BATCH_NORM,
    nn.InstanceNorm1d: _BATCH_NORM, nn.InstanceNorm2d: _BATCH_NORM,
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine", "bias"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
    nn.GELU: ("approximate",), nn.SiLU: (), nn.SELU: (), nn.Mish: (), nn.Hardswish: (), nn.Softmax: ("dim",),
    nn.Embedding: ("num_embeddings", "embedding_dim", "padding_idx"),
    nn.Dropout: ("p",), nn.Dropout1d: ("p",), nn.Dropout2d: ("p",), nn.Dropout3d: ("p",),
    nn.PReLU: ("num_parameters",), SoftClip: ("n_features", "limit"),
    TableInputs: ("n_features", "n_knots", "limit"),
}  # fmt: skip
"""Layers that a file can describe, and the arguments needed to rebuild them."""

_RECURRENT: dict[str, Any] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
_CELL = ("input_size", "hidden_size", "bias")
_NAMED = {layer.__name__: layer for layer in LAYERS}


def describe(layer: nn.Module) -> dict[str, Any]:
    """A JSON description from which :func:`build` rebuilds the layer; type "own" where only weights can be stored."""
    if isinstance(layer, GraphLayer):
        n_out, n_in = layer.weight.shape
        activation = activation_of(layer.activation)
        if activation is None:
            raise InputError(f"a model file cannot describe the activation {layer.activation!r} of a graph.")
        return {"type": "graph", "n_in": n_in, "n_out": n_out, "f": activation.to_spec()}
    if type(layer) is nn.Linear:
        sizes = {"n_in": layer.in_features, "n_out": layer.out_features}
        return {"type": "linear", **sizes, "bias": layer.bias is not None}
    if type(layer) is Recurrent:
        rnn = layer.rnn
        names = (*_CELL, *(("nonlinearity",) if type(rnn) is nn.RNN else ()))
        return {
            "type": "recurrent", "class": type(rnn).__name__, "last": layer.last,
            "arguments": {name: getattr(rnn, name) for name in names},
        }  # fmt: skip
    activation = activation_of(layer)
    if activation is not None:
        return {"type": "activation", "f": activation.to_spec()}
    if type(layer) in LAYERS:
        arguments = {name: _argument(layer, name) for name in LAYERS[type(layer)]}
        return {
            "type": "torch",
            "class": type(layer).__name__,
            "arguments": arguments,
            "eval": not layer.training,
        }
    return {"type": "own", "class": type(layer).__name__}


def _argument(layer: nn.Module, name: str) -> Any:
    """An argument as a JSON value: tuples become lists, a bias becomes True or False."""
    value = getattr(layer, name)
    if name == "bias":
        return value is not None
    return list(value) if isinstance(value, tuple) else value


def build(
    spec: dict[str, Any], l: int, tensors: dict[str, Tensor], own: nn.Module | None = None
) -> nn.Module:
    """Layer l; sizes are checked against the tensors before memory is allocated. ``own`` is the caller's layer l."""
    kinds = ("activation", "linear", "graph", "own", "recurrent", "torch")
    kind = text(f"the type of layer {l}", fields(f"layer {l}", spec)["type"], kinds)
    if kind == "activation":
        return get_activation(spec["f"]).module()
    mine = {
        name.removeprefix(f"layers.{l}."): t for name, t in tensors.items() if name.startswith(f"layers.{l}.")
    }
    if kind in ("linear", "graph"):
        weight = mine["weight"]
        n_in, n_out = whole("n_in", spec["n_in"]), whole("n_out", spec["n_out"])
        if tuple(weight.shape) != (n_out, n_in) or not weight.is_floating_point():
            raise ValueError(f"layer {l} of {n_in} -> {n_out} has a weight of shape {tuple(weight.shape)}.")
        if kind == "graph":
            return GraphLayer(weight, get_activation(spec["f"]).module())
        return _filled(nn.Linear(n_in, n_out, bias=flag("bias", spec["bias"]), device="meta"), mine, l)
    if kind == "own":
        if own is None:
            raise InputError(
                f"layer {l} is a {spec['class']}, code that a file does not hold. Build the network yourself and pass "
                "it as load_model(path, module=network): the weights are put into a copy of it."
            )
        return _filled(copy.deepcopy(own), mine, l)
    with torch.device("meta"):  # no memory, no random numbers
        layer = _made(spec, l)
    return _filled(layer, mine, l).train(not flag("eval", spec.get("eval", False)))


def _made(spec: dict[str, Any], l: int) -> nn.Module:
    name = text(f"the class of layer {l}", spec["class"])
    recurrent = spec["type"] == "recurrent"
    if name not in (_RECURRENT if recurrent else _NAMED):
        raise ValueError(f"layer {l} is of the unknown class {name!r}.")
    names = (*_CELL, *(("nonlinearity",) if name == "RNN" else ())) if recurrent else LAYERS[_NAMED[name]]
    arguments = {
        argument: tuple(value) if isinstance(value, list) else value
        for argument, value in check_arguments(name, spec["arguments"], names).items()
    }
    if recurrent:
        last = flag("last", spec["last"])
        return Recurrent(_RECURRENT[name](**arguments, batch_first=True), last=last)
    return _NAMED[name](**arguments)


def _filled(layer: nn.Module, tensors: dict[str, Tensor], l: int) -> nn.Module:
    """The layer with these weights and statistics; raises ValueError unless they match the layer's exactly."""
    wanted = layer.state_dict()
    for name, tensor in tensors.items():
        if name not in wanted or wanted[name].shape != tensor.shape:
            raise ValueError(
                f"layer {l}, {type(layer).__name__}, has a {name} of shape {tuple(tensor.shape)}."
            )
        if wanted[name].is_floating_point() != tensor.is_floating_point():
            raise ValueError(f"layer {l}, {type(layer).__name__}, has a {name} of {tensor.dtype}.")
    missing = sorted(set(wanted) - set(tensors))
    if missing:
        raise ValueError(f"layer {l}, {type(layer).__name__}, lacks {', '.join(missing)}.")
    if len({tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}) > 1:
        raise ValueError(f"layer {l}, {type(layer).__name__}, has tensors of different types.")
    layer.load_state_dict(tensors, assign=True)
    for p in layer.parameters():
        p.requires_grad_()
    return layer
