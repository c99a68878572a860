"""Labels of classifiers: one per row, or several; and how often rows count by their class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import _check_partial_fit_first_call

from dladmm.base.errors import InputError
from dladmm.estimators.checks import classes_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Labels:
    """The labels that there are, and whether rows may have ``several`` of them."""

    classes: Array
    several: bool = False

    @classmethod
    def of_first_call(cls, estimator: Any, classes: Any) -> Array:
        """All labels that calls of ``partial_fit`` can bring; the first call must say."""
        if _check_partial_fit_first_call(estimator, classes):
            classes_of(estimator.classes_)
        return np.asarray(estimator.classes_)

    def encoded(self, y: Array) -> Array:
        """Class numbers (n_samples,), or 0 and 1 (n_samples, n_labels) of several labels."""
        if self.several:
            if y.shape[1] != len(self.classes):
                raise InputError(f"y has {y.shape[1]} columns of labels, {len(self.classes)} were expected.")
            return y.astype(np.float64)
        unknown = np.setdiff1d(y, self.classes)
        if len(unknown):
            raise InputError(f"y has labels {unknown[:5]} that are not among classes={self.classes}.")
        return np.searchsorted(self.classes, y)


def labels_of(y: Array) -> Labels:
    """The labels of y (n_samples,), or of the columns of y (n_samples, n_labels)."""
    if y.ndim == 1:
        return Labels(classes_of(y))
    return Labels(np.arange(y.shape[1]), several=True)


def weighted_by_class(
    class_weight: Any, labels: Labels, y: Array, sample_weight: Any, *, whole: bool = True
) -> Any:
    """Sample weights times the weights of the rows' classes; ``whole``: y holds all rows there will be."""
    if class_weight is None:
        return sample_weight
    if labels.several:
        raise InputError("class_weight is for one label per row; weight rows by sample_weight.")
    if isinstance(class_weight, Mapping):
        unknown = sorted(set(class_weight) - set(labels.classes.tolist()), key=str)
        if unknown:
            raise InputError(f"class_weight has {unknown[:5]}, not among the labels {labels.classes}.")
        per_class = np.array([class_weight.get(label, 1.0) for label in labels.classes.tolist()], np.float64)
        if not np.isfinite(per_class).all() or (per_class < 0).any():
            raise InputError(f"class_weight must hold finite numbers >= 0, got {class_weight!r}.")
    elif isinstance(class_weight, str) and class_weight == "balanced":
        if not whole:
            raise InputError(
                "class_weight='balanced' needs all rows, and partial_fit sees some: give a dictionary of weights."
            )
        per_class = compute_class_weight("balanced", classes=labels.classes, y=y)
    else:
        raise InputError(f"class_weight must be a dictionary, 'balanced' or None, got {class_weight!r}.")
    weight = per_class[labels.encoded(y)]
    return weight if sample_weight is None else weight * np.asarray(sample_weight, dtype=np.float64)
