"""``mode="auto"``: how a network is trained, by the size of the data and by what was asked for.

    1. settings of the solvers (rho, nu, damping, w_solver, a_solver, max_memory)        accelerated
    2. 50,000 rows or more, or sparse rows that would be large as dense ones             streaming
    3. a penalty, early stopping, a warm start, step functions, fewer than 20 rows,
       more than 2,000 features, several ranks                                           accelerated
    4. everything else: tables                                                           cross-fitted

Rule 3 names what needs one network that all rows are seen by in every iteration, or has not been measured otherwise.
docs/defaults.md has the tables that chose these numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dladmm.activations import get_activation
from dladmm.compute.communicator import current
from dladmm.engine.batches import MANY_ROWS

CROSS_FITTED = "cross-fitted"
"""Streaming mode with cross-fitted copies (:mod:`dladmm.api.cross_fit`)."""

FEWEST_ROWS, MOST_FEATURES, DENSE_ENTRIES = 20, 2000, 20_000_000

SOLVER_SETTINGS: dict[str, Any] = {
    "rho": None, "nu": None, "damping": None, "max_memory": None, "w_solver": "exact", "a_solver": "exact",
}  # fmt: skip
"""What streaming mode refuses, and what it is if nobody has asked for it."""


def mode_of(estimator: Any, X: Any) -> str:
    """``estimator.mode``, or what "auto" stands for with these rows X (N, n_features)."""
    if estimator.mode != "auto":
        return str(estimator.mode)
    if any(not _is(getattr(estimator, name), default) for name, default in SOLVER_SETTINGS.items()):
        return "accelerated"
    n_rows, n_features = X.shape
    if n_rows >= MANY_ROWS or (sparse.issparse(X) and n_rows * n_features > DENSE_ENTRIES):
        return "streaming"
    one_network = (
        not _is(estimator.regularizer, "auto")
        or bool(estimator.early_stopping)
        or bool(estimator.warm_start)
        or get_activation(estimator.activation).n_levels > 0
    )
    unusual = n_rows < FEWEST_ROWS or n_features > MOST_FEATURES or not current().alone
    return "accelerated" if one_network or unusual else CROSS_FITTED


def _is(value: Any, default: Any) -> bool:
    return value is None if default is None else isinstance(value, str) and value == default


def dense(X: Any) -> Any:
    """X as a dense array."""
    return X.toarray() if sparse.issparse(X) else np.asarray(X)
