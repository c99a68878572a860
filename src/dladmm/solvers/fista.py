"""FISTA: the accelerated gradient method the paper uses for z_L (equations (5) and (15))."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.compute.communicator import ALONE, Communicator

_CHECK_EVERY = 8


class FistaResult(NamedTuple):
    """The best point; ``residual`` is ||gradient(x)|| / ||gradient(x0)||, ``converged``: it is <= tol."""

    x: Tensor
    iterations: int
    residual: float
    converged: bool


def fista(
    value_grad: Callable[[Tensor], tuple[Tensor, Tensor]],
    x0: Tensor,
    lipschitz: float,
    strong_convexity: float,
    tol: float = 1e-6,
    max_iter: int = 1000,
    comm: Communicator = ALONE,
) -> FistaResult:
    """argmin_x F(x) for a smooth, strongly convex F that is a sum over the rows of x.

    ``value_grad(x)`` gives F(x) and its gradient. The rows are separate problems, so each has its own
    momentum, at most (sqrt(L) - sqrt(mu)) / (sqrt(L) + sqrt(mu)), and starts afresh when it has run uphill.
    If F rises above its start, ``lipschitz`` was too small: it is doubled and the search goes on from the
    best point. The device is asked for a number every few steps only. Ranks with rows of their own go on together.
    """
    limit = _constant_momentum(lipschitz, strong_convexity)
    x = y = best = x0
    t = torch.ones_like(x0[..., :1])
    start_value = start_norm = best_norm = float("nan")
    for k in range(max_iter + 1):
        value, gradient = value_grad(y)
        if k % _CHECK_EVERY == 0 or k == max_iter:
            numbers = torch.stack([value.double(), gradient.square().sum(dtype=torch.float64)])
            now, squared = comm.total(numbers)[0].tolist()
            norm = math.sqrt(squared) if squared >= 0 else math.nan
            if k == 0:
                start_value, start_norm, best_norm = now, norm, norm
            elif norm < best_norm:
                best, best_norm = y, norm
            if best_norm <= tol * start_norm:
                return FistaResult(best, k, best_norm / max(start_norm, 1e-300), True)
            if not now <= start_value + 1e-6 * abs(start_value):
                lipschitz *= 2
                limit = _constant_momentum(lipschitz, strong_convexity)
                x = y = best
                t = torch.ones_like(t)
                continue
        x_next = y - gradient / lipschitz
        uphill = (gradient * (x_next - x)).sum(-1, keepdim=True) > 0
        t = torch.where(uphill, torch.ones_like(t), t)
        t_next = (1 + torch.sqrt(1 + 4 * t * t)) / 2
        momentum = ((t - 1) / t_next).clamp_max(limit)
        y = x_next + momentum * (x_next - x)
        x, t = x_next, t_next
    return FistaResult(best, max_iter, best_norm / start_norm, False)


def _constant_momentum(lipschitz: float, strong_convexity: float) -> float:
    root_l, root_mu = math.sqrt(lipschitz), math.sqrt(strong_convexity)
    return max(0.0, (root_l - root_mu) / (root_l + root_mu))


def truncated_fista(
    value: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    v: Tensor,
    rho: float,
    start: Tensor,
    *,
    step: float = 5.0,
    max_iter: int = 50,
    tol: float = 1e-3,
) -> Tensor:
    """``argmin_z R(z) + (rho/2)||z - v||^2`` as the authors' GCN script has it, which stops before the argmin.

    R is given by ``value`` and ``gradient``; its step is made with the length ``step``, however steep R is, that of the
    quadratic exactly. It ends when ``R + (rho/2)||(z - v) o (z - v)||_F``, a norm of squares, moves by less than
    ``tol``.
    """
    z = previous = start
    before, momentum = math.inf, 1.0
    for _ in range(max_iter):
        now = float(value(z)) + rho / 2 * float((z - v).double().square().norm())
        if abs(now - before) < tol:
            break
        before, last = now, momentum
        momentum = (1 + math.sqrt(1 + 4 * last * last)) / 2
        made = (rho * v + z / step - gradient(z)) / (rho + 1 / step)
        z = made + (last - 1) / momentum * (made - previous)
        previous = made
    return z
