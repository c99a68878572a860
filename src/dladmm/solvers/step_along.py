"""How far to go along a fixed direction, for a function that is an activation of something linear."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dladmm.activations import Activation
from dladmm.compute.execution import one_pass
from dladmm.compute.passes import ranged_squared_norm, ratio, squared_norm
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import (
    SubproblemOptions,
    Term,
    Trial,
    backtracked,
    rise_of_square,
    searched,
    searched_blindly,
)

TRIALS_PER_PASS = 15
"""Trials evaluated in one pass over memory, where it is compiled: as many as registers hold."""


class StepAlong:
    """``phi(s) = (c/2)||f(H - s change) - target||^2`` (plus an anchor's quadratic): one gradient, then one number s.

    First ``gradient()`` says what phi is worth per entry of H, then ``aim`` fixes the direction d and the change of H
    along it, ``curvature`` chooses sigma (or delta) by backtracking, and ``advance`` hands H and the prediction to the
    work, which moves them by the step ``s = 1/(sigma + strength)``. ``rows`` are the rows phi counts, None for all; H
    moves on all of them.
    """

    change: Tensor
    d_squared: Tensor
    along: Tensor
    pull: Tensor
    slope: Tensor | None

    def __init__(
        self, activation: Activation, term: Term, H: Tensor, rows: Tensor | None, work: Work
    ) -> None:
        self.activation, self.term, self.rows, self.H_all, self.work = activation, term, rows, H, work
        self.linear = activation.name == "identity"
        self.prediction, self.H = self._pick(term.prediction), self._pick(H)
        target = self._pick(term.target)
        self.residual = torch.sub(self.prediction, target, out=work.buffer("residual", target))
        self.slope = None
        if not self.linear:
            self.slope = activation.write_derivative(self.H, work.buffer("slope", self.H))
        self._tried: tuple[float, Tensor, Tensor] | None = None

    def _pick(self, full: Tensor) -> Tensor:
        return full if self.rows is None else full[self.rows]

    def gradient(self) -> Tensor:
        """``c E f'(H)``: the gradient of phi in H."""
        scaled = torch.mul(self.residual, self.term.weight, out=self.work.buffer("entries", self.residual))
        return scaled if self.slope is None else scaled.mul_(self.slope)

    def aim(
        self,
        change: Tensor,
        d: Tensor,
        g: Tensor,
        strength: float | Tensor = 0.0,
        *,
        own: float = 0.0,
        offset: Tensor | None = None,
    ) -> None:
        """Look along d: H becomes ``H - s change``. g is the gradient, own and offset are an anchor's weight and
        ``v - value``."""
        self._change, self.change = change, self._pick(change)
        self.strength, self.own = strength, own
        self.d_squared = self._squared(d)
        self.along = self.d_squared if g is d else self._inner(g, d)
        self.pull = torch.zeros_like(self.along) if offset is None or self.linear else self._inner(offset, d)
        if offset is not None and self.work.shards is not None:  # d has rows here and on other ranks
            totals = self.work.total(self.d_squared.clone(), self.along.clone(), self.pull)
            self.d_squared, self.along, self.pull = totals

    def required(self) -> Tensor:
        """The curvature along d of phi with f linearised: exact where f is the identity."""
        bent = self.change
        if self.slope is not None:
            bent = torch.mul(bent, self.slope, out=self.work.buffer("entries", bent))
        return self.term.weight * ratio(self.work.total(self._squared(bent))[0], self.d_squared) + self.own

    def first_curvature(self) -> Tensor:
        """Where a search without a given start begins: the linearised curvature, kept off zero."""
        linearised = self.required()
        if not self.work.how.never_waits(self.H) and float(linearised) > 0:
            return linearised
        unbent = self.term.weight * ratio(self.work.total(self._squared(self.change))[0], self.d_squared)
        kept_off = (1e-3 * unbent).clamp_min(torch.finfo(torch.float32).tiny)
        return torch.where(linearised > 0, linearised, kept_off)

    def slack(self) -> Tensor:
        """What rounding alone does to phi."""
        eps = torch.finfo(self.residual.dtype).eps
        return eps * self.term.weight / 2 * self.work.total(squared_norm(self.residual))[0]

    def rise(self, step: float) -> float:
        """``phi(s) - phi(0)`` without the anchor."""
        take = self.work.buffer
        H = torch.add(self.H, self.change, alpha=-step, out=take("tried", self.H))
        new = self.activation.write(H, take("new", H))
        self._tried = (step, H, new)
        moved = torch.sub(new, self.prediction, out=take("entries", new))
        own = rise_of_square(moved, self.residual, out=take("products", moved))
        return self.term.weight / 2 * float(self.work.total(own)[0])

    def curvature(self, start: float | None, options: SubproblemOptions) -> Tensor:
        """The sigma (or delta) of the paper's backtracking from ``start``; infinite when the cap is reached."""
        if self.linear:
            return backtracked(self.required(), start, options.growth)
        if self.work.how.never_waits(self.H):
            return self._curvature_blindly(start, options)
        squared, along, pull = torch.stack([self.d_squared, self.along, self.pull]).tolist()
        if squared == 0.0:
            return torch.full_like(self.d_squared, start or self.own)

        def trial(sigma: float) -> Trial:
            s = 1 / (sigma + float(self.strength))
            anchor = self.own * (s * s / 2 * squared - s * pull)
            return Trial(self.rise(s) + anchor, -s * along, s * s * squared)

        first = float(self.first_curvature()) if start is None else start
        found = searched(trial, first, lambda: float(self.slack()), options)
        return torch.full_like(self.d_squared, torch.inf if found is None else found)

    def _curvature_blindly(self, start: float | None, options: SubproblemOptions) -> Tensor:
        """The same without asking the device: all trials at once, as many to a pass over memory as registers hold."""
        tried = torch.arange(options.max_backtracks, dtype=torch.float64, device=self.H.device)
        sigma = (self.first_curvature() if start is None else start) * options.growth**tried
        s = 1 / (sigma + self.strength)
        rows = (self.H, self.change, self.prediction, self.residual)
        at_once = TRIALS_PER_PASS if self.work.how.compiles(self.H) else len(s)
        parts = (s[first : first + at_once] for first in range(0, len(s), at_once))
        own = torch.cat(
            [_rises(self.work.how, *rows, steps=some, activation=self.activation) for some in parts]
        )
        (rises,) = self.work.total(own)
        rise = self.term.weight / 2 * rises + self.own * (s * s / 2 * self.d_squared - s * self.pull)
        excess = rise + s * self.along - sigma / 2 * s * s * self.d_squared
        return searched_blindly(excess, sigma, self.slack())

    def advance(self, sigma: Tensor) -> Tensor:
        """Hand over the step ``1/(sigma + strength)`` and return it: 0 without a direction or if sigma is infinite."""
        step = torch.where(self.d_squared > 0, 1 / (sigma + self.strength), torch.zeros_like(sigma))
        self.move(step)
        return step

    def move(self, step: Tensor | float) -> None:
        """Hand over the move of H and of the prediction, on all rows."""
        work, blindly = self.work, self.work.how.never_waits(self.H_all)
        if self.linear:  # H is the prediction
            work.move_along(self.H_all, self._change, step)
        elif not blindly and self._tried is not None and self.rows is None and self._tried[0] == float(step):
            _, tried, new = self._tried
            work.swap("tried", self.H_all)
            self.H_all = tried
            work.assign(self.term.prediction, new)
        elif blindly or float(step) > 0:
            work.move_along(self.H_all, self._change, step)
            work.assign(self.term.prediction, partial(self.activation.write, self.H_all))

    def _inner(self, x: Tensor, y: Tensor) -> Tensor:
        """``<x, y>`` as a float64 scalar: added in the given precision within a row, in float64 over rows."""
        return torch.mul(x, y, out=self.work.buffer("inner product", x)).sum(1).sum(dtype=torch.float64)

    def _squared(self, x: Tensor) -> Tensor:
        """``||x||^2``; where the device is not waited for, the plain one, which reads memory once."""
        return squared_norm(x) if self.work.how.never_waits(x) else ranged_squared_norm(x)


@one_pass(kernel="rises")
def _rises(
    H: Tensor, change: Tensor, prediction: Tensor, residual: Tensor, *, steps: Tensor, activation: Activation
) -> Tensor:
    """:meth:`StepAlong.rise` at each of ``steps``, without the weight."""
    changes = (activation(H - s * change) - prediction for s in steps.unbind())
    return torch.stack([rise_of_square(moved, residual) for moved in changes])


def with_decay(g: Tensor, W: Tensor, strength: float | Tensor) -> Tensor:
    """``g + strength W``; g itself where a strength that is known is 0."""
    if isinstance(strength, Tensor):
        return g + W * strength
    return g.add(W, alpha=strength) if strength > 0 else g
