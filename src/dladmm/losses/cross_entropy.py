"""Softmax cross-entropy, and its prox: exact, by Newton's method in one unknown per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.base.spec import given_only, number
from dladmm.compute.execution import EAGER, Execution, nothing, one_pass
from dladmm.compute.hand_written import HandWritten
from dladmm.losses.base import NEVER, Classification, as_columns, holds_labels, one_hot
from dladmm.losses.class_weights import as_row, positive

_MAX_STEPS = 24
_INNER_STEPS = 4
_NEAR = ((0.05, 1), (0.5, 2))
"""Where all rows of s moved by no more than this, so many inner steps suffice from where the tangent leads."""
_FLOAT32_STEPS, _FLOAT64_STEPS = ((0.5, 5), (0.01, 8), (0.0, 10)), {torch.float64: 3}
"""Steps without a convergence check: first in float32 (pairs of a bound on r and the steps for r above it), then in
float64 (two suffice for a float32 result). Enough for r from 1e-8 to 1e4, v up to 1e3, 2 to 100 classes
(tests/losses)."""

_prox_by_hand = HandWritten("softmax_prox")


@dataclass(frozen=True)
class CrossEntropy(Classification):
    """argmin_z logsumexp(z) - y^T z + (r/2)||z - v||^2, softmax cross-entropy; equations (5) and (15).

    Solved exactly by Newton's method in one unknown per row, see ``softmax_prox``. Targets are class indices (N,)
    or soft labels (N, n_classes) whose rows sum to 1.

    Parameters
    ----------
    class_weight : sequence of float, optional
        What every class counts, as ``weight`` of ``nn.CrossEntropyLoss``; positive.
    label_smoothing : float, default 0.0
        The share of a target that is spread evenly over all classes.
    """

    name: ClassVar[str] = "cross_entropy"
    takes_soft_labels: ClassVar[bool] = True
    linear_in_target: ClassVar[bool] = True
    class_weight: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    H = 0.5

    def __post_init__(self) -> None:
        share = number("label_smoothing", self.label_smoothing, low=0.0)
        if share > 1:
            raise InputError(f"label_smoothing must be from 0 to 1; got {share:g}")
        object.__setattr__(self, "label_smoothing", share)
        if self.class_weight is not None:
            weights = positive("class_weight", self.class_weight)
            object.__setattr__(self, "class_weight", weights)
            object.__setattr__(self, "H", 0.5 * max(weights))

    def to_spec(self) -> dict[str, Any]:
        return given_only(super().to_spec(), class_weight=None, label_smoothing=0.0)

    def _counted(self, target: Tensor) -> Tensor:
        """Targets as they count: smoothed, and every class by its weight."""
        if self.label_smoothing:
            target = target * (1 - self.label_smoothing) + self.label_smoothing / target.shape[1]
        return target if self.class_weight is None else target * as_row(self.class_weight, target)

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if n_outputs < 2:
            raise InputError(f"cross_entropy needs n_outputs >= 2; got {n_outputs} (binary_logistic takes 1)")
        if self.class_weight is not None and len(self.class_weight) != n_outputs:
            raise InputError(
                f"class_weight must have one entry per output, {n_outputs}; got {len(self.class_weight)}"
            )
        if holds_labels(y):
            return one_hot(y, n_outputs, dtype)
        soft = as_columns(y, n_outputs).to(dtype)
        if not ((soft >= 0).all() and ((soft.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise InputError("y as soft labels must be >= 0 with rows that sum to 1")
        return soft

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return -(self._counted(target) * F.log_softmax(z, dim=1)).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        target = self._counted(target)
        return F.softmax(z, dim=1) * target.sum(dim=1, keepdim=True) - target

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        p = F.softmax(z, dim=1)
        weighted = p * direction
        found = (weighted * direction).sum(1) - weighted.sum(1).square()
        return found if self.class_weight is None else found * self._counted(target).sum(1)

    def best_constant(self, mean: Tensor) -> Tensor:
        """The logarithm of the shares of the classes."""
        return self._counted(mean[None])[0].clamp_min(NEVER).log()

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return self.executed_prox(v, target, r, EAGER)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
        return softmax_prox(v, self._counted(target), r, how).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return F.softmax(z, dim=1)


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
    Tensor of shape (N, n_classes), float64; as v is where a kernel did it all
    """
    smallest_r = 0.0 if isinstance(r, Tensor) else r
    rough_steps = next(steps for bound, steps in _FLOAT32_STEPS if smallest_r >= bound)
    steps = _FLOAT64_STEPS.get(v.dtype, 2)
    if how.kernels and not how.compiles(v) and how.avoids_waiting(v):
        done: Tensor | None = _prox_by_hand(v, y, r, rough_steps, steps)
        if done is not None:
            return done
    v, y = v.double(), y.double()
    r = r.double() if isinstance(r, Tensor) else v.new_full((), r)  # no copy from the host
    labelled = y > 1e-30
    k = torch.where(labelled, y / r, 1.0)
    log_k = k.log()
    offset = torch.where(labelled, y.log(), 1 + r.log()) - v
    total = y.sum(dim=1, keepdim=True) / r
    s = torch.logsumexp(v, dim=1, keepdim=True)
    if not how.avoids_waiting(v):
        return v - _newton_until_settled(how, s, offset, k, log_k, labelled, total)
    # On a GPU a step costs less than a synchronisation to check convergence, and one in float32 by far the least
    rough = s.float()
    _newton(how, rough_steps, rough, offset.float(), k.float(), log_k.float(), labelled, total.float())
    s = torch.where(rough.isfinite(), rough.double(), s)
    return v - _newton(how, steps, s, offset, k, log_k, labelled, total)


