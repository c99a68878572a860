"""A run's needs, read off its arguments; limits on memory as people write them, and how many rows fit within them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.fields import shown
from dladmm.base.spec import LARGEST
from dladmm.compute.chunks import memmap_of
from dladmm.compute.product_kernels import has_products
from dladmm.engine.memory import FEWEST_ROWS, MARGIN, Needs
from dladmm.network.chain import Chain
from dladmm.regularizers import NoPenalty, Regularizer

if TYPE_CHECKING:
    from dladmm.engine.options import TrainOptions

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

MAPPED_CHUNKS = 8
"""A file is read in at least so many chunks, however much memory is allowed."""


def needs_of(
    chain: Chain,
    X: Any,
    options: TrainOptions,
    penalty: Regularizer | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    n_validation: int = 0,
    counts: bool = False,
) -> Needs:
    """The needs of a run on these inputs; ``counts`` says that there are sample weights."""
    X = X if isinstance(X, Tensor) else np.asanyarray(X)
    n_rows = len(X) if X.ndim else 0
    at = "cpu" if device is None else device.type
    lies = X.device.type if isinstance(X, Tensor) else "cpu"
    copied = str(X.dtype).removeprefix("torch.") != str(dtype).removeprefix("torch.") or lies != at
    penalty = NoPenalty() if penalty is None else penalty
    stored = X.dtype.itemsize
    parts = device is not None and at == "cuda" and dtype == torch.float32 and has_products(device)
    given = chain, n_rows, options, penalty, dtype, n_validation, counts, copied, stored
    return Needs(*given, on_gpu=at == "cuda", in_parts=parts)


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


def chunk(needs: Needs, limit: int, X: Any, method: Any = None) -> int | None:
    """How many rows to work on at once within ``limit`` bytes; None where all fit, and X is in memory."""
    if method is not None:
        raise InputError("max_memory is a setting of dlADMM; leave it out beside method.")
    if not needs.known or needs.chain.blocks[0].kind != "dense":
        raise InputError("max_memory needs a network of linear layers and known activations only.")
    mapped = memmap_of(X) is not None
    if needs.n_rows == 0:  # the check of X says what is wrong
        return None
    if not mapped and needs.peak <= MARGIN * limit:
        return None
    rows = min(needs.rows_within(limit), needs.most_rows)
    return min(rows, max(FEWEST_ROWS, -(-needs.n_rows // MAPPED_CHUNKS))) if mapped else rows
