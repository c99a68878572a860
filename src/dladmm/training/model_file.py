"""Saves trained networks to files and rebuilds the torch modules, without storing user code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from dladmm.base.container import load, save
from dladmm.base.errors import DataError, DladmmError, InputError
from dladmm.base.history import History, Status
from dladmm.engine.problem import State
from dladmm.losses import LOSSES, Loss, get_loss
from dladmm.network.chain import layers_of
from dladmm.network.graph_module import GraphNetwork
from dladmm.network.tracing import chain_layers
from dladmm.training.layer_file import build, describe

if TYPE_CHECKING:
    from dladmm.training.result import Result


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
        if given is not None and len(given) != len(meta["layers"]):
            raise InputError(f"the network has {len(meta['layers'])} layers, the module given {len(given)}.")
        layers = [
            build(spec, l, tensors, None if given is None else given[l])
            for l, spec in enumerate(meta["layers"])
        ]
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
    except (DladmmError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(f"{path} describes no network that this library can build: {error}") from error


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
