"""Smooth activations: the global argmin by Newton's method, including cases with two local minima.

Half the derivative of the objective is D(z) = z - m - weight (a - f(z)) f'(z). A minimiser lies between m and
the z with f(z) = a, no further from m than sqrt(weight) |a - f(m)|. On the side towards which the graph bends
(say f convex there and a > f) D may have three roots: it rises, falls and rises. For the functions here there
are never more, because the positive part of ((a - f) f')' has a single peak (it is log-concave in f').

Three roots exist above the evolute of the graph only, the curve of its centres of curvature

    m(z) = z - f' (1 + weight f'^2) / f'',      a(z) = f + (1/weight + f'^2) / f'',

along which dm/da = -weight f'(z). So they exist only in a wedge from its lowest point, the cusp (m_c, a_c):

    a > a_c   and   m_c - weight max(f') (a - a_c) < m < m_c.

In the wedge both minima are found and compared. From m, Newton's method climbs monotonely to the first root,
since D is concave up to there; from the far end it descends monotonely to the last, since D is convex down to
there. Outside the wedge any root is the minimiser.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm.activations.base import (
    Activation,
    checked_weight,
    distance_at_kink,
    objective_gain,
    part_size,
    parts,
)
from dladmm.base.spec import number

_CAREFUL_STEPS = 100
_CHECK_EVERY = 4


class Jet(NamedTuple):
    """f(z), f'(z) and f''(z)."""

    f: Tensor
    f1: Tensor
    f2: Tensor


