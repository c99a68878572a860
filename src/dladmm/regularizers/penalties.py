"""The penalties that act on every entry of W by itself, the constraints on signs, and every penalty by name."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dladmm.base.spec import from_spec, number
from dladmm.regularizers.base import Regularizer
from dladmm.regularizers.l4 import L4


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
class L2(Regularizer):
    """argmin_X (strength/2)||X||^2 + (1/(2t))||X - W||^2 = W / (1 + t strength); equations (9) and (11)."""

    name: ClassVar[str] = "l2"
    has_gradient: ClassVar[bool] = True
    strength: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", number("strength", self.strength, low=0.0))

    @property
    def quadratic(self) -> float | Tensor | None:
        return self.strength

    @property
    def coercive(self) -> bool:
        return self.strength > 0

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
        shared = copy.copy(
            self
        )  # made without __init__: to check a tensor is to read it, which would synchronise
        object.__setattr__(shared, "strength", share * self.strength)
        return shared


@dataclass(frozen=True)
class L1(Regularizer):
    """argmin_X strength ||X||_1 + (1/(2t))||X - W||^2 = soft(W, t strength); equations (9) and (11)."""

    name: ClassVar[str] = "l1"
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
        return self.strength * W.abs().sum(dtype=torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return soft_threshold(W, step * self.strength)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        at_zero = (g.abs() - self.strength).clamp_min(0)
        return torch.where(W == 0, at_zero, (g + self.strength * W.sign()).abs())

    def times(self, share: float | Tensor) -> Regularizer:
        return L1(float(share) * self.strength)


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


class Signed(Regularizer):
    """argmin_{signs X >= 0} Omega(X) + (1/(2t))||X - W||^2: the penalty's own prox, zero where its sign is wrong.

    The constraint of a block of a monotone network (:mod:`dladmm.network.monotone`) beside a penalty Omega that acts on
    every entry by itself. ``signs`` is of the shape of W: 1 for entries >= 0, -1 for entries <= 0, 0 for free ones. Not
    continuous, so the paper's theorems do not cover it; descent holds once W is feasible.
    """

    name: ClassVar[str] = "signed"
    is_constraint: ClassVar[bool] = True

    def __init__(self, signs: Tensor, penalty: Regularizer | None = None) -> None:
        self.signs = signs
        self.penalty = NoPenalty() if penalty is None else penalty

    def beside(self, penalty: Regularizer) -> Signed:
        """The same constraint and this penalty."""
        return Signed(self.signs, penalty)

    def turned(self, W: Tensor) -> Tensor:
        """W with its entries of the wrong sign turned over, for initial weights: prox would make half of them zero."""
        signs = self.of(W)
        return torch.where(signs == 0, W, W.abs() * signs)

    def of(self, W: Tensor) -> Tensor:
        """The signs in shape, dtype and place of W."""
        if self.signs.dtype != W.dtype or self.signs.device != W.device:
            self.signs = self.signs.to(W)
        return self.signs.reshape(W.shape)

    @property
    def quadratic(self) -> float | None:
        return None

    @property
    def coercive(self) -> bool:
        return self.penalty.coercive

    def value(self, W: Tensor) -> Tensor:
        outside = (W * self.of(W) < 0).any()
        return self.penalty.value(W) + torch.where(outside, float("inf"), 0.0).to(torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        found = self.penalty.prox(W, step)
        return found.masked_fill(found * self.of(W) < 0, 0.0)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        signs, inside = self.of(W), self.penalty.stationarity(W, g)
        # at zero the normal cone takes up a gradient that would push W outside
        pushed = (W == 0) & (signs * g > 0)
        return inside.masked_fill(pushed, 0.0).masked_fill(W * signs < 0, float("inf"))

    def times(self, share: float | Tensor) -> Regularizer:
        return Signed(self.signs, self.penalty.times(share))


def soft_threshold(W: Tensor, threshold: float | Tensor) -> Tensor:
    """sign(W) max(|W| - threshold, 0)."""
    return W.sign() * (W.abs() - threshold).clamp_min(0)


REGULARIZERS: dict[str, type[Regularizer]] = {
    cls.name: cls for cls in (NoPenalty, L2, L1, ElasticNet, L4, NonNegative)
}


def get_regularizer(spec: str | dict[str, Any] | Regularizer | None) -> Regularizer:
    """The penalty for ``spec``: None, a name ("l2"), a dictionary {"name": "l1", "strength": 0.1}, or the object."""
    return NoPenalty() if spec is None else from_spec("regularizer", REGULARIZERS, Regularizer, spec)
