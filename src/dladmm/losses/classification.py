"""Losses for classification: cross-entropy, binary logistic, squared hinge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.compute.execution import EAGER, Execution, nothing, one_pass
from dladmm.losses.base import Kind, Loss, as_columns, holds_labels, one_hot, yes_no

_MAX_STEPS = 24
_INNER_STEPS = 4
_FLOAT32_STEPS, _FLOAT64_STEPS = ((0.5, 5), (0.01, 8), (0.0, 10)), {torch.float64: 3}
"""Steps without a convergence check: first in float32 (pairs of a bound on r and the steps for r above it), then in
float64 (two suffice for a float32 result). Enough for r from 1e-8 to 1e4, v up to 1e3, 2 to 100 classes
(tests/losses)."""


def softmax_prox(v: Tensor, y: Tensor, r: Tensor | float, how: Execution = EAGER) -> Tensor:
    """argmin_z (sum_i y_i) logsumexp(z) - y^T z + (r/2)||z - v||^2 row by row, in float64; eq. (5), (15).

    With p the softmax of z, one unknown per row is enough, s = logsumexp(z): optimality p - y + r (z - v) = 0
    reads w_i + log w_i = v_i + y_i/r - s - log r for w_i = p_i/r, so w_i is the Wright omega function of the
    right side, and sum_i w_i = 1/r fixes s. Newton's method runs on

        h(sum_i w_i(s)) = h(1/r),      h(w) = w + log w,

    which is convex and decreasing in s with slopes between -(number of classes) and -1 (by the inequality of
    Cauchy and Schwarz), and linear if one class has all the weight: it converges from any start, for every r.

    To avoid cancellation the iteration works with t_i, w_i = k_i exp(t_i), where k_i = y_i/r, or 1 where y_i = 0: then
    w_i - y_i/r = k_i expm1(t_i) is accurate when p is close to y, however small r is.

    Parameters
    ----------
    v, y : Tensor of shape (N, n_classes)
    r : float or Tensor of shape (N, 1)

    Returns
    -------
    Tensor of shape (N, n_classes), float64
    """
    result_dtype, v, y = v.dtype, v.double(), y.double()
    smallest_r = 0.0 if isinstance(r, Tensor) else r
    r = r.double() if isinstance(r, Tensor) else v.new_full((), r)  # no copy from the host
    labelled = y > 1e-30
    k = torch.where(labelled, y / r, 1.0)
    log_k = k.log()
    offset = torch.where(labelled, y.log(), 1 + r.log()) - v
    total = y.sum(dim=1, keepdim=True) / r
    s = torch.logsumexp(v, dim=1, keepdim=True)
    if not how.avoids_waiting(v):
        return v - _newton(how, _MAX_STEPS, s, offset, k, log_k, labelled, total, check_convergence=True)
    # On a GPU a step costs less than a synchronisation to check convergence, and one in float32 by far the least
    rough = s.float()
    max_steps = next(steps for bound, steps in _FLOAT32_STEPS if smallest_r >= bound)
    _newton(how, max_steps, rough, offset.float(), k.float(), log_k.float(), labelled, total.float())
    s = torch.where(rough.isfinite(), rough.double(), s)
    return v - _newton(how, _FLOAT64_STEPS.get(result_dtype, 2), s, offset, k, log_k, labelled, total)


def _newton(
    how: Execution,
    max_steps: int,
    s: Tensor,
    offset: Tensor,
    *constants: Tensor,
    check_convergence: bool = False,
) -> Tensor:
    """Update s in place by at most ``max_steps`` Newton steps; returns the excess at the start of the last one.

    With ``check_convergence`` the loop ends when the steps are small enough, at the price of a synchronisation.
    """
    excess, step, settled = torch.empty_like(offset), torch.empty_like(s), False
    for step_number in range(max_steps):
        _newton_step(how, excess, s, step, offset, *constants)
        if settled:
            break
        if check_convergence and step_number % 2:  # a step below 1e-8 leaves an error below 1e-16
            settled = bool((step.abs() <= 1e-8 + 1e-15 * s.abs()).all())
    return excess


@one_pass("excess", "s", "step")
def _newton_step(
    excess: Tensor,
    s: Tensor,
    step: Tensor,
    offset: Tensor,
    k: Tensor,
    log_k: Tensor,
    labelled: Tensor,
    total: Tensor,
) -> Tensor:
    """``excess = w_i - y_i/r`` at s, then one step of s, in place."""
    torch.mul(k, torch.expm1(_log_omega(offset + s, k, log_k)), out=excess)
    w = excess + k
    excess.copy_(torch.where(labelled, excess, w))
    gap = excess.sum(dim=1, keepdim=True)  # sum_i w_i - 1/r
    slope = (1 + 1 / w.sum(dim=1, keepdim=True)) * (w / (1 + w)).sum(dim=1, keepdim=True)
    torch.div(gap + torch.log1p(gap / total), slope, out=step)
    s.add_(step)
    return nothing(s)


def _log_omega(d: Tensor, k: Tensor, log_k: Tensor) -> Tensor:
    """The root t of k expm1(t) + t + d, by Newton's method from above, so monotone.

    With T = t + log k this is exp(T) + T = x: T is the log of the Wright omega function of x. It is concave,
    so its tangents x and (x - 1)/2 lie above it, and so does log x for x > 1.
    """
    x = k + log_k - d
    t = torch.where(x > 3.5, x.clamp_min(1).log(), torch.minimum(x, (x - 1) / 2)).sub_(log_k)
    for _ in range(_INNER_STEPS):
        excess = torch.expm1(t).mul_(k)
        residual = (excess + t).add_(d)
        t.sub_(residual.div_(excess.add_(k).add_(1)))
    return t


class Classification(Loss):
    """Base class of the losses whose targets are classes."""

    kind: Kind = "classification"

    def decision(self, z: Tensor) -> Tensor:
        return (z[:, 0] > 0).long() if z.shape[1] == 1 else z.argmax(dim=1)


@dataclass(frozen=True)
class CrossEntropy(Classification):
    """argmin_z logsumexp(z) - y^T z + (r/2)||z - v||^2, softmax cross-entropy; equations (5) and (15).

    Solved exactly by Newton's method in one unknown per row, see ``softmax_prox``. Targets are class indices (N,)
    or soft labels (N, n_classes) whose rows sum to 1.
    """

    name: ClassVar[str] = "cross_entropy"
    takes_soft_labels: ClassVar[bool] = True
    H = 0.5

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if n_outputs < 2:
            raise InputError(f"cross_entropy needs n_outputs >= 2; got {n_outputs} (binary_logistic takes 1)")
        if holds_labels(y):
            return one_hot(y, n_outputs, dtype)
        soft = as_columns(y, n_outputs).to(dtype)
        if not ((soft >= 0).all() and ((soft.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise InputError("y as soft labels must be >= 0 with rows that sum to 1")
        return soft

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return -(target * F.log_softmax(z, dim=1)).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return F.softmax(z, dim=1) * target.sum(dim=1, keepdim=True) - target

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        p = F.softmax(z, dim=1)
        weighted = p * direction
        return (weighted * direction).sum(1) - weighted.sum(1).square()

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return self.executed_prox(v, target, r, EAGER)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
        return softmax_prox(v, target, r, how).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return F.softmax(z, dim=1)


@dataclass(frozen=True)
class BinaryLogistic(Classification):
    """argmin_z sum_k log(1 + exp z_k) - y_k z_k + (r/2)||z - v||^2, each column its own; equations (5), (15).

    A column is softmax cross-entropy of the two logits (z/2, -z/2) with 2r in place of r, and is solved as such.
    Targets are 0 or 1 (or probabilities) of shape (N,) or (N, n_outputs), or class indices (N,) taken one against the
    rest.
    """

    name: ClassVar[str] = "binary_logistic"
    H = 0.25

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        return yes_no(y, n_outputs, dtype)

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, target, reduction="none").sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return torch.sigmoid(z) - target

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        return (p * (1 - p) * direction.square()).sum(1)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return self.executed_prox(v, target, r, EAGER)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
        half = v.double().reshape(-1, 1) / 2
        yes = target.double().reshape(-1, 1)
        r_each = 2 * (r.expand_as(v).reshape(-1, 1) if isinstance(r, Tensor) else r)
        z = softmax_prox(torch.cat([half, -half], 1), torch.cat([yes, 1 - yes], 1), r_each, how)
        return (z[:, 0] - z[:, 1]).reshape(v.shape).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return normalised(torch.sigmoid(z))


@dataclass(frozen=True)
class SquaredHinge(Classification):
    """argmin_z sum_k max(0, 1 - y_k z_k)^2 + (r/2)||z - v||^2: (r v + 2 y)/(2 + r) where y v < 1, else v.

    Equations (5) and (15). Targets are 0 or 1 of shape (N,) or (N, n_outputs), or class indices (N,) taken one against
    the rest; internally they are +1 and -1.
    """

    name: ClassVar[str] = "squared_hinge"
    H = 2.0

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = yes_no(y, n_outputs, dtype)
        if not ((target == 0) | (target == 1)).all():
            raise InputError("y must hold 0 and 1 only for squared_hinge; got values in between")
        return 2 * target - 1

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return (1 - target * z).clamp_min_(0).square_().sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return -2 * target * (1 - target * z).clamp_min_(0)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        # not written as v + move: for large v the two nearly cancel
        return torch.where(target * v < 1, (r * v + 2 * target) / (2 + r), v)

    def probabilities(self, z: Tensor) -> Tensor:
        """The minimiser of the expected squared hinge is z = 2 p - 1; this is its inverse, p = (z + 1)/2."""
        return normalised((z.clamp(-1, 1) + 1) / 2)


def normalised(yes: Tensor) -> Tensor:
    """Class probabilities from P(yes): one column (N, 1), or one column per class against the rest."""
    if yes.shape[1] == 1:
        return torch.cat([1 - yes, yes], dim=1)
    total = yes.sum(dim=1, keepdim=True)
    return torch.where(total > 0, yes / total.clamp_min(torch.finfo(yes.dtype).tiny), 1 / yes.shape[1])
