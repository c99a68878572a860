"""Step functions (sign, step, quantised), whose derivative is zero and which back-propagation cannot train."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from dladmm.activations.base import checked_weight
from dladmm.activations.piecewise import Piece, PiecewiseLinear
from dladmm.activations.staircase import Staircase
from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.spec import number

MOST_LEVELS = 2**16
"""Steps of a quantised activation at most: its module holds them all."""


class JumpFunction(PiecewiseLinear):
    """argmin_z (z - m)^2 + weight (a - f(z))^2 for a staircase f, continuous from the right; eq. (4), (14).

    The candidates are m itself and, for every other level, the end of its step that is nearest to m. The limit from
    the left of a jump is not attained: the largest floating-point number below the jump is returned instead.
    """

    continuous: ClassVar[bool] = False

    @property
    def n_levels(self) -> int:
        return len(self.pieces())

    def derivative(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def __call__(self, z: Tensor) -> Tensor:
        if self._exact_difference(z.dtype) is not None:
            return self.write(z, torch.empty_like(z))
        return self._select(z, [piece.intercept for piece in self.pieces()])

    def write(self, z: Tensor, out: Tensor) -> Tensor:
        """Of two levels ``low + (z >= start) (high - low)``: no branches, a tenth of the time of a masked fill."""
        difference = self._exact_difference(z.dtype)
        if difference is None:
            return out.copy_(self(z))
        low, start = self.pieces()[0].intercept, self._starts(z.dtype)[1]
        return torch.ge(z, start, out=out).mul_(difference).add_(low)

    @cache  # noqa: B019  # few, immutable instances
    def _exact_difference(self, dtype: torch.dtype) -> float | None:
        """``high - low`` of two levels, where low plus it is high without rounding; else None."""
        low, high, *more = (
            torch.tensor(piece.intercept, dtype=dtype, device="cpu") for piece in self.pieces()
        )
        exact = not more and bool(low + (high - low) == high)
        return float(high - low) if exact else None

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        """|z - m|; at the end of a step only the inward part counts where the next level is no better."""
        checked_weight(weight)
        pieces, (starts, ends) = self.pieces(), self._ends(z.dtype)
        slope = z - m
        distance = slope.abs()
        for i in range(1, len(pieces)):
            left, right = ((a - piece.intercept).abs() for piece in pieces[i - 1 : i + 1])
            on_left, on_right = (z == ends[i - 1]) & (left <= right), (z == starts[i]) & (right <= left)
            distance = torch.where(on_left, slope.clamp_min(0), distance)
            distance = torch.where(on_right, (-slope).clamp_min_(0), distance)
        return distance

    def module(self) -> nn.Module:
        return self._staircase()

    def _staircase(self) -> Staircase:
        pieces = self.pieces()
        return Staircase([piece.intercept for piece in pieces], [piece.start for piece in pieces[1:]])

    @classmethod
    def from_module(cls, module: nn.Module) -> JumpFunction | None:
        return cls() if isinstance(module, Staircase) and cls()._staircase().same(module) else None


@dataclass(frozen=True)
class Sign(JumpFunction):
    """argmin_z (z - m)^2 + weight (a - sign(z))^2 with sign(0) = +1; equations (4) and (14)."""

    name: ClassVar[str] = "sign"

    def pieces(self) -> list[Piece]:
        return [Piece(-float("inf"), 0.0, -1.0), Piece(0.0, 0.0, 1.0)]


@dataclass(frozen=True)
class Step(JumpFunction):
    """argmin_z (z - m)^2 + weight (a - step(z))^2, step(z) = 1 for z >= 0, else 0; equations (4) and (14)."""

    name: ClassVar[str] = "step"

    def pieces(self) -> list[Piece]:
        return [Piece(-float("inf"), 0.0, 0.0), Piece(0.0, 0.0, 1.0)]


@dataclass(frozen=True)
class Quantised(JumpFunction):
    """argmin_z (z - m)^2 + weight (a - q(z))^2, q the nearest of ``levels`` equal steps; eq. (4) and (14).

    The levels are equally spaced from ``low`` to ``high``; half-way between two, q takes the upper one.
    """

    name: ClassVar[str] = "quantised"
    levels: int = 4
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.levels, bool) or not isinstance(self.levels, int):
            raise InputTypeError(f"levels must be a whole number; got {self.levels!r}")
        if self.levels < 2:
            raise InputError(f"levels must be >= 2; got {self.levels}")
        if self.levels > MOST_LEVELS:
            raise InputError(f"levels must be at most {MOST_LEVELS}; got {self.levels}")
        object.__setattr__(self, "low", number("low", self.low))
        object.__setattr__(self, "high", number("high", self.high))
        if not self.low < self.high:
            raise InputError(f"low must be < high; got low={self.low}, high={self.high}")

    def pieces(self) -> list[Piece]:
        h = (self.high - self.low) / (self.levels - 1)
        starts = [-float("inf"), *(self.low + (i - 0.5) * h for i in range(1, self.levels))]
        return [Piece(start, 0.0, self.low + i * h) for i, start in enumerate(starts)]

    @classmethod
    def from_module(cls, module: nn.Module) -> Quantised | None:
        if not isinstance(module, Staircase):
            return None
        found = cls(len(module.levels), float(module.levels[0]), float(module.levels[-1]))
        return found if found._staircase().same(module) else None
