"""W with a penalty that has no quadratic form, solved on a Gram matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dladmm.regularizers import Regularizer


def proximal_on_gram(
    W: Tensor, d: Tensor, gram: Tensor, c: float, shift: Tensor, penalty: Regularizer, max_iter: int = 300
) -> tuple[Tensor, Tensor]:
    """``argmin_X (c/2)||A (X - W)^T + E||^2 + Omega(X) + (delta/2)||X - W||^2`` by FISTA on the Gram matrix.

    Returns the move and delta. An iteration costs ``n_out n_in^2``, whatever the number of samples. The best
    iterate counts, and W itself is the first, so that the subproblem never rises.
    """
    scale = gram.diagonal().mean()
    floor = torch.where(scale > 0, scale, torch.ones_like(scale)) * torch.finfo(torch.float32).eps
    delta = torch.maximum(shift, floor)
    lipschitz = torch.linalg.eigvalsh(gram)[-1] + delta
    momentum = 1.0
    move = extrapolated = best = torch.zeros_like(W)
    best_value = penalty.value(W) / c
    for _ in range(max_iter):
        gradient = d + extrapolated @ gram + delta * extrapolated
        point = penalty.prox(W + extrapolated - gradient / lipschitz, 1.0 / (c * lipschitz))
        previous, move = move, point - W
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        value = (d * move).sum() + ((move @ gram + delta * move) * move).sum() / 2 + penalty.value(point) / c
        if bool(value < best_value):
            best, best_value = move, value
            extrapolated = move + (momentum - 1) / following * (move - previous)
            momentum = following
        else:
            momentum, extrapolated = 1.0, best
        if float((move - previous).norm()) <= 1e-12 * (1 + float(move.norm())):
            break
    return best, c * delta
