"""What every activation can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from dladmm.base.spec import Named, number


class Activation(Named, ABC):
    """argmin_z (z - m)^2 + weight (a - f(z))^2, entry by entry: the z_l-update, equations (4) and (14).

    It is the projection of the point (m, a) onto the graph of f, heights counted with a factor sqrt(weight).
    The graph is curved, so there may be several local minimisers; ``argmin`` returns a global one, which is
    what the descent proof needs.
    """

    continuous: ClassVar[bool] = True
    """False for functions with jumps: Assumption 1 of the paper cannot hold for them, descent still does."""

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """f(z)."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """f'(z); at a kink what torch takes there (0 for relu), zero for functions with jumps."""

    def write(self, z: Tensor, out: Tensor) -> Tensor:
        """f(z), written into ``out``: where it is evaluated often, fresh memory would cost more than f."""
        return out.copy_(self(z))

    def write_derivative(self, z: Tensor, out: Tensor) -> Tensor:
        """f'(z), written into ``out``."""
        return out.copy_(self.derivative(z))

    @abstractmethod
    def argmin(self, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        """A global minimiser over z of (z - m)^2 + weight (a - f(z))^2, entry by entry."""

    def project(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        """:meth:`argmin` of a part that fits into the cache, the weight being a number > 0 already."""
        return self.argmin(m, a, weight)

    @abstractmethod
    def stationarity(self, z: Tensor, m: Tensor, a: Tensor, weight: float = 1.0) -> Tensor:
        """Distance of 0 to the limiting subdifferential of (z - m)^2/2 + (weight/2)(a - f(z))^2 at z."""

    @abstractmethod
    def module(self) -> nn.Module:
        """An ordinary torch module that computes f."""

    @classmethod
    def from_module(cls, module: nn.Module) -> Activation | None:
        """The activation of this class that ``module`` computes, None if it computes something else."""
        return None


def checked_weight(weight: float) -> float:
    """The weight as a float, > 0."""
    return number("weight", weight, low=0.0, strict=True)


def part_size(tensor: Tensor) -> int:
    """How many entries to treat at once: few enough for the cache of a CPU, for temporaries on a GPU."""
    return 1 << (24 if tensor.is_cuda else 16)


def parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, all of one shape, cut alike into flat parts."""
    size = part_size(tensors[0])
    return zip(*(torch.split(tensor.reshape(-1), size) for tensor in tensors), strict=True)


def objective_gain(
    z: Tensor, f: Tensor, z_other: Tensor, f_other: Tensor, m: Tensor, a: Tensor, weight: float
) -> Tensor:
    """By how much z is better than z_other, f being f(z).

    Not the difference of two rounded values: that could not tell points apart that are sqrt(eps) away.
    """
    gain = (z_other - m).add_(z).sub_(m).mul_(z_other - z)
    return gain.addcmul_((f_other - a).add_(f).sub_(a), f_other - f, value=weight)


def distance_at_kink(left: Tensor, right: Tensor) -> Tensor:
    """Distance of 0 to the limiting subdifferential where the slopes on the two sides are left and right.

    It is the interval [left, right] at a convex kink, the two points left and right at a concave one.
    """
    convex = torch.maximum(left, -right).clamp_min_(0)
    return torch.where(left <= right, convex, torch.minimum(left.abs(), right.abs()))
