"""How fast a quantity grows: log y = slope * log x + constant, by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dladmm.base.errors import InputError


@dataclass(frozen=True)
class Fit:
    """``y ~ x ** exponent``; ``top`` is the exponent between the two largest x alone, ``r2`` the share explained.

    ``error`` is the standard error of the exponent, from how far the points are from the line.

    Where a fixed cost hides the growth at small sizes (kernel launches on a GPU), ``top`` is the larger one.
    """

    exponent: float
    top: float
    r2: float
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ± {self.error:.2f} (at the top {self.top:.2f})"


def growth(x: Sequence[float], series: Sequence[Sequence[float]]) -> Fit:
    """One exponent for several series over the same x, each with a constant of its own."""
    log_x = np.log(np.asarray(x, dtype=float))
    table = np.asarray(series, dtype=float)
    if table.ndim != 2 or table.shape[1] != len(log_x) or len(set(x)) < 2:
        raise InputError(
            f"growth needs series over two or more distinct x; got {table.shape} over {len(log_x)} x."
        )
    if not (table > 0).all() or not np.isfinite(log_x).all():
        raise InputError("growth needs positive values: it fits their logarithms.")
    log_y = np.log(table)
    dx = log_x - log_x.mean()
    dy = log_y - log_y.mean(axis=1, keepdims=True)
    exponent = float((dy @ dx).sum() / (len(table) * (dx @ dx)))
    total = float((dy**2).sum())
    rest = float(((dy - exponent * dx) ** 2).sum())
    order = np.argsort(log_x)[-2:]
    steps = np.diff(log_y[:, order], axis=1) / np.diff(log_x[order])
    freedom = table.size - len(table) - 1  # a constant for every series, and the exponent
    error = float(np.sqrt(rest / freedom / (len(table) * (dx @ dx)))) if freedom > 0 else 0.0
    return Fit(exponent, float(steps.mean()), 1.0 if total == 0 else 1 - rest / total, error)
