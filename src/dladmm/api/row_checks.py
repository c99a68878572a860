"""Rows of samples and their targets, checked and made tensors for one network and one loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dladmm.blocks import Params
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.engine.batches import Batch
from dladmm.losses import Loss, Units
from dladmm.network.chain import Chain
from dladmm.training.checks import (
    check_features,
    check_fits,
    check_sample_weight,
    check_source,
    check_target_mask,
    check_targets,
    to_array,
)


def is_stream(X: Any) -> bool:
    """Whether X brings its own batches (and targets): no array, and no function of ``(rank, world)``."""
    if isinstance(X, (Dataset, DataLoader)):
        return True
    if isinstance(X, (Tensor, np.ndarray, str, bytes, dict)) or sparse.issparse(X) or hasattr(X, "__array__"):
        return False
    if isinstance(X, (list, tuple)):
        return len(X) > 0 and isinstance(X[0], tuple)
    return hasattr(X, "__iter__") or (callable(X) and takes_nothing(X))


def takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class RowChecks:
    """What rows are checked against: the network, its first parameters, the loss, and the tensors' dtype and device.

    Targets come out in ``units`` where there are any.
    """

    chain: Chain
    params: Sequence[Params]
    loss: Loss
    n_outputs: int
    dtype: torch.dtype
    device: torch.device
    at_once: int | None = None
    comm: Communicator = ALONE
    units: Units | None = None

    def whole(
        self, features: Any, targets: Any, mask: Any, suffix: str = ""
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, encoded targets and the weights of a mask, on the run's device."""
        where: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        named: dict[str, Any] = {"name": "X" + suffix, "may_be_empty": not self.comm.alone, **where}
        if self.at_once is None:
            x = check_features(features, self.chain, **named)
        else:  # the engine accepts a source of rows in place of a tensor
            x = cast(Tensor, check_source(features, self.chain, at_once=self.at_once, **named))
        self.chain.blocks[0].check_input(x, "X" + suffix)
        positions = check_fits(self.chain, self.params, x, self.n_outputs, "X" + suffix)
        target = self.targets(targets, len(x), positions, "y" + suffix, **where)
        if mask is None:
            return x, target, None
        may_be_empty = not self.comm.alone
        return x, target, check_target_mask(mask, len(x), positions, x, "target_mask" + suffix, may_be_empty)

    def batch(self, x: Any, y: Any, weight: Any) -> Batch:
        """One batch of a stream, where it lies: the step brings it to the network's device."""
        x = x.toarray() if sparse.issparse(x) else to_array(x, "x")
        place = x.device if isinstance(x, Tensor) else torch.device("cpu")
        where: dict[str, Any] = {"dtype": self.dtype, "device": place}
        found = check_features(x, self.chain, name="x", **where)
        self.chain.blocks[0].check_input(found, "x")
        first = found[:1].to(self.device)
        positions: tuple[int, ...] = ()
        if found.ndim > 2 or self.chain.blocks[0].kind != "dense":
            positions = check_fits(self.chain, self.params, first, self.n_outputs, "x")
        target = self.targets(y, len(found), positions, "y", **where)
        counts = None if weight is None else check_sample_weight(weight, found)
        return Batch(found, target, None, counts)

    def targets(
        self,
        y: Any,
        n_rows: int,
        positions: tuple[int, ...],
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """Encoded targets, in ``units``: those are taken off in float64, where little is lost far from zero."""
        precise = dtype if self.units is None else torch.float64
        found = check_targets(
            y, self.loss, n_rows, self.n_outputs, name=name, positions=positions, dtype=precise, device=device
        )
        return found if self.units is None else self.units.apply(found).to(dtype)
