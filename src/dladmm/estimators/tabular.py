"""X as people have it: data frames with categories, and missing values, become numbers for the network."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import _check_y, check_consistent_length, validate_data

from dladmm.base.errors import InputError
from dladmm.base.spec import is_several
from dladmm.estimators.checks import refuse_deep, refuse_masked, refuse_streams
from dladmm.tables import Frame, TableEncoder, frame_of
from dladmm.tables.encoder import ColumnCode
from dladmm.tables.frame import column_of, is_text_column

Array = NDArray[Any]

ROWS_OF_MEDIANS = 10_000
"""Rows that say what would fill a gap where training has none."""

NUMBERS = [np.float64, np.float32]


class Tabular:
    """Mixin that checks X and y, and turns X into numbers by an ``encoder_`` learned in ``fit``."""

    categorical_features: Any
    encoder_: TableEncoder | None

    def _numbers(self, X: Any, *y: Any, reset: bool = True, **checks: Any) -> Any:
        """X checked, as numbers without gaps (n_samples, n_inputs); with y the pair (X, checked y).

        ``checks`` are further arguments of scikit-learn's ``validate_data``; ``reset`` learns the encoder anew.
        """
        refuse_streams(X)
        refuse_deep(X)
        refuse_masked(X=X, y=y[0] if y else None)
        names = self._categories(X, reset)
        if names is None:
            try:
                checked = validate_data(
                    self, X, *y, reset=reset, accept_sparse="csr", dtype=NUMBERS, ensure_all_finite="allow-nan",
                    **checks,
                )  # fmt: skip
            except ValueError as error:
                if "could not convert string" not in str(error) or isinstance(error, InputError):
                    raise
                raise InputError(
                    f"X holds text ({error}); pass a data frame, or name its columns in categorical_features."
                ) from error
            rows, *labels = checked if y else (checked,)
            x = self._filled(rows, reset)
        else:
            validate_data(self, X, *y, reset=reset, skip_check_array=True)
            labels = [_check_y(each, estimator=self, **checks) for each in y]
            check_consistent_length(X, *labels)
            frame = frame_of(X, names) if is_data_frame(X) else self._array_frame(X, names, reset)
            if reset:
                own = () if _is_auto(self.categorical_features) else names
                self.encoder_ = TableEncoder.fit(frame, keep=own)
                if self.encoder_.notes:
                    warnings.warn("; ".join(self.encoder_.notes) + ".", UserWarning, stacklevel=3)
            assert self.encoder_ is not None
            x = self.encoder_.transform(frame)
        return (x, *labels) if y else x

    def _filled(self, X: Any, reset: bool) -> Any:
        """Rows of numbers with their gaps filled; the same array if it has none."""
        if sparse.issparse(X):
            if np.isnan(X.data).any():
                raise InputError(
                    "X is sparse and contains NaN; fill it (SimpleImputer), or pass a dense array."
                )
            if reset:
                self.encoder_ = None
            known = getattr(self, "encoder_", None)
            return X if known is None or known.plain else known.transform(self._frame(X.toarray()))
        gaps = bool(np.isnan(X).any())
        if reset and not gaps:  # what a later gap is filled by is all there is to learn
            medians = np.median(X[:: -(-len(X) // ROWS_OF_MEDIANS)], axis=0).tolist()
            pairs = zip(self._column_names(X), medians, strict=True)
            self.encoder_ = TableEncoder(tuple(ColumnCode(name, "number", middle) for name, middle in pairs))
            return X
        if reset:
            self.encoder_ = TableEncoder.fit(self._frame(X))
        encoder = getattr(self, "encoder_", None)
        if encoder is None:
            if gaps:
                raise InputError(
                    "X contains NaN, which this network was not trained with; fill it first (SimpleImputer)."
                )
            return X
        return X if encoder.plain and not gaps else encoder.transform(self._frame(X))

    def _column_names(self, X: Array) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        columns = (
            [f"x{place}" for place in range(X.shape[1])] if names is None else [str(name) for name in names]
        )
        if len(set(columns)) < len(columns):
            raise InputError("X has several columns of the same name; rename them.")
        return columns

    def _frame(self, X: Array) -> Frame:
        columns = {name: X[:, place] for place, name in enumerate(self._column_names(X))}
        return Frame(columns, len(X), source="X")

    def _array_frame(self, X: Any, categorical: list[str], reset: bool) -> Frame:
        """The columns of an array of any type, named x0, x1, ... in training and as the encoder names them later."""
        array, encoder = np.asarray(X), getattr(self, "encoder_", None)
        names = [f"x{place}" for place in range(array.shape[1])]
        if not reset and encoder is not None:
            names = [code.name for code in encoder.columns]
        columns = {
            name: column_of(array[:, place], name, "X", name in categorical)
            for place, name in enumerate(names)
        }
        return Frame(columns, len(array), source="X")

    def _categories(self, X: Any, reset: bool) -> list[str] | None:
        """The names of the columns that are categories, None where there are none; as fitted unless ``reset``."""
        if not reset:
            encoder = getattr(self, "encoder_", None)
            found = [] if encoder is None else [c.name for c in encoder.columns if c.kind == "category"]
            left_out = [] if encoder is None else [c.name for c in encoder.columns if c.kind == "left out"]
            # A column that is left out is text, or has no values at all, as arrays of numbers may have it too
            named = bool(found) or (bool(left_out) and _may_hold_text(X))
            return [*found, *left_out] if named else None
        chosen = self.categorical_features
        if chosen is None:
            return None
        if _is_auto(chosen):
            if not is_data_frame(X):
                return None
            _check_no_dates(X)
            return [str(name) for name in X.columns if is_text_column(X[name])] or None
        if isinstance(chosen, (str, bytes)) or not is_several(chosen):
            raise InputError(
                f"categorical_features must be 'auto', None, or a list of names, indices or booleans, got {chosen!r}."
            )
        return _chosen(X, list(chosen)) or None


def is_data_frame(X: Any) -> bool:
    """Whether X has named columns, as data frames of pandas and polars have."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "__getitem__")


def _may_hold_text(X: Any) -> bool:
    """Whether a column of X can be text: X is a data frame, or an array or list that is not of numbers alone."""
    return is_data_frame(X) or (not sparse.issparse(X) and np.asarray(X).dtype.kind not in "biufc")


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _chosen(X: Any, chosen: list[Any]) -> list[str]:
    """The names of the columns that a list of names, indices or booleans says."""
    shape = np.shape(X)
    if len(shape) != 2:
        raise InputError(f"X must have shape (n_samples, n_features), got {shape}.")
    names = (
        [str(name) for name in X.columns] if is_data_frame(X) else [f"x{place}" for place in range(shape[1])]
    )
    if all(isinstance(each, (bool, np.bool_)) for each in chosen) and len(chosen) == len(names):
        return [name for name, is_category in zip(names, chosen, strict=True) if is_category]
    found = []
    for each in chosen:
        number = isinstance(each, (int, np.integer)) and not isinstance(each, bool)
        if number and 0 <= each < len(names):
            found.append(names[each])
        elif isinstance(each, str) and each in names:
            found.append(each)
        else:
            raise InputError(
                f"categorical_features has {each!r}, which is no column of X ({len(names)} columns)."
            )
    return found


def _check_no_dates(X: Any) -> None:
    for name in X.columns:
        if (
            str(getattr(X[name], "dtype", ""))
            .lower()
            .startswith(("datetime", "timedelta", "date", "duration"))
        ):
            raise InputError(
                f"column {str(name)!r} of X holds dates; make it a number (days since some day, month, "
                "weekday), or leave it out."
            )
