"""The surrogate of a jump: the ramp that a resynchronised sweep sees in the place of an activation with jumps.

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
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Step, Term

REACH = 0.6
"""Of a single jump's ramp, in root mean squares of z. Chosen on held-out MNIST images (docs/network_notes.md)."""

STREAMED_REACH = 1.0
"""The same in streaming mode, where z is normalised as a rule: the window of the straight-through estimator."""

_UNIT = HardTanh()


class Surrogate(NamedTuple):
    """``mid + half * hard_tanh((z - centre) / reach)``; reach is a tensor, so that no device is asked for it."""

    centre: float
    reach: Tensor
    mid: float
    half: float

    def place(self, z: Tensor) -> Tensor:
        """z in units of the ramp: it rises from -1 to 1."""
        return (z - self.centre if self.centre else z) / self.reach

    def height(self, place: Tensor) -> Tensor:
        return _UNIT(place) * self.half + self.mid

    def times_slope(self, z: Tensor, x: Tensor) -> Tensor:
        """The ramp's derivative at z, times x."""
        inside: Tensor = torch.ops.aten.hardtanh_backward(x, self.place(z), -1.0, 1.0)
        return inside.mul_(self.half / self.reach)


def surrogate_through(
    jump: JumpFunction, z: Tensor, work: Work | None = None, wide: float = REACH
) -> Surrogate:
    """The ramp of this activation for variables of z's size; ``work`` says how often rows count, and on which ranks."""
    pieces = jump.pieces()
    first, last = pieces[1].start, pieces[-1].start
    low, high = pieces[0].intercept, pieces[-1].intercept
    if len(pieces) > 2:
        step = (last - first) / (len(pieces) - 2)
        reach = z.new_full((), (last - first + step) / 2)
    else:
        if work is None:
            root = torch.linalg.vector_norm(z) / max(1, z.numel()) ** 0.5
        else:
            (total,) = work.total(squared_norm(z, work.counts))
            root = (total / (work.samples(len(z)) * max(1, z[:1].numel()))).sqrt()
        reach = (wide * root).clamp_min(torch.finfo(z.dtype).tiny ** 0.5).to(z.dtype)
    return Surrogate((first + last) / 2, reach, (low + high) / 2, (high - low) / 2)


def update_on_surrogate(
    jump: JumpFunction, z: Tensor, weight: float, anchor: Anchor, term: Term, work: Work
) -> Step:
    """``argmin_y (y - m)^2 + weight (a - lifted ramp(y))^2`` with y, m in units of the ramp and heights of half of it.

    The ramp is made once per sweep; how far it is lifted follows from z and the cached prediction, which belong
    together.
    """
    ramp = work.once_per_sweep("surrogate", lambda: surrogate_through(jump, z, work))
    squared = work.solve_rows(z, anchor, term, _on_ramp, ramp=ramp, weight=weight)
    return Step("z", squared, None)


def _on_ramp(
    v: Tensor, f: Tensor, m: Tensor, a: Tensor, *, ramp: Surrogate, weight: float
) -> tuple[Tensor, Tensor]:
    """The new z and ``f = ramp(z) + lift``."""
    lift = f - ramp.height(ramp.place(v))
    wanted = (a - lift - ramp.mid) / ramp.half
    place = _UNIT.project(ramp.place(m), wanted, weight)
    return place * ramp.reach + ramp.centre, ramp.height(place).add_(lift)
