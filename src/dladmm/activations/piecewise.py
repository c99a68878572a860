"""Piecewise linear activations, with or without jumps: project onto every piece, keep the nearest point."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm.activations.base import Activation, checked_weight, distance_at_kink, objective_gain, parts
from dladmm.base.spec import number

_INF = float("inf")

FEW_ENTRIES, MANY_PARTS = 1 << 14, 64
"""The margin from ties is measured in parts of so many entries at least, and in no more parts than these."""


class Piece(NamedTuple):
    """f(z) = slope z + intercept for start <= z, up to the start of the next piece."""

    start: float
    slope: float
    intercept: float


class PiecewiseLinear(Activation):
    """argmin_z (z - m)^2 + weight (a - f(z))^2 for f made of straight pieces; equations (4) and (14).

    On a piece with slope s and intercept t the minimiser is (m + weight s (a - t)) / (1 + weight s^2), clipped to the
    ends of the piece; the best over all pieces is the exact global minimiser. At a jump f takes the value on the
    right, and the piece on the left ends at the largest floating-point number below the jump.
    """

    closed_form: ClassVar[bool] = True

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
        return self._select(z, [piece.slope for piece in self.pieces()])

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        result = torch.empty_like(m, memory_format=torch.contiguous_format)
        for z, m_part, a_part in parts(result, m, a):
            z.copy_(self.project(m_part, a_part, weight))
        return result

    def _candidates(self, m: Tensor, a: Tensor, weight: float) -> Iterator[tuple[Tensor, Tensor]]:
        """The best z of every piece, and f(z)."""
        for piece, low, high in zip(self.pieces(), *self._ends(m.dtype), strict=True):
            pull = weight * piece.slope
            z = torch.add(m, a, alpha=pull).sub_(pull * piece.intercept).div_(1 + pull * piece.slope)
            z.clamp_(low, high)
            yield z, torch.mul(z, piece.slope).add_(piece.intercept)

    def tie_margin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> float | None:
        if not self.continuous:
            return None
        # Small parts: this is measured once, when the run is over, and must not be what its memory is planned by
        size = max(FEW_ENTRIES, m.numel() // MANY_PARTS)
        split = zip(*(torch.split(of.reshape(-1), size) for of in (m, a)), strict=True)
        return min((self._margin(some.double(), own.double(), weight) for some, own in split), default=_INF)

    def _margin(self, m: Tensor, a: Tensor, weight: float) -> float:
        """:meth:`tie_margin` of a part of the entries."""
        best, smallest = self.project(m, a, weight), _INF
        f_best = self(best)
        for z, f in self._candidates(m, a, weight):
            apart = (z - best).square_()
            gain = objective_gain(best, f_best, z, f, m, a, weight)
            margin = torch.where(apart > 0, gain / apart, _INF)
            smallest = min(smallest, float(margin.min())) if margin.numel() else smallest
        return smallest

    def project(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        best = f_best = m
        for i, (z, f) in enumerate(self._candidates(m, a, weight)):
            if i == 0:
                best, f_best = z, f
                continue
            better = objective_gain(z, f, best, f_best, m, a, weight) > 0
            best, f_best = torch.where(better, z, best), torch.where(better, f, f_best)
        return best

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        pieces, starts = self.pieces(), self._starts(z.dtype)
        gap = checked_weight(weight) * (a - self(z))
        slope = self._select(z, [piece.slope for piece in pieces])
        distance = (z - m).addcmul_(gap, slope, value=-1).abs_()
        for left, right, start in zip(pieces, pieces[1:], starts[1:], strict=False):
            at = (z == start).nonzero(as_tuple=True)  # a few entries, if any
            move, pull = z[at] - m[at], gap[at]
            distance[at] = distance_at_kink(move - pull * left.slope, move - pull * right.slope)
        return distance

    def _select(self, z: Tensor, values: list[float]) -> Tensor:
        """values[i] where z lies on piece i; a kink belongs to the piece on its left, a jump to that on its right."""
        beyond = torch.gt if self.continuous else torch.ge
        result = torch.full_like(z, values[0])
        for value, start in zip(values[1:], self._starts(z.dtype)[1:], strict=True):
            result.masked_fill_(beyond(z, start), value)
        return result

    @cache  # noqa: B019  # few, immutable instances
    def _starts(self, dtype: torch.dtype) -> list[float]:
        """The starts of the pieces, rounded to the dtype so that all comparisons agree."""
        return [torch.tensor(piece.start, dtype=dtype, device="cpu").item() for piece in self.pieces()]

    @cache  # noqa: B019
    def _ends(self, dtype: torch.dtype) -> tuple[list[float], list[float]]:
        """The lowest and the highest z of every piece."""
        starts = self._starts(dtype)
        inner = starts[1:] if self.continuous else [_below(start, dtype) for start in starts[1:]]
        return starts, [*inner, _INF]


def _below(x: float, dtype: torch.dtype) -> float:
    """The largest number below x that is not subnormal: some devices flush subnormal numbers to zero."""
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

    def derivative(self, z: Tensor) -> Tensor:
        return torch.relu(z).sign_()  # several times faster than a comparison and a cast

    def write(self, z: Tensor, out: Tensor) -> Tensor:
        return torch.clamp_min(z, 0, out=out)

    def write_derivative(self, z: Tensor, out: Tensor) -> Tensor:
        return torch.clamp_min(z, 0, out=out).sign_()

    def times_derivative(self, z: Tensor, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten.threshold_backward(x, z, 0)  # one pass over memory instead of three
        return product

    def project(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        slope = weight / (1 + (1 + weight) ** 0.5)  # sqrt(1 + weight) - 1, without cancellation
        second = a.clamp_min(0).mul_(slope).add_(m).clamp_min_(0).sign_()  # 1 where it wins, else 0
        z = torch.add(m, a, alpha=weight).div_(1 + weight).clamp_min_(0)
        return torch.lerp(m, z, second)  # exact at 0 and 1, and several times faster than torch.where

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        distance = torch.sub(z, m).sub_(self.times_derivative(z, torch.sub(a, z)), alpha=weight).abs_()
        at = (z == 0).nonzero(as_tuple=True)  # a few entries, if any
        distance[at] = distance_at_kink(-m[at], -torch.add(m[at], a[at], alpha=weight))
        return distance

    def _margin(self, m: Tensor, a: Tensor, weight: float) -> float:
        """Both candidates are minimisers of their own, and a tie possible, where m < 0 < m + w a: there the margin is

            (1 + w)/w |m + (r - 1) a| ((r + 1) a - m) / (a - m)^2,      r = sqrt(1 + w).

        Elsewhere it is 1 (m < 0) or 1 + w (m >= 0), or the candidates are the same.
        """
        below, reached = m < 0, torch.add(m, a, alpha=weight) > 0
        both = below & reached
        found = [1.0] if bool((below & ~reached).any()) else []
        found += [1 + weight] if bool((reached & ~below).any()) else []
        m, a = m[both], a[both]
        if len(m):
            root = (1 + weight) ** 0.5
            less = weight / (1 + root)  # r - 1 without cancellation
            border = torch.add(m, a, alpha=less).abs_()
            ratio = border.mul_(a.mul(root + 1).sub_(m)).div_(torch.sub(a, m).square_())
            found.append(float(ratio.min()) * (1 + weight) / weight)
        return min(found, default=_INF)

    def module(self) -> nn.Module:
        return nn.ReLU()

    @classmethod
    def from_module(cls, module: nn.Module) -> ReLU | None:
        return cls() if isinstance(module, nn.ReLU) else None


@dataclass(frozen=True)
class LeakyReLU(PiecewiseLinear):
    """argmin_z (z - m)^2 + weight (a - f(z))^2, f(z) = z for z >= 0, slope z below; equations (4) and (14).

    ``slope`` may be any finite number: 0, negative, or above 1.
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
