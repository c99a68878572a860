"""Hand-written kernels for the passes over rows that an iteration waits for: each reads and writes memory once.

They are optional: without an NVIDIA GPU, in float64, with row counts or for small tensors a pass runs as its function
says, and that function is the kernel's definition (``tests/compute/test_kernels.py`` compares them on a GPU). The code
is in ``gpu/passes.cu``. Of a sum a thread adds up eight entries in float32, all others are added
in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dladmm.compute.gpu.code import Unit
from dladmm.compute.narrow_kernels import few_headings, few_over_rows, few_rows_times
from dladmm.compute.number_kernels import (
    majorised_length,
    majorised_numbers,
    mean_shift,
    power_above,
    solved_length,
)
from dladmm.compute.product_kernels import row_sums, rows_times, sums_over_rows
from dladmm.compute.softmax_kernels import softmax_prox

THREADS, WARP = 256, 32
"""Of a block of threads, and of those that work in step."""

PASSES = Unit("sums.cu", "passes.cu")

_advance, _descend, _relu_entries, _inner, _inner_rows, _relu_rises, _squares, _difference, _drop, _pool = (
    PASSES.kernel(name, THREADS)
    for name in (
        "advance",
        "descend",
        "relu_entries",
        "inner",
        "inner_rows",
        "relu_rises",
        "squares",
        "difference",
        "drop",
        "pool",
    )
)

BLOCK = 8 * THREADS
"""Entries that a block of threads works on at a time."""

SUMMING_BLOCKS = 1 << 11
"""Blocks of threads that leave a sum each, at most: some for every processor at a time, and soon added up."""

WORTH_A_KERNEL = 1 << 18
"""Entries from which a kernel pays for its launch, which takes the host longer than torch's own."""


def advance(
    x: Tensor,
    move: Tensor | None,
    target: Tensor | None,
    residual: Tensor | None,
    *,
    multiple: Tensor | None,
    shift: Tensor | None,
) -> Tensor | None:
    """:func:`dladmm.compute.passes.advance`."""
    if not _plain(x, move, target, residual, shift, multiple):
        return None
    moves, leaves = move is not None and multiple is not None, residual is not None and target is not None
    inner, columns = 1, 1
    if shift is not None:
        columns = shift.numel()
        if shift.ndim > 1 and shift.shape[0] != columns:
            return None
        inner = math.prod(x.shape[2:]) if shift.ndim > 1 else 1
        if columns != x.shape[1] or (shift.ndim == 1 and x.ndim != 2):
            return None
    if not (moves or shift is not None or leaves):
        return None
    _advance(
        _grid(x),
        x, move, target, residual, multiple, shift, x.numel(), columns, inner,
        moves, shift is not None, leaves,
    )  # fmt: skip
    return _nothing(x)


def descend(
    x: Tensor,
    d: Tensor,
    other: Tensor | None,
    residual: Tensor | None,
    counts: Tensor | None,
    by_row: Tensor | None,
    *,
    step: Tensor | None,
    measured: bool,
) -> Tensor | None:
    """:func:`dladmm.compute.passes._descend`."""
    far = by_row if step is None else step
    if far is None or (counts is not None and measured) or not _plain(x, d, other, residual, far):
        return None
    compared, grid = other is not None, _grid(x)
    sums = _partial(x, grid)
    _descend(
        grid,
        x, d, other, residual, far, sums,
        x.numel(), x.shape[1:].numel(), step is None, compared, residual is not None,
    )  # fmt: skip
    return sums.sum() if measured and compared else _nothing(x)


def solve_entries(
    z: Tensor,
    f: Tensor | None,
    m: Tensor,
    a: Tensor,
    counts: Tensor | None,
    residual: Tensor | None,
    offset: Tensor | None,
    *,
    activation: Any,
    weight: float,
) -> Tensor | None:
    """:func:`dladmm.compute.passes.solve_entries`, of a relu."""
    if activation.name != "relu" or counts is not None or not _plain(z, f, m, a, residual, offset):
        return None
    grid = _grid(z)
    sums = _partial(z, grid)
    _relu_entries(
        grid,
        z, f, m, a, residual, offset, sums,
        z.numel(), float(weight), float(weight / (1 + (1 + weight) ** 0.5)),
        f is not None, residual is not None, f is not None and offset is not None,
    )  # fmt: skip
    return sums.sum()


def inner_and_square(
    prediction: Tensor, target: Tensor, gradient: Tensor, counts: Tensor | None
) -> Tensor | None:
    """:func:`dladmm.compute.passes.inner_and_square`."""
    if counts is not None or not _plain(prediction, target, gradient):
        return None
    grid = _summing_grid(prediction)
    sums = prediction.new_empty(2, grid[0], dtype=torch.float64)
    _inner(grid, prediction, target, gradient, sums, prediction.numel())
    return sums.sum(1)


