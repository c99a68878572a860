"""Whether a column is to be classified or regressed on, and by which loss: decided from its values, or asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import InputError
from dladmm.losses import get_loss

FEW_VALUES = 20
"""Whole numbers with at most so many distinct values are classes."""

ROWS_PER_CLASS, MOST_CLASSES = 10, 1000
"""More are too if they are 0, 1, 2, ... without a gap, at most so many, and have so many rows each in the mean."""

LOSSES = {"classification": "cross_entropy", "regression": "squared"}
"""The loss of a task where none was asked for."""


@dataclass(frozen=True)
class Task:
    """``kind`` ("classification" or "regression"), the loss, and ``why`` in words."""

    kind: str
    loss: str
    why: str


CLASSES = Task("classification", "cross_entropy", "the data set has classes")


def decide(y: NDArray[Any], task: str, loss: str | None) -> Task:
    """The task for targets y (rows,) or (rows, outputs), numbers or text; ``task`` may be "auto", ``loss`` None."""
    if task not in ("auto", *LOSSES):
        raise InputError(f"task must be auto, classification or regression, got {task!r}.")
    kind = None if loss is None else get_loss(loss).kind
    if task != "auto" and kind not in (None, task):
        raise InputError(f"loss {loss} is for {kind}, but the task is {task}; change --loss or --task.")
    if task != "auto":
        return Task(task, loss or LOSSES[task], "asked for")
    if loss is not None:
        return Task(str(kind), loss, f"by the loss {loss}")
    found, why = _by_values(np.asarray(y))
    return Task(found, LOSSES[found], why)


def _by_values(y: NDArray[Any]) -> tuple[str, str]:
    if y.ndim > 1:
        return "regression", f"the target has {y.shape[1]} columns"
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError):
        return "classification", "the target has words"
    if y.dtype.kind == "b":
        return "classification", "the target is true or false"
    numbers = numbers[np.isfinite(numbers)]
    values = np.unique(numbers)
    if not np.array_equal(values, np.rint(values)):
        return "regression", "the target has numbers with a fraction"
    if len(values) <= FEW_VALUES:
        return "classification", f"the target has {len(values)} distinct whole numbers"
    counted = np.array_equal(values, np.arange(len(values)))
    if counted and len(values) <= min(MOST_CLASSES, len(numbers) // ROWS_PER_CLASS):
        return "classification", f"the target has the numbers 0 to {len(values) - 1} without a gap"
    return "regression", f"the target has {len(values):,} distinct numbers"
