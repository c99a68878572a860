"""What the estimators check of their settings, rows, labels and outputs; and how often rows count by their class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import _check_partial_fit_first_call
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.fields import shown
from dladmm.base.spec import is_several
from dladmm.callbacks import Callback, EarlyStopping, ProgressBar
from dladmm.callbacks.early_stopping import HIGHER_IS_BETTER
from dladmm.estimators.names import ANSWERS, refusal
from dladmm.training.checks import check_callbacks
from dladmm.training.result import Result

Array = NDArray[Any]


class Named:
    """Mixin: parameters that are called otherwise in other libraries are answered with the name here."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        known = cls._get_param_names()  # type: ignore[attr-defined]
        for name in kwargs:
            if name not in known:
                raise InputTypeError(refusal(cls.__name__, name, known))
        return super().__new__(cls)

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, as in scikit-learn."""
        known = self._get_param_names()  # type: ignore[attr-defined]
        for name in params:
            if name in ANSWERS and name not in known:
                raise InputTypeError(refusal(type(self).__name__, name, known))
        return super().set_params(**params)  # type: ignore[misc, no-any-return]


FLAGS = ("early_stopping", "warm_start", "verbose", "self_training")
"""Parameters that are True or False; None is the default of the last."""


def check_parameters(estimator: Any) -> None:
    """Raise for a parameter that no fit could use, by its name here; ``train`` checks those of the same name.

    Parameters of what is not asked for are looked at too, such as ``validation_fraction`` without early stopping.
    """
    given = estimator.get_params(deep=False)
    for name in FLAGS:
        value = given.get(name, False)
        if name == "self_training" and value is None:
            continue
        if not isinstance(value, (np.bool_, Integral)) or (name != "verbose" and int(value) not in (0, 1)):
            raise InputTypeError(f"{name} must be True or False, got {shown(value)}.")
    _check_number(given, "tol", "a finite number >= 0", lambda value: 0 <= value < 2**63)
    _check_number(given, "validation_fraction", "a number between 0 and 1", lambda value: 0 < value < 1)
    _check_number(given, "n_iter_no_change", "a whole number >= 1", lambda value: value >= 1, Integral)
    for name, kinds in (("mode", str), ("dtype", (str, torch.dtype))):
        if not isinstance(given[name], kinds):
            raise InputTypeError(f"{name} must be a name, a text, got {shown(given[name])}.")
    if given.get("batch_size") is not None and not isinstance(given["batch_size"], str):
        _check_number(given, "batch_size", "a whole number >= 1", lambda value: value >= 1, Integral)
    check_callbacks(given["callbacks"])
    try:
        check_random_state(given["random_state"])
    except ValueError as error:
        raise InputError(
            "random_state must be a whole number from 0 to 2**32 - 1, a RandomState of numpy or None, got "
            f"{shown(given['random_state'])}."
        ) from error


def _check_number(
    given: dict[str, Any], name: str, allowed: str, fits: Callable[[Any], bool], kind: type = Real
) -> None:
    value = given.get(name, 0.5 if kind is Real else 1)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind) or not fits(value):
        raise InputError(f"{name} must be {allowed}, got {shown(value)}.")


def widths(hidden_layer_sizes: Sequence[int] | int) -> tuple[int, ...]:
    """The widths of the hidden layers; a single number is one layer, as in scikit-learn."""
    single = isinstance(hidden_layer_sizes, Integral) or not is_several(hidden_layer_sizes)
    sizes: tuple[Any, ...] = (hidden_layer_sizes,) if single else tuple(hidden_layer_sizes)  # type: ignore[arg-type]
    unordered = isinstance(hidden_layer_sizes, (str, bytes, bytearray, Mapping, Set))  # b"3" iterates over 51
    if unordered or not all(
        isinstance(width, Integral) and not isinstance(width, bool) and 1 <= int(width) < 2**31
        for width in sizes
    ):
        raise InputError(
            "hidden_layer_sizes must be whole numbers >= 1, one per hidden layer, below 2**31, got "
            f"{shown(hidden_layer_sizes)}."
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


def refuse_deep(X: Any) -> None:
    """Raise for images and sequences as they are, with the way to pass them."""
    shape = getattr(X, "shape", ())
    if len(shape) > 2:
        inner = ", ".join(str(n) for n in shape[1:])
        raise InputError(
            f"X has the shape {tuple(shape)}, but estimators take one row of features per sample: pass "
            f"X.reshape(len(X), -1). A network for images or sequences (ModuleClassifier, ModuleRegressor) begins with "
            f"nn.Unflatten(1, ({inner})); dladmm.train takes X as it is."
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


def classes_of(labels: Array) -> Array:
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


class WithinError(EarlyStopping):
    """Early stopping that keeps the last network whose score is as good as the best one, but for the score's error.

    A score of few rows is mostly noise: its maximum over many passes comes early by chance, while the steps of
    streaming mode are still long. So a pass counts as one without improvement where the score is worse than the best by
    more than the standard error of an accuracy on ``rows`` rows, or a loss by more than a tenth.
    """

    WORSE_LOSS = 0.1

    def __init__(self, monitor: str, patience: int, rows: int) -> None:
        super().__init__(monitor=monitor, patience=patience)
        self.rows = rows

    def _reset(self) -> None:
        super()._reset()
        self._top: float | None = None

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        higher = self.monitor in HIGHER_IS_BETTER
        known = [each for each in (self._top, self.best, value) if each is not None]
        self._top = max(known) if higher else min(known)
        if not higher:
            return value <= (1 + self.WORSE_LOSS) * self._top
        share = (self._top * self.rows + 1) / (self.rows + 2)
        return value >= self._top - math.sqrt(share * (1 - share) / self.rows)


def held_out(own: Any, X: Any, y: Array, weight: Array | None, seed: int) -> tuple[Any, ...]:
    """Split off an estimator's ``validation_fraction``: X, y, weight, (X, y) held out, and the callback."""
    from sklearn.model_selection import train_test_split  # a tenth of a second, for this alone

    stratify = y if isinstance(own, ClassifierMixin) and y.ndim == 1 else None
    index = np.arange(X.shape[0])
    try:
        kept, held = train_test_split(
            index, test_size=own.validation_fraction, random_state=seed, stratify=stratify
        )
    except ValueError as error:
        raise InputError(
            f"validation_fraction={own.validation_fraction!r} of {len(index)} rows cannot be held back: {error}"
        ) from error
    monitor = "val_accuracy" if isinstance(own, ClassifierMixin) else "val_loss"
    stopping = [WithinError(monitor, own.n_iter_no_change, len(held))]
    held_x = X[held].toarray() if sparse.issparse(X) else X[held]
    return X[kept], y[kept], None if weight is None else weight[kept], (held_x, y[held]), stopping
