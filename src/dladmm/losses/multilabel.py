"""Several labels per row, each of them yes or no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.losses.base import as_columns
from dladmm.losses.classification import BinaryLogistic


@dataclass(frozen=True)
class Multilabel(BinaryLogistic):
    """:class:`BinaryLogistic` of every label by itself: rows have any number of labels, and a prediction is one.

    Targets are 0 or 1 (or probabilities) of shape (N, n_outputs).
    """

    name: ClassVar[str] = "multilabel"

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = as_columns(y, n_outputs).to(dtype)
        if not ((target >= 0) & (target <= 1)).all():
            raise InputError("y must hold numbers from 0 to 1 (0 for no, 1 for yes); got others or NaN")
        return target

    def decision(self, z: Tensor) -> Tensor:
        """Which labels a row has, 0 or 1, (N, n_outputs)."""
        return (z > 0).long()

    def probabilities(self, z: Tensor) -> Tensor:
        """The probability of every label by itself, (N, n_outputs)."""
        return torch.sigmoid(z)
