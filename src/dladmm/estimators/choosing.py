"""``mode="auto"`` of the estimators: what their settings mean for the rule of :mod:`dladmm.api.choosing`."""

from __future__ import annotations

from typing import Any

from scipy import sparse

from dladmm.activations import get_activation
from dladmm.api.choosing import CROSS_FITTED, table_mode
from dladmm.compute.communicator import current
from dladmm.engine.options import STREAMING
from dladmm.estimators.checks import widths


def normalises(estimator: Any) -> bool:
    """Whether the network normalises its batches inside: with jumps, in streaming mode, where nothing forbids it.

    Sample weights do (statistics of a batch count every row once), and so do several ranks and monotone constraints.
    """
    jumps = get_activation(estimator.activation).n_levels > 0
    return jumps and estimator.monotone_constraints is None and current().alone


def mode_of(estimator: Any, X: Any, n_outputs: int) -> str:
    """What "auto" stands for with these settings and these rows X (N, n_features)."""
    one_network = (
        estimator.weights is not None
        or bool(estimator.warm_start)
        or get_activation(estimator.activation).n_levels > 0
        or not current().alone
    )
    return table_mode(
        X.shape[0],
        [X.shape[1], *widths(estimator.hidden_layer_sizes), n_outputs],
        STREAMING.penalty(estimator.regularizer),
        max_memory=estimator.max_memory,
        sparse_rows=sparse.issparse(X),
        one_network=one_network,
    )


__all__ = ["CROSS_FITTED", "mode_of", "normalises"]
