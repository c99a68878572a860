"""Smooth activations: Newton's method, and the proof of where a second local minimum can hide.

Write D(z) = z - m - weight (a - f(z)) f'(z), half the derivative of the objective. The minimiser lies between
m and the z with f(z) = a, no further from m than sqrt(weight) |a - f(m)|. Where (m, a) lies on the side towards
which the graph bends (say f convex there and a > f), D may have three roots: up, down, up. For the functions
of this file the slope of D falls and then rises along that interval (the positive part of ((a - f) f')' is
log-concave in f'), so there are never more, and

- below the lowest point of the evolute, a <= min f + (1/weight + f'^2)/f'', D increases: one root;
- right of the last possible peak of ((a - f) f')' (``peak``), D falls and then rises: one root past m.

Everywhere else both minima are found and compared: Newton's method from m climbs monotonely to the first root
(D is concave there), from ``far`` it descends monotonely to the last (D is convex there).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm._spec import number
from dladmm.activations.base import Activation, checked_weight

_QUICK_STEPS = 3
_CAREFUL_STEPS = 120
_CHECK_EVERY = 8


class Jet(NamedTuple):
    """f(z), f'(z) and f''(z)."""

    f: Tensor
    f1: Tensor
    f2: Tensor


class Smooth(Activation):
    """argmin_z (z - m)^2 + weight (a - f(z))^2 for a smooth increasing f; equations (4) and (14).

    A few Newton steps for all entries; those that have not settled, or may have a second minimum, are
    gathered and solved with care.
    """

    odd: ClassVar[bool] = False
    """f(z) - f(0) is odd: concave where sigmoid is. Otherwise f is convex."""
    peak: ClassVar[float] = 0.0
    """No peak of ((a - f) f')' lies right of it (left of -peak on the concave side of an odd f)."""
    top: ClassVar[float] = float("inf")
    """Only z <= top is looked at."""

    @abstractmethod
    def jet(self, z: Tensor) -> Jet:
        """f, f' and f'' at z."""

    def derivative(self, z: Tensor) -> Tensor:
        return self.jet(z).f1

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        jet = self.jet(z)
        return (z - m - checked_weight(weight) * (a - jet.f) * jet.f1).abs_()

    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        weight = checked_weight(weight)
        result = torch.empty_like(m, memory_format=torch.contiguous_format)
        size = 1 << (24 if m.is_cuda else 16)  # temporaries stay in the cache of a CPU, and small on a GPU
        border = self.evolute(weight)
        parts = (torch.split(tensor.reshape(-1), size) for tensor in (result, m, a))
        for out, m_part, a_part in zip(*parts, strict=True):
            self._solve(out, m_part, a_part, weight, border)
        return result

    def evolute(self, weight: float) -> float:
        """The lowest point of the evolute of the convex part of the graph: from a grid, less a margin."""
        z = torch.linspace(-30, min(0.0, self.top) - 1e-3, 3001, dtype=torch.float64, device="cpu")
        f, f1, f2 = self.jet(z)
        return float((f + (1 / weight + f1.square()) / f2).min()) - 1e-3

    def _solve(self, out: Tensor, m: Tensor, a: Tensor, weight: float, border: float) -> None:
        z = m.clamp(max=self.top)
        f, f1, f2 = self.jet(z)
        z = (z + _newton_step(z, m, a - f, f1, None, weight)).clamp_(max=self.top)
        step = z
        for _ in range(_QUICK_STEPS):
            f, f1, f2 = self.jet(z)
            step = _newton_step(z, m, a - f, f1, f2, weight)
            z = (z + step).clamp_(max=self.top)
        out.copy_(z)
        tol = 0.1 * torch.finfo(m.dtype).eps ** 0.5
        settled = step.abs_() <= tol * (1 + z.abs())
        settled &= ~self.ambiguous(m, a, border)
        rest = (~settled).nonzero().squeeze(1)
        if len(rest):
            careful = self._careful(m[rest].double(), a[rest].double(), weight)
            out[rest] = careful.to(m.dtype)

    def ambiguous(self, m: Tensor, a: Tensor, border: float) -> Tensor:
        """Where two local minima are possible."""
        convex_side = (a > border) & (m < self.peak)
        if not self.odd:
            return convex_side
        mirrored = 2 * float(self(torch.zeros((), dtype=torch.float64))) - border
        return convex_side | ((a < mirrored) & (m > -self.peak))

    def _careful(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        """The better of the minima reached from both ends."""
        near = m.clamp(max=self.top)
        reach = (a - self(near)) * weight**0.5
        low = near + reach.clamp(max=0)
        high = (near + reach.clamp(min=0)).clamp_(max=self.top)
        end = torch.zeros_like(m) if self.odd else torch.where(reach > 0, high, low)
        first = self._guarded_newton(near, low, high, m, a, weight)
        last = self._guarded_newton(end.clamp(low, high), low, high, m, a, weight)
        f_first, f_last = self(first), self(last)
        # difference of the two values of the objective, free of cancellation between large squares
        worse = (first - last) * (first + last - 2 * m) > weight * (f_first - f_last) * (
            2 * a - f_first - f_last
        )
        return torch.where(worse, last, first)

    def _guarded_newton(
        self, z: Tensor, low: Tensor, high: Tensor, m: Tensor, a: Tensor, weight: float
    ) -> Tensor:
        """A root of D in [low, high] by Newton's method.

        Bisection takes over where a step leaves the bracket, or crosses the root without halving the bracket
        (a crossing is no part of the monotone search for the first or the last root).
        """
        D_before = torch.zeros_like(z)
        for k in range(_CAREFUL_STEPS):
            f, f1, f2 = self.jet(z)
            D = z - m - weight * (a - f) * f1
            slope = 1 + weight * (f1.square() - (a - f) * f2)
            width = high - low
            low, high = torch.where(D <= 0, z, low), torch.where(D >= 0, z, high)
            newton = z - D / slope
            leaves = (slope <= 0) | (newton < low) | (newton > high)
            useless = (D * D_before < 0) & (high - low > width / 2)
            moved = torch.where(leaves | useless, (low + high) / 2, newton)
            if k % _CHECK_EVERY == 0 and bool(((moved - z).abs() <= 1e-15 * (1 + z.abs())).all()):
                return moved
            z, D_before = moved, D
        return z


def _newton_step(z: Tensor, m: Tensor, gap: Tensor, f1: Tensor, f2: Tensor | None, weight: float) -> Tensor:
    """-D/D' with gap = a - f; Gauss-Newton when f2 is None. Slopes are held above 1/8."""
    pull = (gap * f1).mul_(weight).add_(m).sub_(z)
    slope = f1.square()
    if f2 is not None:
        slope.sub_(gap.mul(f2))
    return pull.div_(slope.mul_(weight).add_(1).clamp_(min=0.125))


@dataclass(frozen=True)
class Sigmoid(Smooth):
    """argmin_z (z - m)^2 + weight (a - 1/(1 + exp(-z)))^2, equations (4) and (14)."""

    name: ClassVar[str] = "sigmoid"
    odd: ClassVar[bool] = True
    peak: ClassVar[float] = -1.316  # where f''' = 0: log(2 - sqrt(3))

    def __call__(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def jet(self, z: Tensor) -> Jet:
        f = torch.sigmoid(z)
        f1 = torch.addcmul(f, f, f, value=-1)
        return Jet(f, f1, torch.addcmul(f1, f1, f, value=-2))

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
    peak: ClassVar[float] = -0.658  # tanh(z) = 2 sigmoid(2z) - 1

    def __call__(self, z: Tensor) -> Tensor:
        return torch.tanh(z)

    def jet(self, z: Tensor) -> Jet:
        f = torch.tanh(z)
        f1 = 1 - f.square()
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
        return F.softplus(z, threshold=40)  # torch's own threshold, 20, costs eight digits in float64

    def jet(self, z: Tensor) -> Jet:
        f1 = torch.sigmoid(z)
        return Jet(self(z), f1, torch.addcmul(f1, f1, f1, value=-1))

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
    top: ClassVar[float] = 0.0
    alpha: float = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        return torch.expm1(z).mul_(self.alpha)

    def jet(self, z: Tensor) -> Jet:
        f = torch.expm1(z).mul_(self.alpha)
        f1 = f + self.alpha
        return Jet(f, f1, f1)

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
        f_curved = self(curved)
        gain = (curved - straight).mul_(curved + straight - 2 * m)
        gain.sub_((f_curved - straight).mul_(2 * a - f_curved - straight), alpha=weight)
        return torch.where(gain < 0, curved, straight)

    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        gap = checked_weight(weight) * (a - self(z))
        down, up = z - m - gap * self.derivative(z), z - m - gap
        kink = torch.maximum(down, -up).clamp_min_(0)
        kink = torch.where(down <= up, kink, torch.minimum(down.abs(), up.abs()))
        return torch.where(z == 0, kink, (z - m - gap * self.derivative(z)).abs())

    def module(self) -> nn.Module:
        return nn.ELU(self.alpha)

    @classmethod
    def from_module(cls, module: nn.Module) -> ELU | None:
        return cls(float(module.alpha)) if isinstance(module, nn.ELU) and module.alpha > 0 else None
