"""Which precision torch makes large float32 products in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]


@contextmanager
def product_precision(precision: Precision) -> Iterator[None]:
    """Within it, torch's float32 products on a GPU may be made in TF32; Gram matrices never are.

    ``"bfloat16"`` lets them be made in TF32 too: only directions are rounded to bfloat16
    (:attr:`dladmm.compute.execution.Execution.rounded_directions`), because the cached predictions must move by the
    same products that measured the step.

    Torch allows TF32 in convolutions unless told otherwise; here they are as exact as the other products.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32" or before[0]
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
