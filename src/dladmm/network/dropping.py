"""Leaving out entries of the inputs by chance, where the chance belongs to the sample and not to its place.

A row's luck is drawn from what stands in it: equal rows lose the same entries, in whatever order they come. So a weight
of 2 is still the same as standing there twice, and shuffling the samples changes nothing but rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dladmm.compute.chunks import Source, slices
from dladmm.compute.execution import EAGER, Execution, nothing, one_pass

LOW = 0xFFFFFFFF
"""Numbers are mixed modulo 2^32, in int64 where no product overflows into what is kept."""

RESOLUTION = 1e6
"""Rows whose projections agree to this many parts count as equal: more than rounding, less than any difference."""

PART = 1 << 22
"""Entries treated at once, so that the mixing needs little memory."""


class RowDrops:
    """Drops entries of ``x``, anew for every ``turn``."""

    def __init__(self, x: Tensor | Source, seed: int) -> None:
        n_columns = math.prod(x.shape[1:])
        generator = torch.Generator().manual_seed(seed)
        direction = torch.rand(n_columns, generator=generator, dtype=torch.float64).to(x.device) + 0.5
        parts = (x[rows].flatten(1) for rows in slices(len(x), max(1, PART // n_columns)))
        projected = torch.cat(
            [direction[:0], *(part.double() @ direction for part in parts)]
        )  # maybe no rows
        self._rows = _mixed((projected * RESOLUTION).round().long() + seed)[:, None]
        self._columns = _mixed(torch.arange(n_columns, device=x.device) + 1)
        self._dropped = torch.empty_like(x.flatten(1)) if isinstance(x, Tensor) else None

    def apply(self, x: Tensor | Source, share: float, turn: int, how: Execution = EAGER) -> Tensor | Source:
        """``x`` with about ``share`` of its entries zero and the others larger by ``1 / (1 - share)``.

        The answer is lent: the next call writes over it.
        """
        columns = _mixed(self._columns + turn)
        limit, factor = (
            torch.full((), number, dtype=torch.float64, device=x.device)
            for number in (share * (LOW + 1), 1 / (1 - share))
        )

        def dropped(out: Tensor, part: Tensor, rows: Tensor) -> Tensor:
            _drop(how, out, part.flatten(1), rows, columns=columns, limit=limit, factor=factor)
            return out.reshape(part.shape)

        if self._dropped is not None and isinstance(x, Tensor):
            return dropped(self._dropped, x, self._rows)
        assert isinstance(x, Source)
        return x.changed(lambda part, rows: dropped(part.new_empty(part.shape), part, self._rows[rows]))


@one_pass("out")
def _drop(out: Tensor, x: Tensor, rows: Tensor, *, columns: Tensor, limit: Tensor, factor: Tensor) -> Tensor:
    kept = _mixed(rows ^ columns) >= limit
    torch.mul(x, kept, out=out).mul_(factor)
    return nothing(out)


def _mixed(numbers: Tensor) -> Tensor:
    """A 32-bit integer hash, entry by entry: shifts and odd multiplications, each invertible modulo 2^32."""
    mixed = numbers & LOW
    for multiplier in (0x7FEB352D, 0x846CA68B):
        mixed = ((mixed ^ (mixed >> 16)) * multiplier) & LOW
    return mixed ^ (mixed >> 16)
