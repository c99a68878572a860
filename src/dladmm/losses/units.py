"""Targets of a regression at a common scale, undone in the network's last layer.

A loss of real targets defines the units of training (:meth:`dladmm.losses.Loss.units`): one set of defaults, such
as the bend of Huber's loss, then serves prices and millimetres alike. Training sees ``y' = (y - shift) / scale``; the
trained network gives y as it came, because its last layer ``W' a + b'`` becomes ``(k W') a + k b' + c``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.compute.communicator import ALONE, Communicator

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Units:
    """``y' = (y - shift) / scale`` of every column, and what outputs of the network become.

    Parameters
    ----------
    shift, scale : Tensor of shape (n_outputs,)
        Of the targets. The scale of a column that does not vary is infinite: it is 0 in these units.
    offset, factor : Tensor of shape (n_outputs,), optional
        Outputs for targets as they came are ``offset + factor * output``; by default shift and scale.
    names : tuple of str
        Those of the last block's weight and bias.
    """

    shift: Tensor
    scale: Tensor
    offset: Tensor | None = None
    factor: Tensor | None = None
    names: tuple[str, str] = ("W", "b")

    def apply(self, y: Tensor) -> Tensor:
        """Targets (N, n_outputs) in these units."""
        return (y - self.shift.to(y)).div_(self.scale.to(y))

    def outputs(self, output: Tensor) -> Tensor:
        """Outputs for targets as they came, in these units; those of a column that does not vary are 0."""
        offset, factor = self._of_outputs(output)
        return (output - offset) / factor

    def fold(self, params: Sequence[Params]) -> list[Params]:
        """Parameters of a network that gives targets as they came; a constant target is answered with itself."""
        *before, last = params
        W, b = (last[name] for name in self.names)
        offset, factor = self._of_outputs(W)
        factor = torch.where(factor.isfinite(), factor, torch.zeros_like(factor))
        changed = W * factor.reshape(-1, *[1] * (W.ndim - 1)), b * factor + offset
        return [*before, last | dict(zip(self.names, changed, strict=True))]

    def unfold(self, params: Sequence[Params]) -> list[Params]:
        """Parameters in these units, from those of a network that gives targets as they came."""
        *before, last = params
        W, b = (last[name] for name in self.names)
        offset, factor = self._of_outputs(W)
        factor = torch.where(factor.isfinite(), factor, torch.ones_like(factor))
        changed = W / factor.reshape(-1, *[1] * (W.ndim - 1)), (b - offset) / factor
        return [*before, last | dict(zip(self.names, changed, strict=True))]

    def check(self, dtype: torch.dtype) -> Units:
        """These units, checked: the last layer can hold them in the network's dtype."""
        for values in (self.shift, torch.where(self.scale.isfinite(), self.scale, 0.0)):
            if not bool(values.to(dtype).isfinite().all()):
                raise InputError(
                    f"y has values too large for {dtype}; scale the targets or use dtype='float64'."
                )
        return self

    def _of_outputs(self, like: Tensor) -> tuple[Tensor, Tensor]:
        offset = self.shift if self.offset is None else self.offset
        factor = self.scale if self.factor is None else self.factor
        return offset.to(like), factor.to(like)


def foldable(last: Params, n_outputs: int, names: tuple[str, str] = ("W", "b")) -> bool:
    """Whether a last block is an affine layer with a bias, into which units can be folded."""
    W, b = (last.get(name) for name in names)
    return W is not None and b is not None and W.shape[0] == n_outputs and b.shape == (n_outputs,)


def standard(y: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units:
    """Mean 0 and deviation 1 of every column of y (N, n_outputs); rows count by ``weight`` (N, 1)."""
    shift = mean(y, weight, comm)
    largest = _largest_deviation(y, shift, comm)
    deviation = mean(((y - shift) / largest).square_(), weight, comm).sqrt_()
    return Units(shift, _or_infinite(largest * deviation, largest))


def robust(y: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units:
    """Median 0 and median deviation 1/1.4826 of every column, which few wild targets do not move.

    The scale is the deviation of normally distributed targets. Where more than half of the targets are equal it is
    that of :func:`standard`. On several ranks, the mean of what they find.
    """
    known = standard(y, weight, comm)
    counted = y.new_full((), len(y)) if weight is None else weight.sum().to(y)
    middle = _averaged(_median(y, weight), counted, comm)
    spread = _averaged(1.4826 * _median((y - middle).abs_(), weight), counted, comm)
    usable = spread > 1e-9 * known.scale
    return Units(torch.where(usable, middle, known.shift), torch.where(usable, spread, known.scale))


def mean(y: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Tensor:
    """The weighted mean of every column over the rows of all ranks."""
    own = y.sum(0) if weight is None else (y * weight).sum(0)
    counted = y.new_full((), len(y)) if weight is None else weight.sum().to(y)
    total, count = comm.total(own, counted)
    return total / count


def _median(y: Tensor, weight: Tensor | None) -> Tensor:
    """The weighted median of every column; of no rows 0."""
    if len(y) == 0:
        return y.new_zeros(y.shape[1])
    if weight is None:
        return y.median(0).values
    values, order = y.sort(0)
    reached = weight.to(y).expand_as(y).gather(0, order).cumsum(0)
    first = (reached >= reached[-1] / 2).to(torch.uint8).argmax(0)
    return values.gather(0, first[None])[0]


def _averaged(value: Tensor, counted: Tensor, comm: Communicator) -> Tensor:
    if comm.alone:
        return value
    total, count = comm.total(value * counted, counted)
    return total / count


def _largest_deviation(y: Tensor, shift: Tensor, comm: Communicator) -> Tensor:
    """The largest ``|y - shift|`` of every column, 1 where it is none: squares of very large numbers are infinite."""
    empty = torch.full_like(shift, -math.inf)
    ends = (y.amax(0), -y.amin(0)) if len(y) else (empty, empty.clone())
    highest, minus_lowest = comm.largest(*ends)
    deviation = torch.maximum(highest - shift, shift + minus_lowest)
    constant = deviation <= 8 * torch.finfo(y.dtype).eps * torch.maximum(highest.abs(), minus_lowest.abs())
    return torch.where(constant, torch.full_like(deviation, math.inf), deviation)


def _or_infinite(scale: Tensor, largest: Tensor) -> Tensor:
    """The scale, infinite where the column does not vary: there ``largest`` is infinite."""
    varies = largest.isfinite() & (scale > 0)
    return torch.where(varies, scale, torch.full_like(scale, math.inf))
