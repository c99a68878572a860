"""Scores of predictions as scikit-learn defines them: its import would take a command line a second it waits for.

Every function is held to its counterpart in ``sklearn.metrics`` by a test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def confusion_matrix(truth: Array, chosen: Array, n_classes: int) -> Array:
    """How many rows of class i (row) were taken for class j (column), (n_classes, n_classes)."""
    pairs = truth.astype(np.int64) * n_classes + chosen.astype(np.int64)
    return np.bincount(pairs, minlength=n_classes**2).reshape(n_classes, n_classes)


def balanced_accuracy(confusion: Array) -> float:
    """The mean, over the classes that occur, of the share of their rows that is told rightly."""
    rows = confusion.sum(1)
    return float((confusion.diagonal()[rows > 0] / rows[rows > 0]).mean())


def log_loss(truth: Array, chances: Array) -> float:
    """The mean of ``-log p`` of the true classes (N,); chances (N, n_classes) are at least the rounding of a 1."""
    least = np.finfo(chances.dtype).eps
    own = chances[np.arange(len(truth)), truth.astype(np.int64)]
    return float(-np.log(np.clip(own, least, 1 - least)).mean())


def auc(positive: Array, scores: Array) -> float:
    """How often a row of the class has the higher score than one of the others; equal scores count half."""
    _, place, rows = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(rows) - (rows - 1) / 2)[place]  # equal scores share the mean of their ranks
    ones = int(positive.sum())
    others = len(positive) - ones
    return float((rank[positive].sum() - ones * (ones + 1) / 2) / (ones * others))


def r_squared(truth: Array, predicted: Array) -> float:
    """The mean over outputs (N, n_outputs) of the share of the variance that is explained.

    Of an output that is constant it is 1 where the predictions are right and 0 where not.
    """
    errors = ((truth - predicted) ** 2).sum(0)
    spread = ((truth - truth.mean(0)) ** 2).sum(0)
    varies = spread > 0
    explained = np.where(errors == 0, 1.0, 0.0)
    explained[varies] = 1 - errors[varies] / spread[varies]
    return float(explained.mean())
