"""The penalty of the authors' GCN script, which is not one of single entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dladmm.base.spec import number
from dladmm.regularizers.base import Regularizer

DOUBLINGS, BISECTIONS = 200, 60


@dataclass(frozen=True)
class L4(Regularizer):
    """argmin_X (strength/2)||X||_4^2 + (1/(2t))||X - W||^2: x + s x^3 = w entry by entry, s = t strength/||X||_4^2.

    ``||X||_4^2`` is ``||X o X||_F``, the norm of the squares. s is the one unknown: ``s ||X(s)||_4^2`` rises with s, so
    bisection finds it. Equations (9) and (11) of the paper, with t the step.
    """

    name: ClassVar[str] = "l4"
    has_gradient: ClassVar[bool] = True
    strength: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", number("strength", self.strength, low=0.0))

    @property
    def quadratic(self) -> float | None:
        return 0.0 if self.strength == 0 else None

    @property
    def coercive(self) -> bool:
        return self.strength > 0

    def value(self, W: Tensor) -> Tensor:
        return (self.strength / 2) * _squared_norm(W)

    def gradient(self, W: Tensor) -> Tensor:
        """``strength W^3 / ||W||_4^2``; 0 at W = 0, where Omega grows like a square."""
        norm = _squared_norm(W)
        if not bool(norm > 0):
            return torch.zeros_like(W)
        return (self.strength * (W.double().pow(3) / norm)).to(W.dtype)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        weight = float(step) * self.strength
        largest = float(W.abs().max()) if W.numel() else 0.0
        if weight == 0 or largest == 0:
            return W.clone()
        # prox commutes with the scale of W, so that the search is over numbers of order 1
        scaled = W.double() / largest
        low, high = 0.0, 1.0
        for _ in range(DOUBLINGS):
            if not _pull(scaled, high) < weight:
                break
            low, high = high, 4 * high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if _pull(scaled, middle) < weight else (low, middle)
        return (_roots(scaled, high) * largest).to(W.dtype)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        return (g + self.gradient(W)).abs()

    def times(self, share: float | Tensor) -> Regularizer:
        return L4(float(share) * self.strength)


def _squared_norm(W: Tensor) -> Tensor:
    """``||W||_4^2`` as a 0-d float64 tensor."""
    norm: Tensor = torch.linalg.vector_norm(W.double().square())
    return norm


def _pull(W: Tensor, s: float) -> float:
    return s * float(_squared_norm(_roots(W, s)))


def _roots(W: Tensor, s: float) -> Tensor:
    """The real x with ``x + s x^3 = w``, entry by entry: ``x = 2/sqrt(3 s) sinh(asinh(1.5 sqrt(3 s) w) / 3)``."""
    if s == 0:
        return W
    root = math.sqrt(3 * s)
    return (2 / root) * torch.sinh(torch.asinh(1.5 * root * W) / 3)
