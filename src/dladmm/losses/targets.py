"""Checks targets and converts them to the form the losses work on, one row per sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError


def holds_labels(y: Tensor) -> bool:
    """Whether y has one entry per row, shape (N,) or (N, 1)."""
    return y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)


def as_columns(y: Tensor, n_outputs: int) -> Tensor:
    """y as a matrix of shape (N, n_outputs)."""
    columns = y.reshape(-1, 1) if y.ndim == 1 else y
    if columns.ndim != 2 or columns.shape[1] != n_outputs:
        raise InputError(f"y must have shape (N, {n_outputs}); got {tuple(y.shape)}")
    return columns


def one_hot(y: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """One-hot targets (N, n_classes) from labels 0 .. n_classes - 1 of shape (N,) or (N, 1)."""
    flat = y.reshape(-1)
    labels = flat.long()
    if flat.is_floating_point() and not (flat == labels).all():
        raise InputError("y must hold whole numbers as class labels; got fractions or NaN")
    if not ((labels >= 0) & (labels < n_classes)).all():
        low, high = int(labels.min()), int(labels.max())
        raise InputError(f"y must hold class labels from 0 to {n_classes - 1}; got {low} to {high}")
    return F.one_hot(labels, n_classes).to(dtype)


def yes_no(y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
    """Targets in [0, 1] of shape (N, n_outputs): given as such, or from class labels, one against the rest."""
    if n_outputs > 1 and holds_labels(y):
        return one_hot(y, n_outputs, dtype)
    target = as_columns(y, n_outputs).to(dtype)
    if not ((target >= 0) & (target <= 1)).all():
        raise InputError("y must hold numbers from 0 to 1 (0 for no, 1 for yes); got others or NaN")
    return target
