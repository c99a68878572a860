"""How exactly large float32 products are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["float32", "tf32", "bfloat16"]

_rounded_directions = False


@contextmanager
def product_precision(precision: Precision) -> Iterator[None]:
    """Within it, float32 products are made in this precision; Gram matrices never are in less than float32.

    ``"tf32"`` is for a GPU. ``"bfloat16"`` rounds the factors of directions (:func:`direction`) and lets the other
    products of a GPU be made in TF32: what the cached predictions move by must be what they are moved by.

    Torch allows TF32 in convolutions unless told otherwise; here they are as exact as the other products.
    """
    global _rounded_directions
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, _rounded_directions
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32" or before[0]
    _rounded_directions = precision == "bfloat16"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, _rounded_directions = before


def direction(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` where the answer is a direction to go: how far is found from exact products.

    In bfloat16 the factors are rounded and their products added in float32. A CPU without such products makes the same
    ones in float32.
    """
    if not _rounded_directions or left.dtype != torch.float32:
        return left @ right
    left, right = left.bfloat16(), right.bfloat16()
    if left.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):  # since torch 2.8
        product: Tensor = torch.mm(left, right, out_dtype=torch.float32)
        return product
    return left.float() @ right.float()


def plus_direction(start: Tensor, left: Tensor, right: Tensor, scale: float) -> Tensor:
    """``start += scale direction(left, right)``."""
    if not _rounded_directions:
        return start.addmm_(left, right, alpha=scale)
    return start.add_(direction(left, right), alpha=scale)
