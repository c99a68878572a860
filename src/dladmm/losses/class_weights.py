"""Weights of classes, given as numbers: checked, and as rows of tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.spec import is_several, number


def positive(name: str, values: Any) -> tuple[float, ...]:
    """The numbers as a tuple of positive floats."""
    if isinstance(values, (str, bytes)) or not is_several(values):
        raise InputTypeError(f"{name} must be a list of numbers; got {values!r}")
    found = tuple(number(name, float(each), low=0.0, strict=True) for each in values)
    if not found:
        raise InputError(f"{name} must not be empty")
    return found


def as_row(values: tuple[float, ...], like: Tensor) -> Tensor:
    """The numbers as a tensor (n,) where ``like`` lies; made once, because a copy to a GPU waits."""
    return _row(values, like.dtype, like.device)


@lru_cache(maxsize=64)
def _row(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