class Smooth(Activation):
    """argmin_z (z - m)^2 + weight (a - f(z))^2 for a smooth increasing f; equations (4) and (14).

    A few Newton steps for all entries; entries that have not converged, or may have a second minimum, are gathered and
    solved by a guarded Newton method. Gathering them is the only synchronisation with the device.
    """

    odd: ClassVar[bool] = False
    """Whether f - f(0) is odd, convex below zero and concave above (sigmoid, tanh); else f is convex."""
    steepest: ClassVar[float] = 1.0
    """The largest slope f'."""
    top: ClassVar[float] = float("inf")
    """Upper bound: the minimum is taken over z <= top."""

    @abstractmethod
    def jet(self, z: Tensor) -> Jet:
        """f, f' and f'' at z."""

    def derivative(self, z: Tensor) -> Tensor:
        return self.jet(z).f1

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        f, f1, _ = self.jet(z)
        return (z - m - checked_weight(weight) * (a - f) * f1).abs_()

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        cusp = self._cusp(weight)
        result = torch.empty_like(m, memory_format=torch.contiguous_format)
        settled = torch.empty_like(result, dtype=torch.bool)
        for z, done, m_part, a_part in parts(result, settled, m, a):
            self._quick(z, done, m_part, a_part, weight)
            done &= ~self._in_wedge(m_part, a_part, weight, cusp)
        for rest in torch.split((~settled).reshape(-1).nonzero()[:, 0], part_size(m)):
            m_rest, a_rest = m.reshape(-1)[rest].double(), a.reshape(-1)[rest].double()
            result.view(-1)[rest] = self._careful(m_rest, a_rest, weight).to(m.dtype)
        return result

    def _quick(self, out: Tensor, settled: Tensor, m: Tensor, a: Tensor, weight: float) -> None:
        """A few Newton steps from m (the first is Gauss-Newton) into ``out``; ``settled`` marks converged entries."""
        z = z_before = m.clamp(max=self.top)
        for k in range(5 if m.dtype == torch.float32 else 6):
            f, f1, f2 = self.jet(z)
            gap = a - f
            slope = f1.square()
            if k > 0:
                slope.addcmul_(gap, f2, value=-1)
            step = (
                gap.mul_(f1).mul_(weight).add_(m).sub_(z).div_(slope.mul_(weight).add_(1).clamp_(min=0.125))
            )
            z_before, z = z, step.add_(z).clamp_(max=self.top)
        out.copy_(z)
        # Newton's method squares the error: a last step below sqrt(eps) leaves one below eps
        tol = 0.1 * math.sqrt(torch.finfo(m.dtype).eps)
        torch.le(z_before.sub_(z).abs_(), z.abs_().add_(1).mul_(tol), out=settled)

    def _cusp(self, weight: float) -> tuple[float, float]:
        """The lowest point (m_c, a_c) of the evolute, from a grid, moved outward by more than its error."""
        z = torch.linspace(-30, -0.01 if self.odd else 30, 3001, dtype=torch.float64, device="cpu")
        f, f1, f2 = self.jet(z)
        heights = f + (1 / weight + f1.square()) / f2
        i = int(heights.argmin())
        a = float(heights[i])
        m = float(z[i] - f1[i] * (1 + weight * f1[i].square()) / f2[i])
        return m + 1e-2 * (1 + abs(m)), a - 1e-2 * (1 + abs(a))

    def _in_wedge(self, m: Tensor, a: Tensor, weight: float, cusp: tuple[float, float]) -> Tensor:
        """Where D may have three roots; an odd f has a second wedge on its concave side."""
        m_c, a_c = cusp
        steepest = weight * self.steepest
        inside = (a > a_c) & (m < m_c) & (m > m_c - steepest * (a - a_c).clamp_(min=0))
        if self.odd:
            a_d = 2 * float(self(torch.zeros((), dtype=torch.float64, device="cpu"))) - a_c
            inside |= (a < a_d) & (m > -m_c) & (m < steepest * (a_d - a).clamp_(min=0) - m_c)
        return inside

    def _careful(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        """The better of the minima reached from m and from the far end."""
        near = m.clamp(max=self.top)
        reach = (a - self(near)) * math.sqrt(weight)
        low, high = near + reach.clamp(max=0), (near + reach.clamp(min=0)).clamp_(max=self.top)
        far = torch.zeros_like(m) if self.odd else torch.where(reach > 0, high, low)
        first = self._guarded_newton(near, low, high, m, a, weight)
        last = self._guarded_newton(far.clamp(low, high), low, high, m, a, weight)
        return torch.where(
            objective_gain(last, self(last), first, self(first), m, a, weight) > 0, last, first
        )

    def _guarded_newton(
        self, z: Tensor, low: Tensor, high: Tensor, m: Tensor, a: Tensor, weight: float
    ) -> Tensor:
        """A root of D in [low, high] by Newton's method.

        Bisection takes over where a step leaves the bracket, or crosses the root without getting nearer
        (a crossing is no part of the monotone search for the first or the last root).
        """
        D_before = torch.zeros_like(z)
        for k in range(_CAREFUL_STEPS):
            f, f1, f2 = self.jet(z)
            D = z - m - weight * (a - f) * f1
            slope = 1 + weight * (f1.square() - (a - f) * f2)
            low, high = torch.where(D <= 0, z, low), torch.where(D >= 0, z, high)
            newton = z - D / slope
            leaves = (slope <= 0) | (newton < low) | (newton > high)
            useless = (D * D_before < 0) & (D.abs() > 0.25 * D_before.abs())
            z_next = torch.where(leaves | useless, (low + high) / 2, newton)
            if k % _CHECK_EVERY == 0:
                rounding = 1e-15 * (z.abs() + m.abs() + weight * f1 * (a.abs() + f.abs()))
                if bool(((D.abs() <= rounding) | (low == high)).all()):
                    break
            z, D_before = z_next, D
        return z


@dataclass(frozen=True)
class Sigmoid(Smooth):
    """argmin_z (z - m)^2 + weight (a - 1/(1 + exp(-z)))^2, equations (4) and (14)."""

    name: ClassVar[str] = "sigmoid"
    odd: ClassVar[bool] = True
    steepest: ClassVar[float] = 0.25

    def __call__(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def jet(self, z: Tensor) -> Jet:
        f, rest = torch.sigmoid(z), torch.sigmoid(-z)  # rest is 1 - f, without cancellation
        f1 = f * rest
        return Jet(f, f1, rest.sub_(f).mul_(f1))

    def module(self) -> nn.Module:
        return nn.Sigmoid()

    @classmethod
    def from_module(cls, module: nn.Module) -> Sigmoid | None:
        return cls() if isinstance(module, nn.Sigmoid) else None


@dataclass(frozen=True)
class Tanh(Smooth):
    """argmin_z (z - m)^2 + weight (a - tanh(z))^2, equations (4) and (14)."""

    name: ClassVar[str] = "tanh"
    odd: ClassVar[bool] = True

    def __call__(self, z: Tensor) -> Tensor:
        return torch.tanh(z)

    def jet(self, z: Tensor) -> Jet:
        twice = 2 * z
        up, down = torch.sigmoid(twice), torch.sigmoid(-twice)
        f1 = (up * down).mul_(4)
        f = up.sub_(down)
        return Jet(f, f1, (f * f1).mul_(-2))

    def module(self) -> nn.Module:
        return nn.Tanh()

    @classmethod
    def from_module(cls, module: nn.Module) -> Tanh | None:
        return cls() if isinstance(module, nn.Tanh) else None


@dataclass(frozen=True)
class Softplus(Smooth):
    """argmin_z (z - m)^2 + weight (a - log(1 + exp z))^2, equations (4) and (14)."""

    name: ClassVar[str] = "softplus"

    def __call__(self, z: Tensor) -> Tensor:
        return F.softplus(z, threshold=40)  # torch's default threshold, 20, loses eight digits in float64

    def jet(self, z: Tensor) -> Jet:
        f1 = torch.sigmoid(z)
        return Jet(self(z), f1, torch.sigmoid(-z).mul_(f1))

    def module(self) -> nn.Module:
        return nn.Softplus(threshold=40)

    @classmethod
    def from_module(cls, module: nn.Module) -> Softplus | None:
        same = isinstance(module, nn.Softplus) and module.beta == 1 and module.threshold >= 20
        return cls() if same else None


@dataclass(frozen=True)
class _Exponential(Smooth):
    """argmin_{z <= 0} (z - m)^2 + weight (a - alpha (exp(z) - 1))^2: the curved half of elu."""

    name: ClassVar[str] = "exponential"
    steepest: ClassVar[float] = float("inf")  # of the whole exponential, not only of z <= 0
    top: ClassVar[float] = 0.0
    alpha: float = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        return torch.expm1(z).mul_(self.alpha)

    def jet(self, z: Tensor) -> Jet:
        f1 = torch.exp(z).mul_(self.alpha)
        return Jet(self(z), f1, f1)

    def module(self) -> nn.Module:
        return nn.ELU(self.alpha)


@dataclass(frozen=True)
class ELU(Activation):
    """argmin_z (z - m)^2 + weight (a - f(z))^2, f(z) = z for z >= 0, alpha (exp(z) - 1) below; eq. (4), (14).

    The better of the closed form on the straight half and the minimiser on the curved half.
    """

    name: ClassVar[str] = "elu"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", number("alpha", self.alpha, low=0.0, strict=True))

    def __call__(self, z: Tensor) -> Tensor:
        return F.elu(z, self.alpha)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, 1.0, z.clamp(max=0).exp_().mul_(self.alpha))

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        curved = _Exponential(self.alpha).argmin(m, a, weight)
        straight = torch.add(m, a, alpha=weight).div_(1 + weight).clamp_(min=0)
        gain = objective_gain(curved, self(curved), straight, straight, m, a, weight)
        return torch.where(gain > 0, curved, straight)

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        gap = checked_weight(weight) * (a - self(z))
        left, right = z - m - gap * self.derivative(z), z - m - gap
        return torch.where(z == 0, distance_at_kink(left, right), left.abs())

    def module(self) -> nn.Module:
        return nn.ELU(self.alpha)

    @classmethod
    def from_module(cls, module: nn.Module) -> ELU | None:
        return cls(float(module.alpha)) if isinstance(module, nn.ELU) and module.alpha > 0 else None


@dataclass(frozen=True)
class GELU(Smooth):
    """argmin_z (z - m)^2 + weight (a - z Phi(z))^2, Phi the normal distribution's; equations (4) and (14).

    f falls below ``LOWEST`` and rises above it, and bends at +-sqrt(2). Beyond +-``FLAT`` it is 0 and z to rounding,
    where the argmin is a formula. Between, every rise of D from below to above zero on a grid, of which these points
    are a part, brackets a local minimiser; the best of all is taken.
    """

    name: ClassVar[str] = "gelu"
    FLAT: ClassVar[float] = 9.0
    LOWEST: ClassVar[float] = -0.7517915246935645
    CELLS: ClassVar[int] = 360

    def __call__(self, z: Tensor) -> Tensor:
        return F.gelu(z)

    def jet(self, z: Tensor) -> Jet:
        share = torch.special.ndtr(z)
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return Jet(self(z), share + z * density, density * (2 - z * z))

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        result = torch.empty_like(m, memory_format=torch.contiguous_format)
        entries = max(1, part_size(m) // self.CELLS)
        flat = (torch.split(each.reshape(-1), entries) for each in (result, m, a))
        for out, m_part, a_part in zip(*flat, strict=True):
            out.copy_(self._best(m_part.double(), a_part.double(), weight))
        return result

    def _best(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        best = m.clamp(max=-self.FLAT)
        right = ((m + weight * a) / (1 + weight)).clamp_(min=self.FLAT)
        self._improve(best, torch.arange(len(m), device=m.device), right, m, a, weight)
        grid = torch.linspace(-self.FLAT, self.FLAT, self.CELLS + 1, dtype=m.dtype, device=m.device)
        bends = [self.LOWEST, -math.sqrt(2), math.sqrt(2)]
        grid = torch.cat([grid, grid.new_tensor(bends)]).sort().values
        f, f1, _ = self.jet(grid)
        D = grid - m[:, None] - weight * (a[:, None] - f) * f1
        rows, cells = ((D[:, :-1] <= 0) & (D[:, 1:] >= 0)).nonzero(as_tuple=True)
        low, high = grid[cells], grid[cells + 1]
        found = self._guarded_newton((low + high) / 2, low, high, m[rows], a[rows], weight)
        order = torch.argsort(rows, stable=True)
        rows, found = rows[order], found[order]
        turn = torch.arange(len(rows), device=m.device) - torch.searchsorted(rows, rows)
        for k in range(int(turn.max()) + 1 if len(turn) else 0):
            self._improve(best, rows[turn == k], found[turn == k], m, a, weight)
        return best

    def _improve(self, best: Tensor, rows: Tensor, z: Tensor, m: Tensor, a: Tensor, weight: float) -> None:
        """Put z in the place of the best points of these rows where its objective is lower."""
        now = best[rows]
        gain = objective_gain(z, self(z), now, self(now), m[rows], a[rows], weight)
        best[rows] = torch.where(gain > 0, z, now)

    def module(self) -> nn.Module:
        return nn.GELU()

    @classmethod
    def from_module(cls, module: nn.Module) -> GELU | None:
        return cls() if isinstance(module, nn.GELU) and module.approximate == "none" else None
