"""Saves trained networks to files and rebuilds the torch modules, without storing user code."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from dladmm.activations import from_module as activation_of
from dladmm.base.container import load, save
from dladmm.base.errors import DataError, DladmmError, InputError
from dladmm.base.fields import fields, items, real, text, whole
from dladmm.base.history import History, Status
from dladmm.engine.certificate import Certificate
from dladmm.engine.problem import State
from dladmm.losses import LOSSES, Loss, get_loss
from dladmm.network.chain import layers_of
from dladmm.network.graph_module import GraphLayer, GraphNetwork
from dladmm.network.soft_clip import SoftClip
from dladmm.network.table_inputs import TableInputs
from dladmm.network.tracing import chain_layers
from dladmm.training.layer_file import build, describe

if TYPE_CHECKING:
    from dladmm.training.result import Result


MOST_LAYERS = 10_000
UNUSABLE = (DladmmError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)
"""What reading a document of another structure may raise."""


class WeightsOnly(UserWarning):
    """Warning: a layer is user code, of which a file holds only the weights."""


@dataclass(frozen=True)
class SavedModel:
    """The content of a model file, returned by :func:`load_model`.

    Attributes
    ----------
    module : nn.Module
        The network, on the CPU.
    loss : Loss or None
    extra : dict
        What was passed to ``save_model`` as ``extra``.
    status, history, certificate
        Of the run, if a :class:`~dladmm.Result` was saved, else None; the certificate is a dictionary.
    state : State or None
        The last iterate, if it was saved.
    """

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

    Parameters
    ----------
    model : Result or nn.Module
        A result of training, or an ``nn.Sequential`` of layers of torch and this library, or a graph network of this
        library. Of a layer of your own only the weights are stored, with a warning (:class:`WeightsOnly`), and
        :func:`load_model` needs the network as ``module``.
    path : str or path
    loss : str, dict or Loss, optional
        The loss, needed for class probabilities.
    extra : mapping, optional
        Further values to store (class names, for example), which must be representable in JSON.
    state : bool, default False
        Also store the last iterate (z, a, u), which is as large as the training data; needs a Result.
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


def load_model(path: str | os.PathLike[str], *, module: nn.Module | None = None) -> SavedModel:
    """Load a network that ``save_model`` or ``Result.save`` wrote.

    Parameters
    ----------
    path : str or path
    module : nn.Module, optional
        A network with the same layers, needed where layers are code of your own; it is not changed.

    Returns
    -------
    SavedModel
        The network on the CPU, and what was saved with it.
    """
    tensors, meta = load(path, "model")
    given = None if module is None else chain_layers(module)
    try:
        specs = items("layers", meta["layers"], MOST_LAYERS)
        if given is not None and len(given) != len(specs):
            raise InputError(f"the network has {len(specs)} layers, the module given {len(given)}.")
        by_layer = _by_layer(tensors)
        layers = [
            build(spec, l, by_layer[str(l)], None if given is None else given[l])
            for l, spec in enumerate(specs)
        ]
        _check_sizes(layers)
        graph = text("network", meta["network"], ("graph", "sequential")) == "graph"
        if graph and not all(isinstance(layer, GraphLayer) for layer in layers):
            raise DataError("the network is a graph network with layers that are none")
        result = meta.get("result")
        if result is not None:
            text("status", fields("result", result)["status"], list(Status.__members__))
            Certificate.from_dict(result["certificate"])
        return SavedModel(
            module=GraphNetwork(layers) if graph else nn.Sequential(*layers),
            loss=None if meta["loss"] is None else get_loss(meta["loss"]),
            extra=dict(fields("extra", meta["extra"])),
            status=None if result is None else Status[result["status"]],
            history=None if result is None else History.from_dict(result["history"]),
            certificate=None if result is None else dict(result["certificate"]),
            state=_state(tensors, fields("state", meta["state"])) if "state" in meta else None,
        )
    except UNUSABLE as error:
        raise DataError(f"{path} describes no network that this library can build: {error}") from error


def _by_layer(tensors: dict[str, Tensor]) -> defaultdict[str, dict[str, Tensor]]:
    """The tensors of layers, by the number of the layer; all of one floating-point type."""
    found: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if name.startswith("layers."):
            found[name.split(".", 2)[1]][name] = tensor
    kinds = {tensor.dtype for own in found.values() for tensor in own.values() if tensor.is_floating_point()}
    if len(kinds) > 1:
        raise DataError(f"the weights are of different types: {', '.join(sorted(map(str, kinds)))}")
    return found


def _check_sizes(layers: list[nn.Module]) -> None:
    """Raise where a linear layer does not take what the one before it gives, with only functions of entries between."""
    width: int | None = None
    for l, layer in enumerate(layers):
        if isinstance(layer, (nn.Linear, GraphLayer)):
            n_out, n_in = layer.weight.shape
            if width not in (None, n_in):
                raise DataError(f"layer {l} takes {n_in} inputs, the layers before it give {width}")
            width = n_out
        elif isinstance(layer, (SoftClip, TableInputs)):
            width = layer.n_outputs
        elif activation_of(layer) is None and not isinstance(layer, nn.Dropout):
            width = None


def _described(module: nn.Module) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Every layer as a JSON description, and the parameters and statistics by name."""
    if not isinstance(module, (GraphNetwork, nn.Sequential, nn.Linear)):
        raise InputError(
            f"a model file cannot describe {type(module).__name__}: it holds an nn.Sequential. Save a Result of train, "
            "or module.state_dict() and build the module yourself."
        )
    layers = list(module.layers) if isinstance(module, GraphNetwork) else layers_of(module)
    specs = [describe(layer) for layer in layers]
    own = [spec["class"] for spec in specs if spec["type"] == "own"]
    if own:
        warnings.warn(
            f"{', '.join(own)} is code, which a file does not hold: only the weights are saved, and "
            "load_model(path, module=network) puts them into a network that you build.",
            WeightsOnly,
            stacklevel=3,
        )
    tensors = {
        f"layers.{l}.{name}": t for l, layer in enumerate(layers) for name, t in layer.state_dict().items()
    }
    return specs, tensors


def _loss_spec(loss: Loss) -> dict[str, Any]:
    if type(loss) not in LOSSES.values():
        raise InputError(f"loss {loss.name!r} is code, which a file does not hold; pass loss=None.")
    return loss.to_spec()


def _state_tensors(state: State) -> dict[str, Tensor]:
    tensors = {"state.u": state.u}
    for l, params in enumerate(state.params):
        tensors |= {f"state.params.{l}.{name}": p for name, p in params.items()}
        tensors |= {f"state.outputs.{l}": state.outputs[l], f"state.predictions.{l}": state.predictions[l]}
    return tensors


def _state(tensors: dict[str, Tensor], meta: dict[str, Any]) -> State:
    blocks = range(whole("blocks", meta["blocks"], 0, len(tensors)))
    params = [
        {name.rsplit(".", 1)[1]: p for name, p in tensors.items() if name.startswith(f"state.params.{l}.")}
        for l in blocks
    ]
    return State(
        params=params,
        outputs=[tensors[f"state.outputs.{l}"] for l in blocks],
        predictions=[tensors[f"state.predictions.{l}"] for l in blocks],
        u=tensors["state.u"],
        rho=real("rho", meta["rho"]),
        nu=real("nu", meta["nu"]),
    )
