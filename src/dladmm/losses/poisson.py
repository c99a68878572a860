"""The Poisson deviance, for counts and other targets from zero up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.spec import number
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.losses.base import NEVER
from dladmm.losses.regression import Regression
from dladmm.losses.units import Units, mean

_OMEGA_STEPS = 12


@dataclass(frozen=True)
class Poisson(Regression):
    """argmin_z sum_k exp(z_k) - y_k z_k + (r/2)||z - v||^2: outputs are logarithms of the expected y.

    The value is half the Poisson deviance, ``exp(z) - y z - (y - y log y)``, at least 0. Optimality
    ``exp(z) + r z = y + r v`` is solved by Wright's omega function: with x = v + y/r,

        z = log r + log omega(x - log r),       omega + log omega = x - log r.

    exp has no Lipschitz gradient, which the theorems need: above ``cap`` it goes on as the parabola of the same slope
    and curvature, so that H is ``cap``. Targets are divided by their mean in training, and the logarithm of the mean
    is added to the last bias.

    Parameters
    ----------
    cap : float, default 50.0
        The expected y, in units of the mean target, up to which the exponential is exact.
    """

    name: ClassVar[str] = "poisson"
    cap: float = 50.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", number("cap", self.cap, low=0.0, strict=True))

    @property
    def H(self) -> float:  # type: ignore[override]
        """The largest curvature, ``cap``."""
        return self.cap

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = super().encode(y, n_outputs, dtype)
        if bool((target < 0).any()):
            raise InputError("y must be 0 or more for loss 'poisson'; got negative numbers")
        return target

    def units(self, target: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units | None:
        scale = mean(target, weight, comm)
        if not bool((scale > 0).all()):
            raise InputError("y holds nothing but zeros; loss 'poisson' needs some target above 0")
        return Units(torch.zeros_like(scale), scale, offset=scale.log(), factor=torch.ones_like(scale))

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        beyond = (z - self._bend).clamp_min(0)
        low = z.clamp_max(self._bend)
        value = low.exp() + self.cap * (beyond + beyond.square() / 2) - target * z
        return (value - self._least(target)).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        low = z.clamp_max(self._bend)
        return low.exp() + self.cap * (z - low) - target

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        return (z.clamp_max(self._bend).exp() * direction.square()).sum(1)

    def best_constant(self, mean: Tensor) -> Tensor:
        """The logarithm of the mean; beyond the cap, where the parabola has that slope."""
        beyond = self._bend + mean / self.cap - 1
        return torch.where(mean > self.cap, beyond, mean.clamp_min(NEVER).log())

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        v64, y = v.double(), target.double()
        r64 = r.double() if isinstance(r, Tensor) else v64.new_full((), r)
        z = r64.log() + _log_omega(v64 + y / r64 - r64.log())
        above = (r64 * v64 + y - self.cap * (1 - self._bend)) / (self.cap + r64)
        return torch.where(z > self._bend, above, z).to(v.dtype)

    def decision(self, z: Tensor) -> Tensor:
        """The expected y, ``exp(z)``."""
        return z.clamp_max(math.log(torch.finfo(z.dtype).max) - 1).exp()

    @property
    def _bend(self) -> float:
        return math.log(self.cap)

    def _least(self, y: Tensor) -> Tensor:
        """The least value of ``exp(z) - y z`` with its parabola: ``y - y log y`` up to the cap."""
        above = (y - self.cap).clamp_min(0) / self.cap  # how far beyond the bend it lies
        low = y.clamp_max(self.cap)
        below = low - torch.xlogy(low, low)
        bent = self.cap * (1 + above + above.square() / 2) - y * (self._bend + above)
        return torch.where(above > 0, bent, below)


def _log_omega(x: Tensor) -> Tensor:
    """The root t of exp(t) + t = x, the logarithm of Wright's omega function, by Newton's method from above.

    The left side is convex and increasing, so the steps fall monotonically; x, (x - 1)/2 and log x (x > 1) lie above
    the root.
    """
    t = torch.where(x > 3.5, x.clamp_min(1).log(), torch.minimum(x, (x - 1) / 2))
    for _ in range(_OMEGA_STEPS):
        e = t.exp()
        t = t - (e + t - x) / (e + 1)
    return t
