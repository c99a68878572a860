"""What the estimators check of their settings, labels and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dladmm.base.errors import InputError, InputTypeError
from dladmm.callbacks import Callback, ProgressBar
from dladmm.training.result import Result


def widths(hidden_layer_sizes: Sequence[int] | int) -> tuple[int, ...]:
    """The widths of the hidden layers; a single number is one layer, as in scikit-learn."""
    single = isinstance(hidden_layer_sizes, Integral) or not isinstance(hidden_layer_sizes, Iterable)
    sizes: tuple[Any, ...] = (hidden_layer_sizes,) if single else tuple(hidden_layer_sizes)  # type: ignore[arg-type]
    unordered = isinstance(hidden_layer_sizes, (str, bytes, bytearray, Mapping, Set))  # b"3" iterates over 51
    if unordered or not all(
        isinstance(width, Integral) and not isinstance(width, bool) and int(width) >= 1 for width in sizes
    ):
        raise InputError(
            f"hidden_layer_sizes must be whole numbers >= 1, one per hidden layer, got {hidden_layer_sizes!r}."
        )
    return tuple(int(width) for width in sizes)


def rows_per_batch(batch_size: int | str | None) -> int | None:
    """``batch_size`` as ``train`` takes it: "auto", scikit-learn's word, is None."""
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise InputError(f"batch_size must be a whole number >= 1, 'auto' or None, got {batch_size!r}.")
        return None
    return batch_size


def refuse_masked(**arrays: Any) -> None:
    """Raise for masked entries of numpy's masked arrays: as plain arrays they would count like others."""
    for name, array in arrays.items():
        if np.ma.is_masked(array):
            raise InputError(
                f"{name} has masked entries, which would count like others; fill them (X.filled(np.nan) marks "
                "missing features) or leave those rows out."
            )


def refuse_streams(X: Any) -> None:
    """Raise for what brings batches of its own: estimators take arrays."""
    if isinstance(X, (DataLoader, Dataset)) or hasattr(X, "__next__"):
        raise InputTypeError(
            f"X is a {type(X).__name__}, which brings batches of its own; fit takes arrays X and y. Train the network "
            "with dladmm.train(module, loader), or call partial_fit(x, y) for each batch."
        )


def rows_that_count(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """X and y without rows of weight zero, and the weights (None if all are one)."""
    if sample_weight is None:
        return X, y, None
    refuse_masked(sample_weight=sample_weight)
    weight = _check_sample_weight(sample_weight, X)
    if (weight < 0).any():
        raise InputError("sample_weight has negative entries; each says how often a row counts, 0 or more.")
    counts = weight > 0
    X, y, weight = X[counts], y[counts], weight[counts]
    return X, y, None if bool((weight == 1).all()) else weight


def progress(estimator: Any) -> list[Callback]:
    """A list with a progress bar if the estimator is ``verbose``, else empty."""
    return [ProgressBar(type(estimator).__name__)] if estimator.verbose else []


def classes_of(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The sorted distinct labels, shape (n_classes,); raises for mixed types, NaN, or fewer than two classes."""
    try:
        classes = np.unique(labels)
    except TypeError as error:
        raise InputTypeError(
            f"y mixes labels that cannot be ordered ({error}); give them one type."
        ) from error
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise InputError("y contains NaN or infinite values; leave out the rows that have no label.")
    if len(classes) < 2:
        raise InputError(f"y holds one class only ({classes[0]!r}); at least two are needed to train.")
    return classes


def finite_output(output: Tensor) -> Tensor:
    """The output, checked to be finite: a classifier would silently map NaN to some class."""
    if not bool(torch.isfinite(output).all()):
        raise InputError(
            f"X has values so large that the network's outputs overflow {output.dtype}; scale them as in training."
        )
    return output


def dense(X: Any) -> Any:
    """X as a dense array."""
    return X.toarray() if sparse.issparse(X) else np.asarray(X)


def keep_state(estimator: Any, result: Result) -> None:
    """Set ``state_`` in convergent mode, for those who study the method; elsewhere variables of the rows are let go."""
    estimator.__dict__.pop("state_", None)
    if estimator.mode == "convergent" and result.state is not None:
        estimator.state_ = result.state
