"""What all estimators read from their parameters the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dladmm.callbacks import Callback, ProgressBar


def widths(hidden_layer_sizes: Sequence[int] | int) -> tuple[int, ...]:
    """The hidden layers' widths; a single number is one layer, as in scikit-learn."""
    single = isinstance(hidden_layer_sizes, (int, np.integer))
    sizes = (hidden_layer_sizes,) if single else tuple(hidden_layer_sizes)  # type: ignore[arg-type]
    return tuple(int(width) for width in sizes)  # type: ignore[arg-type]


def progress(estimator: Any) -> list[Callback]:
    """A progress bar where ``verbose`` asks for one."""
    return [ProgressBar(type(estimator).__name__)] if estimator.verbose else []
