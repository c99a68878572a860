"""Limits on memory as people write them, and the number of rows to work on at once within them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from dladmm.base.errors import InputError
from dladmm.base.fields import shown
from dladmm.base.spec import LARGEST
from dladmm.compute.chunks import memmap_of
from dladmm.engine.memory import FEWEST_ROWS, MARGIN, Needs

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

MAPPED_CHUNKS = 8
"""A file is read in at least so many chunks, however much memory is allowed."""


def bytes_of(limit: int | str) -> int:
    """A number of bytes, or text as ``"2GB"``, ``"500 MB"`` (powers of 1000) or ``"2GiB"`` (of 1024)."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < LARGEST:
        return limit
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(i?)B?\s*", str(limit), re.IGNORECASE)
    if isinstance(limit, str) and found is not None and float(found[1]) > 0:
        unit = UNITS[found[2].upper()]
        if found[3]:
            unit = 1024 ** (list(UNITS).index(found[2].upper()))
        return int(float(found[1]) * unit)
    raise InputError(f"max_memory must be a number of bytes above 0 or text as '2GB', got {shown(limit)}.")


UNKNOWN = "max_memory needs a network of linear layers and known activations only."


def check_streamed(peak: int | None, limit: int) -> None:
    """Raise if a run of streaming mode, which reads its rows where they lie, would take more than ``limit`` bytes."""
    if peak is None:
        raise InputError(UNKNOWN)
    if peak > MARGIN * limit:
        raise InputError(
            f"max_memory is {limit / 1e6:,.4g} MB, but this run needs about {peak / MARGIN / 1e6:,.4g} MB at least: "
            "parameters, Gram matrices, a batch and the first rows. Allow more, or take a narrower network or smaller "
            "batches (batch_size)."
        )


def chunk(needs: Needs, limit: int, X: Any, method: Any = None) -> int | None:
    """How many rows to work on at once within ``limit`` bytes; None where all fit, and X is in memory."""
    if method is not None:
        raise InputError("max_memory is a setting of dlADMM; leave it out beside method.")
    if not needs.known or needs.chain.blocks[0].kind != "dense":
        raise InputError(UNKNOWN)
    mapped = memmap_of(X) is not None
    if needs.n_rows == 0:  # the check of X says what is wrong
        return None
    if not mapped and needs.peak <= MARGIN * limit:
        return None
    rows = min(rows_within(needs, limit), needs.most_rows)
    return min(rows, max(FEWEST_ROWS, -(-needs.n_rows // MAPPED_CHUNKS))) if mapped else rows


def rows_within(needs: Needs, limit: int) -> int:
    """How many rows can be worked on at once in ``limit`` bytes; an error says what is needed at least."""
    if needs.least > MARGIN * limit:
        least = needs.least / MARGIN / 1e6
        raise InputError(
            f"max_memory is {limit / 1e6:,.4g} MB, but this run needs about {least:,.4g} MB at least: "
            f"the variables of {needs.n_rows:,} rows stay in memory. Allow more, or take fewer rows, a narrower "
            "network or dtype='float32'."
        )
    low, high = min(FEWEST_ROWS, needs.n_rows), needs.n_rows
    while low < high:
        middle = (low + high + 1) // 2
        fits = replace(needs, at_once=middle).peak <= MARGIN * limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
