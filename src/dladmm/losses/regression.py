"""Losses for regression: half the squared error, and Huber."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.base.spec import number
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.losses.base import Kind, Loss, as_columns
from dladmm.losses.units import Units, robust, standard


class Regression(Loss):
    """Base class of the losses whose targets are numbers, of shape (N,) or (N, n_outputs)."""

    kind: Kind = "regression"

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = as_columns(y, n_outputs).to(dtype)
        if not torch.isfinite(target).all():
            raise InputError("y must be finite; got NaN or infinity")
        return target

    def units(self, target: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units | None:
        return standard(target, weight, comm)

    def decision(self, z: Tensor) -> Tensor:
        return z


class Robust(Regression):
    """Base class of the robust losses: outliers among the targets do not set the scale either."""

    def units(self, target: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units | None:
        return robust(target, weight, comm)


@dataclass(frozen=True)
class Squared(Regression):
    """argmin_z (1/2)||z - y||^2 + (r/2)||z - v||^2 = v + (y - v)/(1 + r); equations (5) and (15)."""

    name: ClassVar[str] = "squared"
    H = 1.0

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return (z - target).square().sum(dim=1) / 2

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return z - target

    def best_constant(self, mean: Tensor) -> Tensor:
        """The mean."""
        return mean

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return v + (target - v) / (1 + r)


@dataclass(frozen=True)
class Huber(Robust):
    """argmin_z sum_k huber(z_k - y_k) + (r/2)||z - v||^2; equations (5) and (15).

    huber(e) is e^2/2 up to ``delta`` and delta |e| - delta^2/2 beyond. With e = v - y the minimiser is
    v - e/(1 + r), the step clipped to at most delta/r.

    Parameters
    ----------
    delta : float, default 1.0
        Where the loss bends, in units of the targets as training sees them. Where targets are scaled (by default,
        but for the paper's algorithm) 1 is their robust deviation, 1.4826 times the median of ``|y - median|``.
    """

    name: ClassVar[str] = "huber"
    H = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", number("delta", self.delta, low=0.0, strict=True))

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(z, target, reduction="none", delta=self.delta).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return (z - target).clamp_(-self.delta, self.delta)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        step = (v - target) / (1 + r)
        limit = torch.as_tensor(self.delta / r, dtype=v.dtype, device=v.device)
        return v - step.clamp(-limit, limit)
