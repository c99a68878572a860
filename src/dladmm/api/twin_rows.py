"""Rows that stand more than once in a table, and which of them a fold must keep together.

A row that is held out says nothing about new rows when its twin is learnt from: the out-of-fold loss would praise
learning by heart. Twins by chance are another matter. In a table of seven yes-or-no columns every row has many, new
rows will have them too, and keeping them together would judge the network by rows unlike all it saw. So two rules:

    1. identical x: together, where independent columns would give the row fewer than one twin by chance
    2. identical (x, y): together in bundles of g, the greatest common divisor of how often such rows occur

The first finds rows that were copied (an oversampled class, a table appended to itself) and repeated measurements, the
second a table of any kind that was repeated as a whole. Where they concern few rows nothing is kept together: the loss
of these rows weighs little, and new rows are likely to have such twins as well.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

CHANCE = 1.0
"""Twins by chance that a row must be expected to have for its copies to be parted."""

FEW = 0.2
"""Share of rows with an earlier twin up to which nothing is kept together."""


def bundles(X: Array, y: Array) -> Tensor:
    """The number of every row's bundle (N,), in order of appearance; 0, 1, 2, ... where all rows are for themselves.

    X is (N, n_features) without gaps, y (N,) or (N, n_outputs).
    """
    x_keys, pair_keys = _keys(X), _keys(np.column_stack([X, y]))
    counts = Counter(x_keys)
    if len(counts) == len(x_keys):
        return torch.arange(len(x_keys))
    size = int(np.gcd.reduce(list(Counter(pair_keys).values())))
    first = {key: place for place, key in reversed(list(enumerate(x_keys)))}
    distinct = np.array(sorted(first.values()))
    by_chance = dict(zip((x_keys[i] for i in distinct), _twins_by_chance(X[distinct], len(X)), strict=True))
    numbers: dict[Any, int] = {}
    met: Counter[bytes] = Counter()
    found = []
    for x_key, pair_key in zip(x_keys, pair_keys, strict=True):
        alone = by_chance[x_key] >= CHANCE
        name = (pair_key, met[pair_key] // size) if alone else x_key
        met[pair_key] += 1
        found.append(numbers.setdefault(name, len(numbers)))
    many = len(numbers) < (1 - FEW) * len(found)
    return torch.tensor(found) if many else torch.arange(len(found))


def _keys(rows: Array) -> list[bytes]:
    """Bytes that are equal where rows are; -0 is 0."""
    return [row.tobytes() for row in np.ascontiguousarray(rows, dtype=np.float64) + 0.0]


def _twins_by_chance(distinct: Array, n_rows: int) -> Array:
    """How many of n_rows would equal each of the distinct rows if columns were independent."""
    logarithm = np.full(len(distinct), np.log(n_rows))
    for column in distinct.T:
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        logarithm += np.log(counts[place] / len(distinct))
    found: Array = np.exp(np.minimum(logarithm, 50.0))
    return found
