"""A constraint on the signs of single weights, which monotone networks have."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dladmm.regularizers.base import Regularizer
from dladmm.regularizers.penalties import NoPenalty


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
