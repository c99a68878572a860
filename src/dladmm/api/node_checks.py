"""What is given for every node, checked: masks, weights, labels."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.fields import shown
from dladmm.losses import Loss
from dladmm.network.graph import check_node_mask
from dladmm.training.checks import to_tensor

MOST_CLASSES = 100_000
"""Labels above this are taken for identifiers: one output for every smaller number would not fit into memory."""


def node_weights(sample_weight: Any, train: Tensor) -> Tensor:
    """How often nodes count, (n_nodes,); what stands at nodes without a label is ignored."""
    weight = to_tensor(sample_weight, "sample_weight").cpu().double()
    if weight.shape != train.shape:
        raise InputError(
            f"sample_weight must have shape ({len(train)},), one per node, got {tuple(weight.shape)}."
        )
    weight = torch.where(train, weight, 1.0)
    if not bool((weight.isfinite() & (weight >= 0)).all()) or not bool((weight[train] > 0).any()):
        raise InputError("sample_weight must be finite and 0 or more, and above 0 for some labelled node.")
    return weight


def named_nodes(asked: Any, setting: str, given: Any, n_nodes: int) -> Tensor | None:
    """The mask (n_nodes,) that a setting names or is."""
    if asked is None:
        return None
    name = setting
    if isinstance(asked, str):
        if asked not in ("val", "test"):
            raise InputError(f"{setting} must be 'val', 'test', a mask or None, got {asked!r}.")
        name = f"{asked}_mask"
        asked = getattr(given, name)
        if asked is None:
            raise InputError(f"{setting} needs {name}, which the graph does not have; pass the mask itself.")
    return check_node_mask(asked, n_nodes, name)


def n_outputs_of(labels: Tensor, loss: Loss, n_classes: int | None) -> int:
    """Number of classes, or of columns of real targets."""
    if loss.kind != "classification":
        return 1 if labels.ndim == 1 else int(labels.shape[1])
    if n_classes is not None:
        whole = isinstance(n_classes, Integral) and not isinstance(n_classes, bool)
        if not whole or not 1 <= int(n_classes) < 2**31:
            raise InputError(
                f"n_classes must be a whole number >= 1 and below 2**31, got {shown(n_classes)}."
            )
        return int(n_classes)
    largest = int(labels.max())
    if largest >= MOST_CLASSES:
        raise InputError(f"y names class {largest}; number the classes 0, 1, 2, ... or give n_classes.")
    return max(largest + 1, 2)
