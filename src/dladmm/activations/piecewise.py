"""Piecewise linear activations, with or without jumps: project on every piece, keep the nearest point."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm._spec import number
from dladmm.activations.base import Activation, checked_weight

_INF = float("inf")


class Piece(NamedTuple):
    """f(z) = slope z + intercept for start <= z, up to the start of the next piece."""

    start: float
    slope: float
    intercept: float


class PiecewiseLinear(Activation):
    """argmin_z (z - m)^2 + weight (a - f(z))^2 for f made of straight pieces; equations (4) and (14).

    On a piece with slope s and intercept t the minimiser is (m + weight s (a - t)) / (1 + weight s^2),
    clipped to the ends of the piece; the best of the pieces is the answer, exactly. Where f jumps it takes the
    value on the right (sign(0) = +1, step(0) = 1), and the piece on the left ends at the largest number below.
    """

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """The pieces from left to right; the first starts at -infinity."""

    def __call__(self, z: Tensor) -> Tensor:
        return (
            self._select(z, [piece.slope for piece in self.pieces()])
            .mul_(z)
            .add_(self._select(z, [piece.intercept for piece in self.pieces()]))
        )

    def derivative(self, z: Tensor) -> Tensor:
        slopes = [piece.slope for piece in self.pieces()]
        result = torch.full_like(z, slopes[0])
        for left, slope, start in zip(slopes, slopes[1:], self._starts(z.dtype)[1:], strict=False):
            if slope != left:
                result.masked_fill_(z > start, slope)
        return result

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        best, best_value = None, None
        for piece, low, high in zip(self.pieces(), *self._ends(m.dtype), strict=True):
            z = torch.add(m, a, alpha=weight * piece.slope)
            z.sub_(weight * piece.slope * piece.intercept).div_(1 + weight * piece.slope**2).clamp_(low, high)
            value = torch.mul(z, -piece.slope).sub_(piece.intercept).add_(a).square_().mul_(weight)
            value.add_((z - m).square_())
            if best is None or best_value is None:
                best, best_value = z, value
            else:
                better = value < best_value
                best = torch.where(better, z, best)
                best_value = torch.where(better, value, best_value)
        assert best is not None
        return best

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        pieces, (lows, highs) = self.pieces(), self._ends(z.dtype)
        slope = self._select(z, [piece.slope for piece in pieces])
        distance = (z - m - weight * (a - self(z)) * slope).abs_()
        for left, right, below, start in zip(pieces, pieces[1:], highs, lows[1:], strict=False):
            at = (z == below) | (z == start)
            kink = self._at_breakpoint(start, left, right, z, m, a, weight)
            distance = torch.where(at, kink, distance)
        return distance

    def _at_breakpoint(
        self, b: float, left: Piece, right: Piece, z: Tensor, m: Tensor, a: Tensor, weight: float
    ) -> Tensor:
        """The distance at a breakpoint b, where the function on the left and on the right differ."""
        gap_left, gap_right = a - (left.slope * b + left.intercept), a - (right.slope * b + right.intercept)
        down = b - m - weight * gap_left * left.slope  # derivative from the left
        up = b - m - weight * gap_right * right.slope  # derivative from the right
        if not self.continuous:
            # the lower side of the jump counts: its subdifferential is a half line; off it, no minimum
            on_left = z < b
            lower_left, lower_right = gap_left.abs() <= gap_right.abs(), gap_right.abs() <= gap_left.abs()
            from_left = torch.where(lower_left, down.clamp_min(0), down.abs())
            from_right = torch.where(lower_right, (-up).clamp_min(0), up.abs())
            return torch.where(on_left, from_left, from_right)
        convex = torch.maximum(down, -up).clamp_min_(0)
        return torch.where(down <= up, convex, torch.minimum(down.abs(), up.abs()))

    def _select(self, z: Tensor, values: list[float]) -> Tensor:
        """values[i] where z lies on piece i."""
        result = torch.full_like(z, values[0])
        for value, start in zip(values[1:], self._starts(z.dtype)[1:], strict=True):
            result.masked_fill_(z >= start, value)
        return result

    def _starts(self, dtype: torch.dtype) -> list[float]:
        """Where the pieces start, rounded to the dtype so that comparisons mean the same everywhere."""
        return [torch.tensor(piece.start, dtype=dtype, device="cpu").item() for piece in self.pieces()]

    def _ends(self, dtype: torch.dtype) -> tuple[list[float], list[float]]:
        """The lowest and the highest z of every piece."""
        starts = self._starts(dtype)
        inner = starts[1:] if self.continuous else [_below(start, dtype) for start in starts[1:]]
        return starts, [*inner, _INF]


def _below(x: float, dtype: torch.dtype) -> float:
    """The largest number below x; no subnormal ones, which some devices flush to zero."""
    tiny = torch.finfo(dtype).tiny
    if -tiny < x <= tiny:
        return 0.0 if x > 0 else -tiny
    at, down = (torch.tensor(value, dtype=dtype, device="cpu") for value in (x, -_INF))
    return torch.nextafter(at, down).item()


@dataclass(frozen=True)
class Identity(PiecewiseLinear):
    """argmin_z (z - m)^2 + weight (a - z)^2, equations (4) and (14): the weighted mean of m and a."""

    name: ClassVar[str] = "identity"

    def pieces(self) -> list[Piece]:
        return [Piece(-_INF, 1.0, 0.0)]

    def __call__(self, z: Tensor) -> Tensor:
        return z

    def module(self) -> nn.Module:
        return nn.Identity()

    @classmethod
    def from_module(cls, module: nn.Module) -> Identity | None:
        return cls() if isinstance(module, nn.Identity) else None


@dataclass(frozen=True)
class ReLU(PiecewiseLinear):
    """argmin_z (z - m)^2 + weight (a - max(z, 0))^2, equations (4) and (14).

    The paper's two candidates are min(m, 0) and max((m + weight a)/(1 + weight), 0). Comparing their values
    gives a straight border: the second wins where m + (sqrt(1 + weight) - 1) max(a, 0) > 0.
    """

    name: ClassVar[str] = "relu"

    def pieces(self) -> list[Piece]:
        return [Piece(-_INF, 0.0, 0.0), Piece(0.0, 1.0, 0.0)]

    def __call__(self, z: Tensor) -> Tensor:
        return torch.relu(z)

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        slope = weight / (1 + (1 + weight) ** 0.5)  # sqrt(1 + weight) - 1, without cancellation
        active = a.clamp(min=0).mul_(slope).add_(m) > 0
        z = torch.add(m, a, alpha=weight).div_(1 + weight).clamp_(min=0)
        return torch.where(active, z, m)

    def module(self) -> nn.Module:
        return nn.ReLU()

    @classmethod
    def from_module(cls, module: nn.Module) -> ReLU | None:
        return cls() if isinstance(module, nn.ReLU) else None


@dataclass(frozen=True)
class LeakyReLU(PiecewiseLinear):
    """argmin_z (z - m)^2 + weight (a - f(z))^2, f(z) = z for z >= 0, slope z below; equations (4) and (14).

    Any finite slope will do: 0, negative, or above 1.
    """

    name: ClassVar[str] = "leaky_relu"
    slope: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", number("slope", self.slope))

    def pieces(self) -> list[Piece]:
        return [Piece(-_INF, self.slope, 0.0), Piece(0.0, 1.0, 0.0)]

    def __call__(self, z: Tensor) -> Tensor:
        return F.leaky_relu(z, self.slope)

    def module(self) -> nn.Module:
        return nn.LeakyReLU(self.slope)

    @classmethod
    def from_module(cls, module: nn.Module) -> LeakyReLU | None:
        return cls(float(module.negative_slope)) if isinstance(module, nn.LeakyReLU) else None


@dataclass(frozen=True)
class HardTanh(PiecewiseLinear):
    """argmin_z (z - m)^2 + weight (a - max(-1, min(1, z)))^2, equations (4) and (14)."""

    name: ClassVar[str] = "hard_tanh"

    def pieces(self) -> list[Piece]:
        return [Piece(-_INF, 0.0, -1.0), Piece(-1.0, 1.0, 0.0), Piece(1.0, 0.0, 1.0)]

    def __call__(self, z: Tensor) -> Tensor:
        return z.clamp(-1, 1)

    def derivative(self, z: Tensor) -> Tensor:
        return (z.abs() < 1).to(z.dtype)

    def module(self) -> nn.Module:
        return nn.Hardtanh()

    @classmethod
    def from_module(cls, module: nn.Module) -> HardTanh | None:
        same = type(module) is nn.Hardtanh and (module.min_val, module.max_val) == (-1.0, 1.0)
        return cls() if same else None
