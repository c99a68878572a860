"""A step of a graph block, seen along its direction: how far to go."""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.activations import Activation
from dladmm.blocks.base import Term
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

    def __init__(self, activation: Activation, term: Term, H: Tensor, rows: Tensor | None) -> None:
        self.activation, self.term, self.rows, self._H = activation, term, rows, H
        self.linear = activation.name == "identity"
        self.prediction = self._pick(term.prediction)
        self.residual = self.prediction - self._pick(term.target)
        self.H = self._pick(H)
        self.slope = None if self.linear else activation.derivative(self.H)
        self._tried: tuple[float, Tensor, Tensor] | None = None

    def _pick(self, full: Tensor) -> Tensor:
        return full if self.rows is None else full[self.rows]

    def gradient(self) -> Tensor:
        """``c E f'(H)``: the gradient of phi in H."""
        scaled = self.residual * self.term.weight
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
        self.along = self.d_squared if g is d else _inner(g, d)
        self.pull = torch.zeros_like(self.along) if offset is None or self.linear else _inner(offset, d)

    def required(self) -> Tensor:
        """The curvature along d of phi with f linearised: exact where f is the identity."""
        bent = self.change if self.slope is None else self.change * self.slope
        return self.term.weight * ratio(squared_norm(bent), self.d_squared) + self.own

    def first_curvature(self) -> float:
        """Where a search without a given start begins: the linearised curvature, kept off zero."""
        steepest = self.term.weight * float(ratio(squared_norm(self.change), self.d_squared))
        return max(float(self.required()), 1e-3 * steepest, torch.finfo(torch.float32).tiny)

    def slack(self) -> float:
        """What rounding alone does to phi."""
        eps = torch.finfo(self.residual.dtype).eps
        return eps * self.term.weight / 2 * float(squared_norm(self.residual))

    def rise(self, step: float) -> float:
        """``phi(s) - phi(0)`` without the anchor."""
        H = torch.add(self.H, self.change, alpha=-step)
        new = self.activation(H)
        self._tried = (step, H, new)
        return self.term.weight / 2 * float(rise_of_square(new - self.prediction, self.residual))

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
        found = searched(trial, first, self.slack(), options)
        return torch.full_like(self.d_squared, torch.inf if found is None else found)

    def advance(self, sigma: Tensor) -> Tensor:
        """Take the step ``1/(sigma + strength)``; returns it, 0 where there is no direction or sigma is infinite."""
        step = torch.where(self.d_squared > 0, 1 / (sigma + self.strength), torch.zeros_like(sigma))
        self.move(step)
        return step

    def move(self, step: Tensor | float) -> None:
        """Move H and the prediction, on all rows."""
        if self.linear:
            self._H.sub_(self._change * step)
        elif self._tried is not None and self.rows is None and self._tried[0] == float(step):
            self._H.copy_(self._tried[1])
            self.term.prediction.copy_(self._tried[2])
        elif float(step) > 0:
            self._H.sub_(self._change * step)
            self.term.prediction.copy_(self.activation(self._H))


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """``<x, y>`` as a float64 scalar: added in the given precision within a row, in float64 over rows."""
    return (x * y).sum(-1).sum(dtype=torch.float64)
