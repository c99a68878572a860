"""Which products of many rows, with a small matrix or over the rows, have a hand-written kernel.

They are most of an iteration. On a Hopper GPU long ones take a third of the time by kernels that are as exact as
torch's products (:mod:`dladmm.compute.product_kernels`), and on any those with few columns take three quarters
(:mod:`dladmm.compute.narrow_kernels`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.compute.hand_written import HandWritten

_by_hand, _sums_by_hand = HandWritten("rows_times"), HandWritten("sums_over_rows")
_few_by_hand, _few_sums_by_hand = HandWritten("few_rows_times"), HandWritten("few_over_rows")
_few_headings = HandWritten("few_headings")

LONG, NARROW = 1 << 32, 128
"""Multiplications of a product, and columns of both factors, from which the kernel is ahead."""

PARTS = 4
"""Of the rows, in a long sum of products in TF32."""

FEW, WIDE, WORTH_A_NARROW_KERNEL = 16, 64, 1 << 23
"""Columns of one factor at most, of the other at least, and entries of that, from which the kernels for few are."""


def worth_a_kernel(m: int, n: int, k: int) -> bool:
    """Whether an (m, k) matrix times a (k, n) matrix is long enough."""
    return m * n * k >= LONG and min(n, k) >= NARROW


def worth_a_narrow_kernel(m: int, n: int, k: int) -> bool:
    """Whether of m rows some have few columns and others many."""
    return min(n, k) <= FEW and max(n, k) >= WIDE and m * max(n, k) >= WORTH_A_NARROW_KERNEL


def by_hand(
    start: Tensor | None, rows: Tensor, matrix: Tensor, scale: float, out: Tensor | None
) -> Tensor | None:
    """``start + scale rows matrix`` as the kernel makes it; None where there is none, or none for such factors.

    ``start`` is a matrix, one row that is the same for all, or None for nothing; ``out`` may be start.
    """
    if rows.ndim != 2 or matrix.ndim != 2:
        return None
    if worth_a_narrow_kernel(len(rows), *matrix.T.shape):
        done = _few_by_hand(start, rows, matrix, scale, out)
    elif worth_a_kernel(len(rows), *matrix.T.shape):
        done = _by_hand(start, rows, matrix, scale, out)
    else:
        return None
    if done is not None and out is not None:
        torch.autograd.graph.increment_version(out)  # the workspace asks for it
    return done


def headings(o: Tensor, E: Tensor, W: Tensor, scale: float, moved: Tensor) -> Tensor | None:
    """``d = o + scale E W`` over o and ``d W^T`` over ``moved``; ``||d||^2`` and ``||d W^T||^2``, float64.

    As the kernel for few columns of E makes them; None where there is none, or none for these.
    """
    if E.ndim != 2 or E.shape[1] >= W.shape[1] or not worth_a_narrow_kernel(len(E), *W.shape):
        return None
    squares: Tensor | None = _few_headings(o, E, W, scale, moved)
    if squares is not None:
        torch.autograd.graph.increment_version([o, moved])
    return squares


def sums_in_parts(x: Tensor, y: Tensor) -> Tensor:
    """``x^T y`` over many rows as the sum of the products of some parts of them.

    Torch's TF32 product has as few blocks as the result has tiles: like this it takes a sixteenth less time.
    """
    each = len(x) // PARTS
    whole = each * PARTS
    parts = [rows[:whole].reshape(PARTS, each, rows.shape[1]) for rows in (x, y)]
    total = torch.bmm(parts[0].mT, parts[1]).sum(0)
    return total if whole == len(x) else total.addmm_(x[whole:].T, y[whole:])


def sums_over_rows(x: Tensor, y: Tensor) -> Tensor | None:
    """``x^T y`` over many rows, in float64, as the kernel makes it; None where there is none, or none for these.

    Where torch may round to TF32 it is torch's own, in float32.
    """
    if x.ndim != 2 or y.ndim != 2:
        return None
    if x.shape[1] < y.shape[1] and worth_a_narrow_kernel(len(x), x.shape[1], y.shape[1]):
        return _few_sums_by_hand(x, y)
    if not worth_a_kernel(len(x), x.shape[1], y.shape[1]):
        return None
    if not (torch.backends.cuda.matmul.allow_tf32 and x.dtype == y.dtype == torch.float32):
        return _sums_by_hand(x, y)
    return sums_in_parts(x, y) if x.is_contiguous() and y.is_contiguous() else None