def _newton(how: Execution, max_steps: int, s: Tensor, offset: Tensor, *constants: Tensor) -> Tensor:
    """Update s in place by ``max_steps`` Newton steps; returns the excess at the start of the last one."""
    excess, step = torch.empty_like(offset), torch.empty_like(s)
    for _ in range(max_steps):
        _newton_step(how, excess, s, step, offset, *constants, None, None)
    return excess


def _newton_until_settled(how: Execution, s: Tensor, offset: Tensor, *constants: Tensor) -> Tensor:
    """The same until the steps are small enough, at the price of a synchronisation for each.

    ``t(s)`` is concave: from a root t its tangent leads to a bound from above on the next one, so that near the
    solution one inner step does what takes four from the general bounds.
    """
    excess, t, rate = (torch.empty_like(offset) for _ in range(3))
    step = torch.empty_like(s)
    inner, settled = 0, False
    for _ in range(_MAX_STEPS):
        _newton_step(how, excess, s, step, offset, *constants, t, rate, inner=inner)
        if settled:
            break
        far = step.abs()
        settled = bool((far <= 1e-8 + 1e-15 * s.abs()).all())  # what such a step leaves is below 1e-16
        largest = float(far.max()) if far.numel() else 0.0
        inner = next((steps for bound, steps in _NEAR if largest <= bound), 0)
    return excess


@one_pass("excess", "s", "step", "t", "rate")
def _newton_step(
    excess: Tensor,
    s: Tensor,
    step: Tensor,
    offset: Tensor,
    k: Tensor,
    log_k: Tensor,
    labelled: Tensor,
    total: Tensor,
    t: Tensor | None,
    rate: Tensor | None,
    *,
    inner: int = 0,
) -> Tensor:
    """``excess = w_i - y_i/r`` at s, then one step of s, in place.

    Where buffers are given they keep t and ``1 / (1 + w)``, its slope in -s. With ``inner`` steps t is found from those
    of the step before, without from general bounds.
    """
    d = offset + s
    if inner and t is not None and rate is not None:
        root = _towards_root(t.addcmul_(rate, step, value=-1), d, k, inner)
    else:
        root = _log_omega(d, k, log_k)
        if t is not None:
            t.copy_(root)
    torch.mul(k, torch.expm1(root), out=excess)
    w = excess + k
    excess.copy_(torch.where(labelled, excess, w))
    gap = excess.sum(dim=1, keepdim=True)  # sum_i w_i - 1/r
    slopes = (1 + w).reciprocal_() if rate is None else torch.add(w, 1, out=rate).reciprocal_()
    slope = (1 + 1 / w.sum(dim=1, keepdim=True)) * w.mul_(slopes).sum(dim=1, keepdim=True)
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
    return _towards_root(t, d, k, _INNER_STEPS)


def _towards_root(t: Tensor, d: Tensor, k: Tensor, steps: int) -> Tensor:
    """Newton steps from a t above the root, in place."""
    for _ in range(steps):
        excess = torch.expm1(t).mul_(k)
        residual = (excess + t).add_(d)
        t.sub_(residual.div_(excess.add_(k).add_(1)))
    return t
