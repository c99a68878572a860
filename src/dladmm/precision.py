"""How exactly large float32 products are made on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32"]


@contextmanager
def product_precision(precision: Precision) -> Iterator[None]:
    """Within it, float32 products on a GPU are made in this precision; Gram matrices never are in less than float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32" or before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
