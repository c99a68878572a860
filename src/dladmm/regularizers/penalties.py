"""The penalties on W, and every one of them by name."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dladmm.base.spec import from_spec, number
from dladmm.regularizers.base import Regularizer

DOUBLINGS, BISECTIONS = 200, 60
"""Of the search for the prox of the l4 penalty, at most."""


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """argmin_X l1 ||X||_1 + (l2/2)||X||^2 + (1/(2t))||X - W||^2 = soft(W, t l1) / (1 + t l2).

    Equations (9) and (11) of the paper, with t the step.
    """

    name: ClassVar[str] = "elastic_net"
    l1: float = 0.1
    l2: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1", number("l1", self.l1, low=0.0))
        object.__setattr__(self, "l2", number("l2", self.l2, low=0.0))

    @property
    def quadratic(self) -> float | None:
        return self.l2 if self.l1 == 0 else None

    @property
    def coercive(self) -> bool:
        return self.l1 + self.l2 > 0

    def value(self, W: Tensor) -> Tensor:
        absolute = W.abs().sum(dtype=torch.float64)
        return self.l1 * absolute + (self.l2 / 2) * W.square().sum(dtype=torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return soft_threshold(W, step * self.l1) / (1 + step * self.l2)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        smooth = g + self.l2 * W
        at_zero = (smooth.abs() - self.l1).clamp_min(0)
        return torch.where(W == 0, at_zero, (smooth + self.l1 * W.sign()).abs())

    def times(self, share: float | Tensor) -> Regularizer:
        if self.l1 == 0:
            return L2(self.l2).times(share)
        return ElasticNet(float(share) * self.l1, float(share) * self.l2)


@dataclass(frozen=True)
class Weighted(Regularizer):
    """``strength`` times a penalty that grows with ||W||; strength is a finite number >= 0."""

    strength: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", number("strength", self.strength, low=0.0))

    @property
    def quadratic(self) -> float | Tensor | None:
        return 0.0 if self.strength == 0 else None

    @property
    def coercive(self) -> bool:
        return self.strength > 0

    def times(self, share: float | Tensor) -> Regularizer:
        return replace(self, strength=float(share) * self.strength)


@dataclass(frozen=True)
class L2(Weighted):
    """argmin_X (strength/2)||X||^2 + (1/(2t))||X - W||^2 = W / (1 + t strength); equations (9) and (11)."""

    name: ClassVar[str] = "l2"
    has_gradient: ClassVar[bool] = True

    @property
    def quadratic(self) -> float | Tensor | None:
        return self.strength

    def value(self, W: Tensor) -> Tensor:
        return (self.strength / 2) * W.square().sum(dtype=torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return W / (1 + step * self.strength)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        return (g + self.strength * W).abs()

    def gradient(self, W: Tensor) -> Tensor:
        return self.strength * W

    def times(self, share: float | Tensor) -> Regularizer:
        if not isinstance(share, Tensor):
            return L2(share * self.strength)
        # Made without __init__: to check a tensor is to read it, which would synchronise
        shared = copy.copy(self)
        object.__setattr__(shared, "strength", share * self.strength)
        return shared


@dataclass(frozen=True)
class L1(Weighted):
    """argmin_X strength ||X||_1 + (1/(2t))||X - W||^2 = soft(W, t strength); equations (9) and (11)."""

    name: ClassVar[str] = "l1"

    def value(self, W: Tensor) -> Tensor:
        return self.strength * W.abs().sum(dtype=torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return soft_threshold(W, step * self.strength)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        at_zero = (g.abs() - self.strength).clamp_min(0)
        return torch.where(W == 0, at_zero, (g + self.strength * W.sign()).abs())


@dataclass(frozen=True)
class L4(Weighted):
    """argmin_X (strength/2)||X||_4^2 + (1/(2t))||X - W||^2: x + s x^3 = w entry by entry, s = t strength/||X||_4^2.

    ``||X||_4^2`` is ``||X o X||_F``, the norm of the squares. s is the one unknown: ``s ||X(s)||_4^2`` rises with s, so
    bisection finds it. Equations (9) and (11) of the paper, with t the step.
    """

    name: ClassVar[str] = "l4"
    has_gradient: ClassVar[bool] = True

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


@dataclass(frozen=True)
class NoPenalty(Regularizer):
    """argmin_X (1/(2t))||X - W||^2 = W: Omega = 0, the unchanged gradient step of equations (9) and (11)."""

    name: ClassVar[str] = "none"
    is_zero: ClassVar[bool] = True
    has_gradient: ClassVar[bool] = True

    def gradient(self, W: Tensor) -> Tensor:
        return torch.zeros_like(W)

    @property
    def quadratic(self) -> float | None:
        return 0.0

    @property
    def coercive(self) -> bool:
        return False

    def value(self, W: Tensor) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=W.device)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return W

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        return g.abs()


@dataclass(frozen=True)
class NonNegative(Regularizer):
    """argmin_{X >= 0} (1/(2t))||X - W||^2 = max(W, 0); equations (9) and (11).

    Omega is the indicator of W >= 0: zero there, infinite elsewhere. The paper requires a continuous Omega, so its
    theorems do not cover this one; descent still holds once W is feasible.
    """

    name: ClassVar[str] = "non_negative"
    is_constraint: ClassVar[bool] = True

    @property
    def quadratic(self) -> float | None:
        return None

    @property
    def coercive(self) -> bool:
        return False

    def value(self, W: Tensor) -> Tensor:
        outside = (W < 0).any()
        return torch.where(outside, float("inf"), 0.0).to(torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return W.clamp_min(0)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        boundary = (-g).clamp_min(0)  # the normal cone at zero is (-inf, 0]
        return torch.where(W == 0, boundary, g.abs()).masked_fill(W < 0, float("inf"))


def soft_threshold(W: Tensor, threshold: float | Tensor) -> Tensor:
    """sign(W) max(|W| - threshold, 0)."""
    return W.sign() * (W.abs() - threshold).clamp_min(0)


REGULARIZERS: dict[str, type[Regularizer]] = {
    cls.name: cls for cls in (NoPenalty, L2, L1, ElasticNet, L4, NonNegative)
}


def get_regularizer(spec: str | dict[str, Any] | Regularizer | None) -> Regularizer:
    """The penalty for ``spec``: None, a name ("l2"), a dictionary {"name": "l1", "strength": 0.1}, or the object."""
    return NoPenalty() if spec is None else from_spec("regularizer", REGULARIZERS, Regularizer, spec)
