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
    """argmin_z sum_k log(1 + exp z_k) - y_k z_k + (r/2)||z - v||^2, each label by itself; equations (5), (15).

    The formulas are those of :class:`~dladmm.losses.BinaryLogistic`, but rows have any number of labels: a prediction
    is 0 or 1 for each of them. Targets are 0 or 1 (or probabilities) of shape (N, n_outputs), and ``pos_weight`` is
    how much a label that is 1 counts, one number or one per label.
    """

    name: ClassVar[str] = "multilabel"
    one_answer_per_row: ClassVar[bool] = False

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
