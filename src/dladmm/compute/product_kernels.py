"""Hand-written Triton kernels for products, as :mod:`dladmm.compute.kernels` has them for passes.

``rows_times`` makes a float32 product of three products of its factors' TF32 parts on tensor cores. A number is the sum
of two such parts to 22 bits; what is left out is the product of the two smaller ones, and after every 32 columns what
was added up goes to an ordinary float32 sum. So its errors are those of torch's own products
(``benchmarks/split_products.py``) at half the time. It is for Hopper GPUs, where it was measured.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dladmm.compute import triton_code

WORTH_ROW_SUMS, WIDEST, ENTRIES = 1 << 21, 256, 512
"""Of sparse products: multiplications from which a kernel pays for being made, columns that a program adds up, and
entries that it works on at once."""

HOPPER = 9
"""The GPUs that ``rows_times`` was measured on, by the first number of their compute capability."""

TILE = {"M": 64, "N": 128, "K": 32, "num_warps": 4, "num_stages": 3}
"""Rows and columns that a program makes, and how many columns of the rows it has multiplied before it adds up."""


def row_sums(columns: Tensor, values: Tensor | None, starts: Tensor, dense: Tensor) -> Tensor | None:
    """:func:`dladmm.compute.sparse._row_sums`, in float32 or float64, where no gradient is asked for."""
    n, width = len(starts) - 1, dense.shape[1]
    if (
        len(columns) * width < WORTH_ROW_SUMS
        or dense.dtype not in (torch.float32, torch.float64)
        or not dense.is_contiguous()
        or (values is not None and values.dtype != dense.dtype)
        or (dense.requires_grad and torch.is_grad_enabled())
    ):
        return None
    sums = dense.new_empty(n, width)
    side = min(WIDEST, 1 << (width - 1).bit_length())
    triton_code.row_sums[(n, -(-width // side))](
        columns, dense if values is None else values, starts, dense, sums, width,
        WEIGHTED=values is not None, ENTRIES=min(32, max(4, ENTRIES // side)), COLUMNS=side,
        num_warps=2 if side == WIDEST else 1,
    )  # fmt: skip
    return sums


def rows_times(
    start: Tensor | None, rows: Tensor, matrix: Tensor, scale: float, out: Tensor | None
) -> Tensor | None:
    """``start + scale rows matrix``, :func:`dladmm.compute.products.plus_times`."""
    if not _suits(start, rows, matrix, out):
        return None
    (m, k), n = rows.shape, matrix.shape[1]
    weights = matrix.T.contiguous()
    high = tf32_part(weights)
    made = rows.new_empty(m, n) if out is None else out
    between = 0 if start is None or start.ndim == 1 else n
    programs = -(-m // TILE["M"]) * -(-n // TILE["N"])
    triton_code.rows_times[(programs,)](
        rows, high, weights - high, made if start is None else start, made,
        m, n, k // 4, between, 0 if start is None else n, float(scale), **TILE,
    )  # fmt: skip
    return made


def tf32_part(x: Tensor) -> Tensor:
    """The nearest number of 11 bits, entry by entry."""
    return ((x.view(torch.int32) + 4096) & -8192).view(torch.float32)


def _suits(start: Tensor | None, rows: Tensor, matrix: Tensor, out: Tensor | None) -> bool:
    """Whether the kernel is for such factors and this GPU, and torch is not to round them to TF32 anyway."""
    given = [x for x in (start, rows, out) if x is not None]
    k, n = matrix.shape
    return (
        k % 4 == 0
        and all(x.dtype == torch.float32 for x in (*given, matrix))
        and all(x.is_contiguous() for x in given)
        and (start is None or start.shape in ((n,), (len(rows), n)))
        and not any(x.requires_grad and torch.is_grad_enabled() for x in (*given, matrix))
        and not torch.backends.cuda.matmul.allow_tf32
        and _capability(rows.device) == HOPPER
    )


@cache
def _capability(device: torch.device) -> int:
    """Of an NVIDIA GPU: other makers number theirs alike."""
    return torch.cuda.get_device_capability(device)[0] if torch.version.hip is None else 0
