"""Which products of many rows, with a small matrix or over the rows, have a hand-written kernel.

They are most of an iteration. On a Hopper GPU long ones take a quarter of the time by kernels that are as exact as
torch's products (:mod:`dladmm.compute.product_kernels`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.compute.hand_written import HandWritten

_by_hand, _sums_by_hand = HandWritten("rows_times"), HandWritten("sums_over_rows")

LONG, NARROW = 1 << 32, 128
"""Multiplications of a product, and columns of both factors, from which the kernel is ahead."""


def worth_a_kernel(m: int, n: int, k: int) -> bool:
    """Whether an (m, k) matrix times a (k, n) matrix is long enough."""
    return m * n * k >= LONG and min(n, k) >= NARROW


def by_hand(
    start: Tensor | None, rows: Tensor, matrix: Tensor, scale: float, out: Tensor | None
) -> Tensor | None:
    """``start + scale rows matrix`` as the kernel makes it; None where there is none, or none for such factors.

    ``start`` is a matrix, one row that is the same for all, or None for nothing; ``out`` may be start.
    """
    if rows.ndim != 2 or matrix.ndim != 2 or not worth_a_kernel(len(rows), *matrix.T.shape):
        return None
    done = _by_hand(start, rows, matrix, scale, out)
    if done is not None and out is not None:
        torch.autograd.graph.increment_version(out)  # the workspace asks for it
    return done


def sums_over_rows(x: Tensor, y: Tensor) -> Tensor | None:
    """``x^T y`` over many rows, in float64, as the kernel makes it; None where there is none, or none for these."""
    if x.ndim != 2 or y.ndim != 2 or min(x.shape[1], y.shape[1]) < NARROW:
        return None
    long = x.shape[0] * x.shape[1] * y.shape[1] >= LONG
    return _sums_by_hand(x, y) if long else None
