"""Hand-written kernels for products, as :mod:`dladmm.compute.kernels` has them for passes.

``rows_times`` and ``sums_over_rows`` make a float32 product of three products of its factors' float16 parts on tensor
cores. Scaled block by block, a number is the sum of two such parts to 22 bits; what is left out is the product of the
two smaller ones, and what 32 terms add up to goes to an ordinary float32 sum. So their errors are those of torch's own
products (``benchmarks/split_products.py``) in a third of the time. A first kernel makes the parts (``gpu/split.cu``), a
second one the product (``gpu/product.cu``). They are for Hopper GPUs, whose instructions they are written in.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.compute.gpu.code import Unit

SPARSE = Unit("sparse.cu")
SPLIT, PRODUCT = (Unit("halves.cu", "hopper.cu", name) for name in ("split.cu", "product.cu"))

WORTH_ROW_SUMS = 1 << 21
"""Of sparse products: multiplications from which a kernel pays for being made."""

HOPPER = 9
"""The GPUs that products are made on, by the first number of their compute capability."""

TALL, DEEP = 128, 32
"""Rows of a piece of a factor, and how many numbers of each are scaled together: gpu/halves.cu."""

PIECE = 16_384
"""Bytes of a piece."""

STAGES = 4
"""Steps of a product that are in shared memory at once."""

SPLITS, STARTING = 32, 8
"""At most so many parts of the rows are added up side by side; steps that a block of threads takes to begin and end."""

_row_sums = {
    (real, index, several): SPARSE.kernel(f"row_sums_{_real}_{_index}_{several}", 128)
    for _real, real, most in (("float32", torch.float32, 4), ("float64", torch.float64, 2))
    for _index, index in (("int32", torch.int32), ("int64", torch.int64))
    for several in (most, 1)
}
_split_rows, _split_columns = SPLIT.kernel("split_rows", TALL), SPLIT.kernel("split_columns", TALL)
_product = PRODUCT.kernel("product", 256, shared=STAGES * 3 * (PIECE + 4 * TALL))
_add_products = PRODUCT.kernel("add_products", 256)


class Parts(NamedTuple):
    """A factor of a product as float16 numbers, and their scales: tiles of rows, blocks of numbers, rows of a tile."""

    pieces: Tensor
    scales: Tensor


def row_sums(columns: Tensor, values: Tensor | None, starts: Tensor, dense: Tensor) -> Tensor | None:
    """:func:`dladmm.compute.sparse._row_sums`, in float32 or float64, where no gradient is asked for."""
    n, width = len(starts) - 1, dense.shape[1]
    if (
        len(columns) * width < WORTH_ROW_SUMS
        or dense.dtype not in (torch.float32, torch.float64)
        or not dense.is_contiguous()
        or columns.dtype not in (torch.int32, torch.int64)
        or starts.dtype != columns.dtype
        or (values is not None and values.dtype != dense.dtype)
        or (dense.requires_grad and torch.is_grad_enabled())
    ):
        return None
    sums = dense.new_empty(n, width)
    most = 16 // dense.element_size()
    several = most if width % most == 0 and dense.data_ptr() % 16 == 0 else 1
    lanes = min(32, 1 << (-(-width // several) - 1).bit_length())
    _row_sums[dense.dtype, columns.dtype, several](
        (-(-n // 4), -(-width // (lanes * several))),
        columns, values, starts, dense, sums, n, width, values is not None, lanes,
    )  # fmt: skip
    return sums


def rows_times(
    start: Tensor | None, rows: Tensor, matrix: Tensor, scale: float, out: Tensor | None
) -> Tensor | None:
    """``start + scale rows matrix``, :func:`dladmm.compute.products.plus_times`."""
    given = [x for x in (start, rows, out) if x is not None]
    (m, _), n = rows.shape, matrix.shape[1]
    if (
        not _suits(*given, matrix)
        or not all(x.is_contiguous() for x in given)
        or (start is not None and start.shape not in ((n,), (m, n)))
    ):
        return None
    made = rows.new_empty(m, n) if out is None else out
    first, second = _parts(rows), _parts(matrix.T)
    tiles = -(-m // (2 * TALL)) * -(-n // TALL)
    blocks = second.scales.shape[1]
    between = 0 if start is None or start.ndim == 1 else n
    _product(
        (tiles, 1),
        first.pieces, first.scales, second.pieces, second.scales, start, made,
        m, n, blocks, blocks, between, start is not None, False, float(scale),
    )  # fmt: skip
    return made


def sums_over_rows(x: Tensor, y: Tensor) -> Tensor | None:
    """``x^T y``, :func:`dladmm.compute.products.sums_over_rows`; in float64, as its last sum is made."""
    if not (_suits(x, y) and x.is_contiguous() and y.is_contiguous()):
        return None
    p, q = x.shape[1], y.shape[1]
    symmetric = x.data_ptr() == y.data_ptr() and p == q
    first = _parts(x.T)
    second = first if symmetric else _parts(y.T)
    blocks, across, down = first.scales.shape[1], -(-q // TALL), -(-p // (2 * TALL))
    tiles = sum(across - 2 * i for i in range(down)) if symmetric else across * down
    splits, each = _shares(tiles, blocks, _processors(x.device))
    found = x.new_empty(splits, p, q)
    _product(
        (tiles, splits),
        first.pieces, first.scales, second.pieces, second.scales, None, found,
        p, q, blocks, each, 0, False, symmetric, 1.0,
    )  # fmt: skip
    total = x.new_empty(p, q, dtype=torch.float64)
    _add_products((-(-p * q // 256), 1), found, total, p, q, splits, symmetric)
    return total


def _parts(x: Tensor) -> Parts:
    """Of a factor whose products along its last dimension are added up; by rows or by columns in memory."""
    rows, depth = x.shape
    tiles, blocks = -(-rows // TALL), -(-depth // DEEP)
    pieces = x.new_empty(tiles * blocks * PIECE, dtype=torch.uint8)
    scales = x.new_empty(tiles, blocks, TALL)
    by_columns = x.T.is_contiguous()
    if not (by_columns or (x.is_contiguous() and x.data_ptr() % 16 == 0)):
        x = x.clone(memory_format=torch.contiguous_format)  # read in units of 16 bytes
    split = _split_columns if by_columns else _split_rows
    split((tiles * blocks, 1), x, pieces, scales, rows, depth, blocks)
    return Parts(pieces, scales)


def _shares(tiles: int, blocks: int, processors: int) -> tuple[int, int]:
    """Into how many parts rows are split, and the blocks of each, so that no processor waits for long."""

    def takes(splits: int) -> int:
        return -(-tiles * splits // processors) * (-(-blocks // splits) + STARTING)

    splits = min(range(1, min(SPLITS, blocks) + 1), key=takes)
    each = -(-blocks // splits)
    return -(-blocks // each), each


def _suits(*factors: Tensor) -> bool:
    """Whether the kernel is for such factors and this GPU, and torch is not to round them to TF32 anyway."""
    return (
        all(x.dtype == torch.float32 for x in factors)
        and not any(x.requires_grad and torch.is_grad_enabled() for x in factors)
        and not torch.backends.cuda.matmul.allow_tf32
        and _capability(factors[0].device) == HOPPER
    )


def has_products(device: torch.device) -> bool:
    """Whether long products are made by the kernels here."""
    return torch.cuda.is_available() and _capability(device) == HOPPER


@cache
def _capability(device: torch.device) -> int:
    """Of an NVIDIA GPU: other makers number theirs alike."""
    return torch.cuda.get_device_capability(device)[0] if torch.version.hip is None else 0


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
