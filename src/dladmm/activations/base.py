"""The base class of all activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from dladmm.base.spec import Named, number


class Activation(Named, ABC):
    """argmin_z (z - m)^2 + weight (a - f(z))^2, entry by entry: the z_l-update, equations (4) and (14).

    It is the projection of the point (m, a) onto the graph of f, with heights scaled by sqrt(weight). The graph is
    curved, so there may be several local minimisers; :meth:`argmin` returns a global one, as the descent proof needs.
    All methods work entry by entry: tensors of any shape in, tensors of the same shape out.
    """

    continuous: ClassVar[bool] = True
    """False for functions with jumps: Assumption 1 of the paper cannot hold for them, descent still does."""

    closed_form: ClassVar[bool] = False
    """Whether :meth:`argmin` is a formula; otherwise it searches, and a device is asked for results meanwhile."""

    @property
    def n_levels(self) -> int:
        """Number of levels of a step function (2 for sign); 0 for functions without jumps."""
        return 0

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """f(z)."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """f'(z); at a kink the value torch uses (0 for relu), zero for step functions."""

    def write(self, z: Tensor, out: Tensor) -> Tensor:
        """Write f(z) into ``out`` and return it; allocating a new tensor would cost more than evaluating f."""
        return out.copy_(self(z))

    def write_derivative(self, z: Tensor, out: Tensor) -> Tensor:
        """Write f'(z) into ``out`` and return it."""
        return out.copy_(self.derivative(z))

    def times_derivative(self, z: Tensor, x: Tensor) -> Tensor:
        """``f'(z) x``."""
        return self.write_derivative(z, torch.empty_like(z)).mul_(x)

    @abstractmethod
    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        """A global minimiser over z of (z - m)^2 + weight (a - f(z))^2, entry by entry."""

    def project(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        """:meth:`argmin` for a part that fits into the cache; ``weight`` has been checked to be > 0."""
        return self.argmin(m, a, weight)

    @abstractmethod
    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        """Distance of 0 to the limiting subdifferential of (z - m)^2/2 + (weight/2)(a - f(z))^2 at z."""

    def tie_margin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> float | None:
        """How far the entries keep from ties of :meth:`argmin`, where it jumps; None where that is not known.

        The smallest, over the entries, of what the second best local minimiser costs more than the best, over the
        squared distance of the two: 0 at a tie, infinite where there is no second one.
        """
        return None

    @abstractmethod
    def module(self) -> nn.Module:
        """A torch module that computes f."""

    @classmethod
    def from_module(cls, module: nn.Module) -> Activation | None:
        """The activation of this class that ``module`` computes; None if it computes something else."""
        return None


def checked_weight(weight: float) -> float:
    """The weight as a float, > 0."""
    return number("weight", weight, low=0.0, strict=True)


def part_size(tensor: Tensor) -> int:
    """Entries to process at once: bounded by the cache on a CPU, by the memory for temporaries on a GPU."""
    return 1 << (24 if tensor.is_cuda else 16)


def parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, flattened and split into matching parts."""
    size = part_size(tensors[0])
    return zip(*(torch.split(tensor.reshape(-1), size) for tensor in tensors), strict=True)


def objective_gain(
    z: Tensor, f: Tensor, z_other: Tensor, f_other: Tensor, m: Tensor, a: Tensor, weight: float
) -> Tensor:
    """The objective at z_other minus the objective at z, where f = f(z) and f_other = f(z_other).

    It is not computed as a difference of two rounded values, which could not distinguish points sqrt(eps) apart.
    """
    gain = (z_other - m).add_(z).sub_(m).mul_(z_other - z)
    return gain.addcmul_((f_other - a).add_(f).sub_(a), f_other - f, value=weight)


def distance_at_kink(left: Tensor, right: Tensor) -> Tensor:
    """Distance of 0 to the limiting subdifferential where the slopes on the two sides are left and right.

    It is the interval [left, right] at a convex kink, the two points left and right at a concave one.
    """
    convex = torch.maximum(left, -right).clamp_min_(0)
    return torch.where(left <= right, convex, torch.minimum(left.abs(), right.abs()))
