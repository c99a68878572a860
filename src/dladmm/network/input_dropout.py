"""Dropout of input entries whose mask is a hash of the row's values, not of its position.

Equal rows lose the same entries, in whatever order they come. So a sample weight of 2 is still equivalent to repeating
the row, and shuffling the samples changes nothing but rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dladmm.compute.chunks import Source, slices
from dladmm.compute.execution import EAGER, Execution, nothing, one_pass

MASK_32 = 0xFFFFFFFF
"""Hashes are computed modulo 2^32 in int64, so that no product overflows into the kept bits."""

RESOLUTION = 1e6
"""Rows whose projections agree up to 1/RESOLUTION get the same mask: coarser than rounding, finer than real data."""

PART = 1 << 22
"""Entries projected at once, which bounds the memory for temporaries."""


class InputDropout:
    """Sets random entries of ``x`` (N, ...) to zero, with a new mask for every ``draw``.

    Parameters
    ----------
    x : Tensor or Source of shape (N, ...)
        The inputs whose rows are hashed.
    seed : int
    """

    def __init__(self, x: Tensor | Source, seed: int) -> None:
        n_columns = math.prod(x.shape[1:])
        generator = torch.Generator().manual_seed(seed)
        direction = torch.rand(n_columns, generator=generator, dtype=torch.float64).to(x.device) + 0.5
        parts = (x[rows].flatten(1) for rows in slices(len(x), max(1, PART // n_columns)))
        # direction[:0] keeps torch.cat valid where there are no rows
        projected = torch.cat([direction[:0], *(part.double() @ direction for part in parts)])
        self._row_hashes = _hash((projected * RESOLUTION).round().long() + seed)[:, None]
        self._column_hashes = _hash(torch.arange(n_columns, device=x.device) + 1)
        self._buffer = torch.empty_like(x.flatten(1)) if isinstance(x, Tensor) else None

    def apply(self, x: Tensor | Source, share: float, draw: int, how: Execution = EAGER) -> Tensor | Source:
        """``x`` with about ``share`` of its entries zero and the others multiplied by ``1 / (1 - share)``.

        For a tensor the result is a buffer that the next call overwrites. ``draw`` numbers the mask.
        """
        column_hashes = _hash(self._column_hashes + draw)
        limit, factor = (
            torch.full((), number, dtype=torch.float64, device=x.device)
            for number in (share * (MASK_32 + 1), 1 / (1 - share))
        )

        def dropped(out: Tensor, part: Tensor, row_hashes: Tensor) -> Tensor:
            _drop(how, out, part.flatten(1), row_hashes, columns=column_hashes, limit=limit, factor=factor)
            return out.reshape(part.shape)

        if self._buffer is not None and isinstance(x, Tensor):
            return dropped(self._buffer, x, self._row_hashes)
        assert isinstance(x, Source)
        return x.changed(lambda part, rows: dropped(part.new_empty(part.shape), part, self._row_hashes[rows]))


@one_pass("out", kernel="drop")
def _drop(out: Tensor, x: Tensor, rows: Tensor, *, columns: Tensor, limit: Tensor, factor: Tensor) -> Tensor:
    """Write x into ``out`` with entries dropped; ``rows`` and ``columns`` are hashes."""
    kept = _hash(rows ^ columns) >= limit
    torch.mul(x, kept, out=out).mul_(factor)
    return nothing(out)


def _hash(numbers: Tensor) -> Tensor:
    """A 32-bit integer hash, entry by entry: shifts and odd multiplications, each invertible modulo 2^32."""
    mixed = numbers & MASK_32
    for multiplier in (0x7FEB352D, 0x846CA68B):
        mixed = ((mixed ^ (mixed >> 16)) * multiplier) & MASK_32
    return mixed ^ (mixed >> 16)
