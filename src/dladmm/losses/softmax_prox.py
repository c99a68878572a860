"""The prox of softmax cross-entropy, exact, by Newton's method in one unknown per row."""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.compute.execution import EAGER, Execution, nothing, one_pass

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
