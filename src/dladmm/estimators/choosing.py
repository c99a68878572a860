"""``mode="auto"`` of the estimators: what their settings mean for the rule of :mod:`dladmm.api.choosing`."""

from __future__ import annotations

from typing import Any

from scipy import sparse

from dladmm.activations import get_activation
from dladmm.api.choosing import CROSS_FITTED, best_mode, is_recurrent
from dladmm.compute.communicator import current
from dladmm.estimators.checks import rows_per_batch

SOLVER_SETTINGS: dict[str, Any] = {
    "rho": None, "nu": None, "damping": None, "max_memory": None, "w_solver": "exact", "a_solver": "exact",
}  # fmt: skip
"""What streaming mode refuses, and what it is if nobody has asked for it."""


def normalises(estimator: Any) -> bool:
    """Whether the network normalises its batches inside: with jumps, in streaming mode, where nothing forbids it.

    Sample weights do (statistics of a batch count every row once), and so do several ranks and monotone constraints.
    """
    jumps = get_activation(estimator.activation).n_levels > 0
    return jumps and estimator.monotone_constraints is None and current().alone


def mode_of(estimator: Any, X: Any, weight: Any = None) -> str:
    """What "auto" stands for with these settings and these rows X (N, n_features), counted by ``weight``."""
    if getattr(estimator, "weights", None) is not None:
        return "streaming"
    one_network = (
        not _is(estimator.regularizer, "auto")
        or bool(estimator.early_stopping)
        or bool(estimator.warm_start)
        or get_activation(estimator.activation).n_levels > 0
        or not current().alone
    )
    return best_mode(
        *X.shape,
        sparse_rows=sparse.issparse(X),
        solver_settings=_solver_settings(estimator),
        one_network=one_network,
        jumps=weight is None and normalises(estimator) and not estimator.warm_start,
    )


def mode_of_module(estimator: Any, X: Any, module: Any) -> str:
    """The same where the estimator trains this module: one network, in which recurrent layers count."""
    return best_mode(
        *X.shape,
        sparse_rows=sparse.issparse(X),
        solver_settings=_solver_settings(estimator),
        one_network=True,
        batches=rows_per_batch(estimator.batch_size) is not None,
        recurrent=is_recurrent(module),
    )


def _solver_settings(estimator: Any) -> bool:
    """Whether settings were given that streaming mode refuses."""
    return any(not _is(getattr(estimator, name), default) for name, default in SOLVER_SETTINGS.items())


def _is(value: Any, default: Any) -> bool:
    return value is None if default is None else isinstance(value, str) and value == default


__all__ = ["CROSS_FITTED", "mode_of", "mode_of_module", "normalises"]
