"""Hand-written kernels for products of many rows where one factor has few columns, as a network's last layer has them.

They take three quarters of the time of torch's. They add in float32, whatever precision is allowed, and are compiled
for the number of the few (``gpu/narrow.cu``).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.compute.gpu.code import Kernel, Unit
from dladmm.compute.products import FEW

THREADS, WARP, TOGETHER, HEADINGS, LANES, SUMS = 256, 32, 2, 128, 16, 32
"""Of gpu/narrow.cu, which says what they are."""

SUMMED, WRITTEN = 3 * 132, 8 * 132
"""Parts of the rows at most where they are summed, which takes the processors of an H200 once, or written."""


class Narrow(NamedTuple):
    """The kernels for one number of few columns."""

    unit: Unit
    rows_to_few: Kernel
    few_to_rows: Kernel
    few_over_rows: Kernel
    add_parts: Kernel
    few_headings: Kernel


@cache
def narrow(few: int) -> Narrow:
    unit = Unit("sums.cu", "narrow.cu", COLUMNS=few)
    kernels = {name: unit.kernel(name, THREADS) for name in Narrow._fields[1:-1]}
    return Narrow(unit, **kernels, few_headings=unit.kernel("few_headings", HEADINGS))


def few_rows_times(
    start: Tensor | None, rows: Tensor, matrix: Tensor, scale: float, out: Tensor | None
) -> Tensor | None:
    """``start + scale rows matrix``, :func:`dladmm.compute.products.by_hand`, of few rows or few columns."""
    given = [x for x in (start, rows, out) if x is not None]
    (m, k), n = rows.shape, matrix.shape[1]
    if not _suits(*given, matrix) or (start is not None and start.shape not in ((n,), (m, n))):
        return None
    made, to_few = rows.new_empty(m, n) if out is None else out, n <= FEW
    w = (matrix.T if to_few else matrix).contiguous()
    if not (_in_fours(rows, w) if to_few else _in_fours(made, w, *given[: start is not None])):
        return None
    between = 0 if start is None or start.ndim == 1 else n
    if to_few:
        grid = -(-m // (THREADS // WARP * TOGETHER)), 1
        narrow(n).rows_to_few(grid, made, rows, w, start, m, k // 4, between, start is not None, float(scale))
    else:
        blocks, each = _shares(m, WRITTEN)
        narrow(k).few_to_rows(
            (_strips(n), blocks),
            made, rows, w, start, m, n // 4, between // 4, start is not None, float(scale), each,
        )  # fmt: skip
    return made


def few_over_rows(x: Tensor, y: Tensor) -> Tensor | None:
    """``x^T y``, :func:`dladmm.compute.products.sums_over_rows`, of few columns of x; in float64, as sums of parts."""
    if not (_suits(x, y) and y.is_contiguous() and _in_fours(y)):
        return None
    few, width = x.shape[1], y.shape[1]
    blocks, each = _shares(len(x), SUMMED)
    parts, sums = x.new_empty(blocks, few, width), x.new_empty(few, width, dtype=torch.float64)
    own = narrow(few)
    own.few_over_rows((_strips(width), blocks), parts, x, y, len(x), width // 4, each)
    own.add_parts((-(-few * width // SUMS), 1), parts, sums, few * width, blocks)
    return sums


def few_headings(o: Tensor, e: Tensor, w: Tensor, scale: float, moved: Tensor) -> Tensor | None:
    """:func:`dladmm.compute.products.headings`."""
    if not _suits(o, e, moved, w) or not w.is_contiguous() or not _in_fours(o, w):
        return None
    grid = -(-len(o) // (HEADINGS // LANES)), 1
    squares = o.new_empty(2, grid[0], dtype=torch.float64)
    narrow(len(w)).few_headings(grid, o, e, w, moved, squares, len(o), o.shape[1] // 4, float(scale))
    return squares.sum(1)


def _strips(width: int) -> int:
    """Blocks of threads beside each other."""
    return -(-width // (4 * THREADS))


def _shares(n_rows: int, most: int) -> tuple[int, int]:
    """Into how many parts rows are split, and the rows of each."""
    each = max(1, -(-n_rows // most))
    return -(-n_rows // each), each


def _suits(*factors: Tensor) -> bool:
    """Whether all but the last, of which a copy can be made, are as the kernels read them."""
    return all(x.is_contiguous() for x in factors[:-1]) and all(
        x.dtype == torch.float32 and not (x.requires_grad and torch.is_grad_enabled()) for x in factors
    )


def _in_fours(*wide: Tensor) -> bool:
    """Whether rows can be read four numbers at a time."""
    return all(x.shape[-1] % 4 == 0 and x.data_ptr() % 16 == 0 for x in wide)
