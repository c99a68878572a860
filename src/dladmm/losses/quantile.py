"""Losses of the absolute residual: the absolute error and the pinball loss, with tips rounded by a little."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.spec import number
from dladmm.losses.regression import Robust


class Rounded(Robust):
    """argmin_z sum_k w_k t(z_k - y_k) + (r/2)||z - v||^2, with weights w that depend on the sign of the residual.

    t(e) is ``|e| - width/2``, and ``e^2 / (2 width)`` for residuals below ``width``: the theorems need a gradient that
    is Lipschitz, which that of ``|e|`` is not. With e = v - y the minimiser is v - e/(1 + r width/w), the step clipped
    to at most w/r; it does not cross y, so that w is that of v.
    """

    width: float

    @abstractmethod
    def _weight(self, e: Tensor) -> Tensor | float:
        """What the residuals e count, by their sign."""

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        e = z - target
        size = e.abs()
        tip = size.clamp_max(self.width).square() / (2 * self.width)
        return (self._weight(e) * (tip + (size - self.width).clamp_min_(0))).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        e = z - target
        return self._weight(e) * (e / self.width).clamp_(-1, 1)

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        """Of the parabola that touches the loss at z and lies above it everywhere: ``w / |e|``."""
        e = z - target
        return (self._weight(e) / e.abs().clamp_min(self.width) * direction.square()).sum(1)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        e = v - target
        w = self._weight(e)
        limit = torch.as_tensor(w / r, dtype=v.dtype, device=v.device)
        return v - (e / (1 + r * self.width / w)).clamp(-limit, limit)


@dataclass(frozen=True)
class Absolute(Rounded):
    """argmin_z sum_k |z_k - y_k| + (r/2)||z - v||^2, the tip of ``|e|`` rounded; equations (5) and (15).

    The absolute error, whose best constant is the median. With e = v - y the minimiser is v - e/(1 + r width), the step
    clipped to at most 1/r.

    Parameters
    ----------
    width : float, default 0.05
        Residuals below it count by their square; in units of the targets as training sees them, by default their
        robust deviation.
    """

    name: ClassVar[str] = "absolute"
    width: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", number("width", self.width, low=0.0, strict=True))

    @property
    def H(self) -> float:  # type: ignore[override]
        """1/width, the curvature of the tip."""
        return 1 / self.width

    def _weight(self, e: Tensor) -> Tensor | float:
        return 1.0


@dataclass(frozen=True)
class Quantile(Rounded):
    """argmin_z sum_k w_k |z_k - y_k| + (r/2)||z - v||^2, the tip of ``|e|`` rounded; equations (5) and (15).

    The pinball loss, whose best constant is the q-quantile: w is ``1 - q`` where z is above y and ``q`` where it is
    below. With e = v - y the minimiser is v - e/(1 + r width/w), the step clipped to at most w/r.

    Parameters
    ----------
    q : float, default 0.5
        The quantile that is predicted, between 0 and 1.
    width : float, default 0.05
        Residuals below it count by their square; in units of the targets as training sees them, by default their
        robust deviation.
    """

    name: ClassVar[str] = "quantile"
    q: float = 0.5
    width: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "q", number("q", self.q, low=0.0, strict=True))
        object.__setattr__(self, "width", number("width", self.width, low=0.0, strict=True))
        if self.q >= 1:
            raise InputError(f"q must lie between 0 and 1, got {self.q!r}.")

    @property
    def H(self) -> float:  # type: ignore[override]
        """The larger of q and 1 - q over the width."""
        return max(self.q, 1 - self.q) / self.width

    def _weight(self, e: Tensor) -> Tensor | float:
        return torch.where(e > 0, e.new_full((), 1 - self.q), e.new_full((), self.q))
