"""Hand-written kernels for products of many rows where one factor has few columns, as a network's last layer has them.

They wait for memory alone, where torch's products take twice as long. They add in float32, whatever precision is
allowed, and are compiled for the number of the few (``gpu/narrow.cu``).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.compute.gpu.code import Kernel, Unit
from dladmm.compute.products import FEW

THREADS, WARP, EACH, TOGETHER = 256, 32, 4, 4
"""Of gpu/narrow.cu: of a block and of those in step, wide columns of a thread, rows that a warp takes at once."""

BLOCKS = 1 << 9
"""Parts of the rows, of which each processor takes some at a time."""


class Narrow(NamedTuple):
    """The kernels for one number of few columns."""

    unit: Unit
    rows_to_few: Kernel
    few_to_rows: Kernel
    few_over_rows: Kernel


@cache
def narrow(few: int) -> Narrow:
    unit = Unit("narrow.cu", COLUMNS=few)
    names = ("rows_to_few", "few_to_rows", "few_over_rows")
    return Narrow(unit, *(unit.kernel(name, THREADS) for name in names))


def few_rows_times(
    start: Tensor | None, rows: Tensor, matrix: Tensor, scale: float, out: Tensor | None
) -> Tensor | None:
    """``start + scale rows matrix``, :func:`dladmm.compute.products.by_hand`, of few rows or few columns."""
    given = [x for x in (start, rows, out) if x is not None]
    (m, k), n = rows.shape, matrix.shape[1]
    if (
        not _suits(*given, matrix)
        or not all(x.is_contiguous() for x in given)
        or (start is not None and start.shape not in ((n,), (m, n)))
    ):
        return None
    made = rows.new_empty(m, n) if out is None else out
    between = 0 if start is None or start.ndim == 1 else n
    shared = (rows, matrix, start, m, max(k, n), *matrix.stride(), between, start is not None, float(scale))
    if n <= FEW:
        narrow(n).rows_to_few((-(-m // (THREADS // WARP * TOGETHER)), 1), made, *shared)
    else:
        blocks, each = _shares(m)
        narrow(k).few_to_rows((_strips(n), blocks), made, *shared, each)
    return made


def few_over_rows(x: Tensor, y: Tensor) -> Tensor | None:
    """``x^T y``, :func:`dladmm.compute.products.sums_over_rows`, of few columns of x; in float64, as sums of parts."""
    if not (_suits(x, y) and x.is_contiguous() and y.is_contiguous()):
        return None
    few, width = x.shape[1], y.shape[1]
    blocks, each = _shares(len(x))
    sums = x.new_empty(blocks, few, width)
    narrow(few).few_over_rows((_strips(width), blocks), sums, x, y, len(x), width, each)
    return sums.sum(0, dtype=torch.float64)


def _strips(width: int) -> int:
    """Blocks of threads beside each other."""
    return -(-width // (THREADS * EACH))


def _shares(n_rows: int) -> tuple[int, int]:
    """Into how many parts rows are split, and the rows of each."""
    each = max(1, -(-n_rows // BLOCKS))
    return -(-n_rows // each), each


def _suits(*factors: Tensor) -> bool:
    return all(
        x.dtype == torch.float32 and not (x.requires_grad and torch.is_grad_enabled()) for x in factors
    )
