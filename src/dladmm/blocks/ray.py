"""A step of a graph block, seen along its direction: how far to go."""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.activations import Activation
from dladmm.blocks.base import Term
from dladmm.blocks.scratch import Scratch
from dladmm.subproblems import (
    SubproblemOptions,
    Trial,
    backtracked,
    ratio,
    rise_of_square,
    searched,
    squared_norm,
)


class Ray:
    """``phi(s) = (c/2)||f(H - s change) - target||^2`` (plus an anchor's quadratic): one gradient, then one number s.

    First ``gradient()`` says what phi is worth per entry of H, then ``aim`` fixes the direction d and the change of H
    along it, ``curvature`` chooses sigma (or delta) by backtracking, and ``advance`` moves H and the prediction by the
    step ``s = 1/(sigma + strength)``. ``rows`` are the rows phi counts, None for all; H moves on all of them.
    """

    change: Tensor
    d_squared: Tensor
    along: Tensor
    pull: Tensor
    slope: Tensor | None

    def __init__(
        self, activation: Activation, term: Term, H: Tensor, rows: Tensor | None, scratch: Scratch
    ) -> None:
        self.activation, self.term, self.rows, self.H_all, self.scratch = activation, term, rows, H, scratch
        self.linear = activation.name == "identity"
        self.prediction, self.H = self._pick(term.prediction), self._pick(H)
        target = self._pick(term.target)
        self.residual = torch.sub(self.prediction, target, out=scratch.take("residual", target))
        self.slope = None
        if not self.linear:
            self.slope = activation.write_derivative(self.H, scratch.take("slope", self.H))
        self._tried: tuple[float, Tensor, Tensor] | None = None

    def _pick(self, full: Tensor) -> Tensor:
        return full if self.rows is None else full[self.rows]

    def gradient(self) -> Tensor:
        """``c E f'(H)``: the gradient of phi in H."""
        scaled = torch.mul(self.residual, self.term.weight, out=self.scratch.take("entries", self.residual))
        return scaled if self.slope is None else scaled.mul_(self.slope)

    def aim(
        self,
        change: Tensor,
        d: Tensor,
        g: Tensor,
        strength: float = 0.0,
        *,
        own: float = 0.0,
        offset: Tensor | None = None,
    ) -> None:
        """Look along d: H becomes ``H - s change``. g is the gradient, own and offset are an anchor's weight and
        ``v - value``."""
        self._change, self.change = change, self._pick(change)
        self.strength, self.own = strength, own
        self.d_squared = squared_norm(d)
        self.along = self.d_squared if g is d else self._inner(g, d)
        self.pull = torch.zeros_like(self.along) if offset is None or self.linear else self._inner(offset, d)

    def required(self) -> Tensor:
        """The curvature along d of phi with f linearised: exact where f is the identity."""
        bent = self.change
        if self.slope is not None:
            bent = torch.mul(bent, self.slope, out=self.scratch.take("entries", bent))
        return self.term.weight * ratio(squared_norm(bent), self.d_squared) + self.own

    def first_curvature(self) -> float:
        """Where a search without a given start begins: the linearised curvature, kept off zero."""
        linearised = float(self.required())
        if linearised > 0:
            return linearised
        unbent = self.term.weight * float(ratio(squared_norm(self.change), self.d_squared))
        return max(1e-3 * unbent, torch.finfo(torch.float32).tiny)

    def slack(self) -> float:
        """What rounding alone does to phi."""
        eps = torch.finfo(self.residual.dtype).eps
        return eps * self.term.weight / 2 * float(squared_norm(self.residual))

    def rise(self, step: float) -> float:
        """``phi(s) - phi(0)`` without the anchor."""
        take = self.scratch.take
        H = torch.add(self.H, self.change, alpha=-step, out=take("tried", self.H))
        new = self.activation.write(H, take("new", H))
        self._tried = (step, H, new)
        moved = torch.sub(new, self.prediction, out=take("entries", new))
        return self.term.weight / 2 * float(rise_of_square(moved, self.residual, out=take("products", moved)))

    def curvature(self, start: float | None, options: SubproblemOptions) -> Tensor:
        """The sigma (or delta) of the paper's backtracking from ``start``; infinite when the cap is reached."""
        if self.linear:
            return backtracked(self.required(), start, options.growth)
        squared, along, pull = torch.stack([self.d_squared, self.along, self.pull]).tolist()
        if squared == 0.0:
            return torch.full_like(self.d_squared, start or self.own)

        def trial(sigma: float) -> Trial:
            s = 1 / (sigma + self.strength)
            anchor = self.own * (s * s / 2 * squared - s * pull)
            return Trial(self.rise(s) + anchor, -s * along, s * s * squared)

        first = self.first_curvature() if start is None else start
        found = searched(trial, first, self.slack, options)
        return torch.full_like(self.d_squared, torch.inf if found is None else found)

    def advance(self, sigma: Tensor) -> Tensor:
        """Take the step ``1/(sigma + strength)``; returns it, 0 where there is no direction or sigma is infinite."""
        step = torch.where(self.d_squared > 0, 1 / (sigma + self.strength), torch.zeros_like(sigma))
        self.move(step)
        return step

    def move(self, step: Tensor | float) -> None:
        """Move H and the prediction, on all rows."""
        if self.linear:
            move_along(self.H_all, self._change, step)
        elif self._tried is not None and self.rows is None and self._tried[0] == float(step):
            self.scratch.swap("tried", self.H_all)
            self.H_all = self._tried[1]
            self.term.prediction.copy_(self._tried[2])
        elif float(step) > 0:
            move_along(self.H_all, self._change, step)
            self.activation.write(self.H_all, self.term.prediction)

    def _inner(self, x: Tensor, y: Tensor) -> Tensor:
        """``<x, y>`` as a float64 scalar: added in the given precision within a row, in float64 over rows."""
        return torch.mul(x, y, out=self.scratch.take("inner product", x)).sum(1).sum(dtype=torch.float64)


def move_along(x: Tensor, d: Tensor, step: Tensor | float) -> None:
    """``x -= step d`` in place, without asking the device for the step."""
    if isinstance(step, Tensor):
        x.addcmul_(d, step.to(d.dtype), value=-1)
    else:
        x.sub_(d, alpha=step)
