"""Converts the state of a torch optimiser to named tensors and JSON values and back, without pickle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SCRATCH = {"al"}
"""Temporaries of L-BFGS that need not be saved."""


def packed(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
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


def unpack(optimizer: Optimizer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Restore what :func:`packed` returned; the tensors are copied."""

    def unpacked(value: Any) -> Any:
        if isinstance(value, dict):
            return torch.clone(tensors[value["tensor"]])
        return [unpacked(item) for item in value] if isinstance(value, list) else value

    state = {int(index): {key: unpacked(item) for key, item in held.items()} for index, held in meta.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
