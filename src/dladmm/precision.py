"""How exactly large float32 products are made on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32"]


@contextmanager
def product_precision(precision: Precision) -> Iterator[None]:
    """Within it, float32 products on a GPU are made in this precision; Gram matrices never are in less than float32.

    Torch allows TF32 in convolutions unless told otherwise; here they are as exact as the other products.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32" or before[0]
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
