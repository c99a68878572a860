"""Trained networks as files: what is needed to build the torch module again, without code of the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from dladmm.activations import from_module as activation_of
from dladmm.activations import get_activation
from dladmm.container import load, save
from dladmm.errors import DataError, DladmmError, InputError
from dladmm.graph_module import GraphLayer, GraphNetwork
from dladmm.history import History
from dladmm.losses import LOSSES, Loss, get_loss
from dladmm.state import State
from dladmm.status import Status

if TYPE_CHECKING:
    from dladmm.trainer import Result


@dataclass(frozen=True)
class SavedModel:
    """What :func:`load_model` found. ``status``, ``history`` and ``certificate`` are there if a Result was saved."""

    module: nn.Module
    loss: Loss | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    status: Status | None = None
    history: History | None = None
    certificate: dict[str, Any] | None = None
    state: State | None = None


def save_model(
    model: Result | nn.Module,
    path: str | os.PathLike[str],
    *,
    loss: str | dict[str, Any] | Loss | None = None,
    extra: Mapping[str, Any] | None = None,
    state: bool = False,
) -> None:
    """Write a trained network to one file.

    ``model`` is a Result, or a module: an ``nn.Sequential`` of Linear and known activations, or a graph network of
    this library. ``extra`` is what else you want to find again, as JSON can hold it (class names, say). ``state``
    also keeps the last iterate (z, a, u), which is as large as the training data.
    """
    module = model if isinstance(model, nn.Module) else model.module
    layers, tensors = _described(module)
    meta: dict[str, Any] = {
        "network": "graph" if isinstance(module, GraphNetwork) else "sequential",
        "layers": layers,
        "loss": None if loss is None else _loss_spec(get_loss(loss)),
        "extra": dict(extra or {}),
    }
    if not isinstance(model, nn.Module):
        meta["result"] = {
            "status": model.status.name,
            "history": model.history.to_dict(),
            "certificate": model.certificate.to_dict(),
        }
    if state:
        if isinstance(model, nn.Module):
            raise InputError("state=True needs a Result: a module has no iterate to keep.")
        tensors |= _state_tensors(model.state)
        meta["state"] = {"rho": model.state.rho, "nu": model.state.nu, "blocks": len(model.state.outputs)}
    save(path, "model", tensors, meta)


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """The network of a file that :func:`save_model` wrote, on the CPU, with what was saved beside it."""
    tensors, meta = load(path, "model")
    try:
        layers = [_built(spec, l, tensors) for l, spec in enumerate(meta["layers"])]
        graph = {"graph": True, "sequential": False}[meta["network"]]
        result = meta.get("result")
        return SavedModel(
            module=GraphNetwork(layers) if graph else nn.Sequential(*layers),
            loss=None if meta["loss"] is None else get_loss(meta["loss"]),
            extra=dict(meta["extra"]),
            status=None if result is None else Status[result["status"]],
            history=None if result is None else History(result["history"]),
            certificate=None if result is None else dict(result["certificate"]),
            state=_state(tensors, meta["state"]) if "state" in meta else None,
        )
    except (DladmmError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} describes no network that this library can build: {error}") from error


def _described(module: nn.Module) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Every layer as JSON can hold it, and the parameters by name."""
    if isinstance(module, GraphNetwork):
        layers = list(module.layers)
    else:
        layers = [module] if isinstance(module, nn.Linear) else list(module.children())
        if not isinstance(module, (nn.Sequential, nn.Linear)):
            raise _unknown(module)
    specs: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for l, layer in enumerate(layers):
        if isinstance(layer, GraphLayer):
            n_out, n_in = layer.weight.shape
            specs.append({"type": "graph", "n_in": n_in, "n_out": n_out, "f": _spec(layer.activation)})
        elif type(layer) is nn.Linear:
            bias = layer.bias is not None
            specs.append(
                {"type": "linear", "n_in": layer.in_features, "n_out": layer.out_features, "bias": bias}
            )
        else:
            specs.append({"type": "activation", "f": _spec(layer)})
        parameters = layer.named_parameters(recurse=False)
        tensors |= {f"layers.{l}.{name}": p for name, p in parameters}
    return specs, tensors


def _spec(layer: nn.Module) -> dict[str, Any]:
    activation = activation_of(layer)
    if activation is None:
        raise _unknown(layer)
    return activation.to_spec()


def _unknown(module: nn.Module) -> InputError:
    return InputError(
        f"a model file cannot describe {type(module).__name__}: it holds an nn.Sequential of nn.Linear and the "
        "library's activations. Save result.module.state_dict() instead and build the module yourself."
    )


def _loss_spec(loss: Loss) -> dict[str, Any]:
    if type(loss) not in LOSSES.values():
        raise InputError(f"loss {loss.name!r} is code, which a file does not hold; pass loss=None.")
    return loss.to_spec()


def _built(spec: dict[str, Any], l: int, tensors: dict[str, Tensor]) -> nn.Module:
    """One layer; sizes are checked against the tensors before anything is made of them."""
    if spec["type"] == "activation":
        return get_activation(spec["f"]).module()
    weight = tensors[f"layers.{l}.weight"]
    n_in, n_out = spec["n_in"], spec["n_out"]
    if tuple(weight.shape) != (n_out, n_in) or not weight.is_floating_point():
        raise ValueError(f"layer {l} of {n_in} -> {n_out} has a weight of shape {tuple(weight.shape)}.")
    if spec["type"] == "graph":
        return GraphLayer(weight, get_activation(spec["f"]).module())
    if spec["type"] != "linear":
        raise ValueError(f"layer {l} has the unknown type {spec['type']!r}.")
    layer = nn.Linear(n_in, n_out, bias=spec["bias"], device="meta")  # no memory, no random numbers
    layer.weight = nn.Parameter(weight)
    if spec["bias"]:
        bias = tensors[f"layers.{l}.bias"]
        if tuple(bias.shape) != (n_out,) or bias.dtype != weight.dtype:
            raise ValueError(f"layer {l} of {n_in} -> {n_out} has a bias of shape {tuple(bias.shape)}.")
        layer.bias = nn.Parameter(bias)
    return layer


def _state_tensors(state: State) -> dict[str, Tensor]:
    tensors = {"state.u": state.u}
    for l, params in enumerate(state.params):
        tensors |= {f"state.params.{l}.{name}": p for name, p in params.items()}
        tensors |= {f"state.outputs.{l}": state.outputs[l], f"state.predictions.{l}": state.predictions[l]}
    return tensors


def _state(tensors: dict[str, Tensor], meta: dict[str, Any]) -> State:
    blocks = range(min(int(meta["blocks"]), len(tensors)))
    params = [
        {name.rsplit(".", 1)[1]: p for name, p in tensors.items() if name.startswith(f"state.params.{l}.")}
        for l in blocks
    ]
    return State(
        params=params,
        outputs=[tensors[f"state.outputs.{l}"] for l in blocks],
        predictions=[tensors[f"state.predictions.{l}"] for l in blocks],
        u=tensors["state.u"],
        rho=float(meta["rho"]),
        nu=float(meta["nu"]),
    )
