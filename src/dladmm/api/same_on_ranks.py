"""Ranks that train together must be told the same: settings, network and versions are compared before work begins."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from dladmm._version import __version__
from dladmm.base.errors import InputError
from dladmm.compute.communicator import Communicator

OWN = frozenset(
    {
        *(
            "X",
            "y",
            "sample_weight",
            "target_mask",
            "validation",
            "callbacks",
            "verbose",
            "communicator",
            "device",
        ),
        *("data", "edge_index", "train_mask", "edge_weight", "partition", "random_state"),
    }
)
"""Arguments that are a rank's own, compared elsewhere, or taken from the first rank."""


def check_same_call(signature: inspect.Signature, given: Mapping[str, Any], comm: Communicator) -> Any:
    """Raise on every rank if one of them was called with other settings; what differs is named.

    Returns the seed: rank 0's where it is a number, so that initial weights are the same on all ranks.
    """
    seed = given.get("random_state", 0)
    number = int(seed) if isinstance(seed, (int, np.integer)) else None
    texts = comm.texts(json.dumps([number, _settings(signature, given)]))
    seeds, told = zip(*(json.loads(text) for text in texts), strict=True)
    for name in sorted(set().union(*told)):
        values = [each.get(name, "its default") for each in told]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise InputError(
                f"{name} must be the same on all {comm.size} ranks; rank 0 has {_short(values[0])}, rank {other} has "
                f"{_short(values[other])}."
            )
    return seed if seeds[0] is None else seeds[0]


def _settings(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name in OWN:
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= {key: value for key, value in given.get(name, {}).items() if value is not None}
        else:
            found[name] = given.get(name, parameter.default)
    versions = {"the version of dladmm": __version__, "the version of torch": torch.__version__}
    versions["the version of numpy"] = np.__version__
    return {name: words(value) for name, value in found.items()} | versions


def words(value: Any) -> str:
    """A setting as text that is the same in every process."""
    if isinstance(value, nn.Module):
        shapes = [f"{name}{tuple(p.shape)}" for name, p in value.named_parameters()]
        value = f"{value!r} {' '.join(shapes)}"
    elif callable(value) and hasattr(value, "__qualname__"):
        value = f"{value.__module__}.{value.__qualname__}"
    text = value if isinstance(value, str) else repr(value)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:200] + " ..."
