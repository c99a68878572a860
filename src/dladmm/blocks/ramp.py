"""The ramp through a jump: what a resynchronised sweep sees of an activation with jumps.

At a resynchronised point ``a = f(z)``, and what is asked of a moves it by much less than a jump: the global minimiser
of the jump's own subproblem then leaves z where it is, and the layers below learn nothing. So the sweep of accelerated
mode puts a ramp in the jump's place, straight from the lowest level to the highest and lifted, entry by entry, to pass
through the point itself. Forward passes, and the objective that the safeguard compares, have the jump.

A staircase rises from half a step before its first threshold to half a step behind its last one, which for quantised
activations is the identity between the two ends. A single jump has no unit of length: there the ramp reaches as far as
:data:`REACH` times the root mean square of z, and z counts in units of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.activations import HardTanh
from dladmm.activations.jumps import JumpFunction
from dladmm.blocks.base import Anchor, Scope, Step, Term
from dladmm.compute.norms import squared_norm
from dladmm.compute.passes import one_pass

REACH = 0.6
"""Of a single jump's ramp, in root mean squares of z. Chosen on held-out MNIST images (docs/any_network.md)."""

_UNIT = HardTanh()


class Ramp(NamedTuple):
    """``mid + half * hard_tanh((z - centre) / reach)``; reach is a tensor, so that no device is asked for it."""

    centre: float
    reach: Tensor
    mid: float
    half: float

    def place(self, z: Tensor) -> Tensor:
        """z in units of the ramp: it rises from -1 to 1."""
        return (z - self.centre) / self.reach

    def height(self, place: Tensor) -> Tensor:
        return _UNIT(place) * self.half + self.mid

    def slope(self, z: Tensor) -> Tensor:
        return _UNIT.derivative(self.place(z)) * (self.half / self.reach)


def ramp_through(jump: JumpFunction, z: Tensor, term: Term | None = None) -> Ramp:
    """The ramp of this activation for variables of z's size; ``term`` says how often rows count, and on which ranks."""
    pieces = jump.pieces()
    first, last = pieces[1].start, pieces[-1].start
    low, high = pieces[0].intercept, pieces[-1].intercept
    if len(pieces) > 2:
        step = (last - first) / (len(pieces) - 2)
        reach = z.new_full((), (last - first + step) / 2)
    else:
        total = squared_norm(z, None if term is None else term.rows)
        if term is not None:
            (total,) = term.total(total)
        samples = len(z) if term is None else term.samples()
        mean = total / (samples * max(1, z[:1].numel()))
        reach = (REACH * mean.sqrt()).clamp_min(torch.finfo(z.dtype).tiny ** 0.5).to(z.dtype)
    return Ramp((first + last) / 2, reach, (low + high) / 2, (high - low) / 2)


def update_on_ramp(
    jump: JumpFunction, z: Tensor, weight: float, anchor: Anchor, term: Term, scope: Scope
) -> Step:
    """``argmin_y (y - m)^2 + weight (a - lifted ramp(y))^2`` with y, m in units of the ramp and heights of half of it.

    The ramp is made once a sweep; how far it is lifted follows from z and the cached prediction, which belong together.
    """
    ramp: Ramp | None = scope.memory.get("ramp")
    if ramp is None:
        ramp = scope.memory["ramp"] = ramp_through(jump, z, term)
    squared = _solve(z, term.prediction, anchor.value, term.target, term.rows, ramp=ramp, weight=weight)
    return Step("z", squared, None)


@one_pass
def _solve(
    z: Tensor, f: Tensor, m: Tensor, a: Tensor, rows: Tensor | None, *, ramp: Ramp, weight: float
) -> Tensor:
    """z and ``f = ramp(z) + lift`` in place; the squared length of the move."""
    lift = f - ramp.height(ramp.place(z))
    wanted = (a - lift - ramp.mid) / ramp.half
    place = _UNIT.project(ramp.place(m), wanted, weight)
    found = place * ramp.reach + ramp.centre
    squared = squared_norm(found - z, rows)
    z.copy_(found)
    torch.add(ramp.height(place), lift, out=f)
    return squared