def total_square(x: Tensor, counts: Tensor | None) -> Tensor | None:
    """:func:`dladmm.compute.passes._total_square`."""
    if counts is not None or not _plain(x):
        return None
    grid = _summing_grid(x)
    sums = _partial(x, grid)
    _squares(grid, x, sums, x.numel())
    return sums.sum()


def difference(out: Tensor, first: Tensor, second: Tensor) -> Tensor | None:
    """:func:`dladmm.compute.passes.difference`."""
    if not _plain(out, first, second):
        return None
    _difference(_grid(out), out, first, second, out.numel())
    return _nothing(out)


def inner_rows(x: Tensor, y: Tensor, products: Tensor, squares: Tensor) -> Tensor | None:
    """:func:`dladmm.compute.passes._inner_products`."""
    if not _plain(x, y) or not products.is_contiguous() or not squares.is_contiguous():
        return None
    rows_together = THREADS // WARP
    _inner_rows((-(-len(x) // rows_together), 1), x, y, products, squares, len(x), x.shape[1:].numel())
    return _nothing(x)


def drop(
    out: Tensor, x: Tensor, rows: Tensor, *, columns: Tensor, limit: Tensor, factor: Tensor
) -> Tensor | None:
    """:func:`dladmm.network.input_dropout._drop`."""
    if not _plain(out, x) or not rows.is_contiguous() or not columns.is_contiguous():
        return None
    _drop(_grid(x), out, x, rows, columns, limit, factor, x.numel(), len(columns))
    return _nothing(x)


def solve_rows(
    v: Tensor,
    f: Tensor,
    m: Tensor,
    a: Tensor,
    counts: Tensor | None,
    *,
    solve: Callable[..., Any],
    **constants: Any,
) -> Tensor | None:
    """:func:`dladmm.compute.passes.solve_rows` of a max pooling over windows of 2 x 2 without a rest."""
    known = getattr(solve, "pools", False) and constants.get("window") == (2, 2) and counts is None
    if not known or not _plain(v, m, f, a) or v.shape[2] % 2 or v.shape[3] % 2:
        return None
    blocks = -(-f.numel() // THREADS)
    sums = f.new_empty(blocks, dtype=torch.float64)
    across, nu, c = v.shape[3] // 2, float(constants["nu"]), float(constants["c"])
    _pool((blocks, 1), v, f, m, a, sums, f.numel(), across, nu, c)
    return sums.sum()


def rises(
    H: Tensor, change: Tensor, prediction: Tensor, residual: Tensor, *, steps: Tensor, activation: Any
) -> Tensor | None:
    """:func:`dladmm.solvers.step_along._rises`, of a relu."""
    rows = (H, change, prediction, residual)  # of any size: it takes the place of hundreds of launches
    if activation.name != "relu" or not _plain(*rows, small=True) or not steps.is_contiguous():
        return None
    blocks, _ = grid = _grid(H)
    sums = H.new_empty(len(steps), blocks, dtype=torch.float64)
    _relu_rises(grid, H, change, prediction, residual, steps, sums, H.numel(), len(steps))
    return sums.sum(1)


def _plain(x: Tensor, *others: Tensor | None, small: bool = False) -> bool:
    """Whether x is large enough (or may be small), and all are float32, contiguous and on its device."""
    given = [tensor for tensor in (x, *others) if tensor is not None]
    return (small or x.numel() >= WORTH_A_KERNEL) and all(
        each.dtype == torch.float32 and each.is_contiguous() and each.device == x.device for each in given
    )


def _grid(x: Tensor) -> tuple[int, int]:
    return -(-x.numel() // BLOCK), 1


def _summing_grid(x: Tensor) -> tuple[int, int]:
    return min(SUMMING_BLOCKS, _grid(x)[0]), 1


def _partial(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Where every block of threads leaves its sum."""
    return x.new_empty(grid[0], dtype=torch.float64)


def _nothing(x: Tensor) -> Tensor:
    """The sum of a pass that sums nothing: one zero for all, which nobody writes to."""
    if x.device not in _ZEROS:
        zero = x.new_zeros((), dtype=torch.float64)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():  # it is zero when that is replayed
            return zero
        _ZEROS[x.device] = zero
    return _ZEROS[x.device]


_ZEROS: dict[torch.device, Tensor] = {}


KERNELS: dict[str, Callable[..., Any | None]] = {
    "advance": advance,
    "descend": descend,
    "solve_entries": solve_entries,
    "inner_and_square": inner_and_square,
    "inner_rows": inner_rows,
    "total_square": total_square,
    "difference": difference,
    "drop": drop,
    "solve_rows": solve_rows,
    "rises": rises,
    "softmax_prox": softmax_prox,
    "row_sums": row_sums,
    "rows_times": rows_times,
    "sums_over_rows": sums_over_rows,
    "few_rows_times": few_rows_times,
    "few_over_rows": few_over_rows,
    "few_headings": few_headings,
    "majorised_numbers": majorised_numbers,
    "majorised_length": majorised_length,
    "solved_length": solved_length,
    "power_above": power_above,
    "mean_shift": mean_shift,
}
