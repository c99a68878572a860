"""Converts the state of a torch optimiser to named tensors and JSON values and back, without pickle."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

SCRATCH = {"al"}
"""Temporaries of L-BFGS that need not be saved."""


class Stepper(Protocol):
    """What the methods ask of an optimiser: torch's own, or several of them as one."""

    param_groups: list[dict[str, Any]]

    def step(self, closure: Any = None) -> Any:
        """One step."""

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """``state`` by the number of the parameter, and ``param_groups``."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put that back."""


def packed(optimizer: Stepper) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of the optimiser's state by name, and the rest as JSON values with names in place of tensors."""
    tensors: dict[str, Tensor] = {}

    def pack(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
            return {"tensor": name}
        if isinstance(value, (list, tuple)):
            return [pack(item, f"{name}.{i}") for i, item in enumerate(value)]
        return value

    state = optimizer.state_dict()["state"]
    meta = {
        str(index): {key: pack(value, f"{index}.{key}") for key, value in held.items() if key not in SCRATCH}
        for index, held in state.items()
    }
    return tensors, meta


def unpack(optimizer: Stepper, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Restore what :func:`packed` returned; the tensors are copied."""

    def unpacked(value: Any) -> Any:
        if isinstance(value, dict):
            return torch.clone(tensors[value["tensor"]])
        return [unpacked(item) for item in value] if isinstance(value, list) else value

    state = {int(index): {key: unpacked(item) for key, item in held.items()} for index, held in meta.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
