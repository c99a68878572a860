"""scikit-learn estimators :class:`MLPClassifier` and :class:`MLPRegressor`, trained without back-propagation."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets

from dladmm.base.errors import InputError
from dladmm.estimators.base import MLPBase
from dladmm.estimators.checks import classes_of
from dladmm.losses import Loss, get_loss

Array = NDArray[Any]


class MLPClassifier(ClassifierMixin, MLPBase):  # type: ignore[misc]
    """Multi-layer perceptron classifier trained by dlADMM; X needs no scaling.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default (100,)
        Widths of the hidden layers.
    activation : str, dict or Activation, default "relu"
    loss : str, dict or Loss, optional
        A classification loss; None is softmax cross-entropy.
    mode : {"auto", "accelerated", "convergent", "streaming"}
        "auto" trains cross-fitted copies of the network on tables, and takes "streaming" for 50,000 rows or more and
        "accelerated" with settings that need one network (see Notes). "accelerated" sees all rows in every iteration,
        and the objective never rises. "convergent" is the paper's algorithm with its certificate. "streaming" makes a
        sweep per mini-batch, for many rows. All but "convergent" scale the features; in streaming mode sparse rows
        stay sparse.
    rho, nu : float, optional
        Weights of the hard and of the relaxed constraints; None is the default of the mode (in convergent mode rho is
        ``3H``, inside the certified region).
    regularizer : str, dict, Regularizer or None, default "auto"
        "auto" is a mild l2 penalty in accelerated mode and none in the others; None is no penalty; or a name such as
        "l2", or ``{"name": "l1", "strength": 0.1}``.
    w_solver, a_solver : {"exact", "quadratic"}
        How the W- and a-updates are solved.
    damping : float, optional
        Damping of the exact solves.
    batch_size : int, optional
        Rows of a mini-batch in streaming mode and of cross-fitted copies; None chooses 32 to 512, or 32 to 128, by the
        number of rows.
    max_iter : int, optional
        Iterations; in streaming mode and for cross-fitted copies passes over the rows. None is 200 iterations; in
        streaming mode 10 passes for images and for 50,000 rows or more, else 20, or as many as make 200 steps; for
        copies at most 60.
    tol : float, default 1e-4
        Relative tolerance of the stopping criterion.
    early_stopping : bool, default False
        Stop when the score on held-out rows no longer improves, and keep the best weights.
    validation_fraction : float, default 0.1
        Share of the rows held out for early stopping.
    n_iter_no_change : int, default 10
        Iterations (passes) without improvement before early stopping.
    warm_start : bool, default False
        Continue from the fitted network on the next ``fit``.
    random_state : int, RandomState or None
    device : str, default "auto"
    dtype : {"auto", "float32", "float64"}
        "auto" is float64 for small problems on a CPU, else float32; copies are trained in float32 and kept in float64.
    max_memory : int or str, optional
        Memory limit above the data, such as "2GB": rows are processed in chunks (docs/memory.md).
    categorical_features : "auto", None, or list of names, indices or booleans
        Columns of X that are categories, each an input of 0 and 1 per level. "auto" takes the columns of a data frame
        that hold text or categories (docs/tables.md).
    monotone_constraints : dict or list of {-1, 0, 1}, optional
        1 where the prediction (of two classes, the probability of the second) must not fall with a feature, -1 where it
        must not rise; by feature, or a dictionary by column name. The signs of the weights force it (docs/tables.md).
    callbacks : sequence of Callback
    verbose : bool, default False
        Show a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coefs_ : list of ndarray, coefs_[l] of shape (n_in, n_out)
        Weights for unscaled X, as in scikit-learn; of cross-fitted copies those behind ``module_[0]``.
    intercepts_ : list of ndarray, intercepts_[l] of shape (n_out,)
    n_iter_ : int
        Iterations, or passes over the rows.
    n_networks_ : int
        Copies that the network is merged from: 4 or 8 where "auto" cross-fits, else 1.
    n_features_in_ : int
    encoder_ : TableEncoder or None
        How X becomes the inputs of ``module_``: levels, and what fills missing values. None for sparse X.
    loss_ : float
        The last mean training loss; that of copies is in units in which the targets have deviation 1.
    history_ : History
    status_ : Status
    certificate_ : Certificate
    state_ : State
        The last iterate, with variables of every training row; in ``mode="convergent"`` only. Pickles leave it out, and
        files unless ``save(path, state=True)``.
    module_ : nn.Module
        The trained network as a torch module.

    Notes
    -----
    Cross-fitted copies: four, or eight below 1,000 rows, none of which learns from its own fold of the rows. The loss
    of every row by the copy that never saw it (``val_loss`` of the history) ends the run, says which parameters are
    kept, and how sharp probabilities are. The copies are then merged into one network of so many times the width, whose
    output is their mean; features are standardised and outliers drawn in by its first layer,
    :class:`~dladmm.network.soft_clip.SoftClip`. A row of the history is one or several passes.

    "auto" is "accelerated" with rho, nu, damping, w_solver, a_solver, max_memory, a regularizer, early stopping,
    a warm start, activations with jumps, fewer than 20 rows, more than 2,000 features, or several
    ranks; docs/defaults.md has the rules and what they are worth.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MLPClassifier((20,), max_iter=50, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n_samples, n_features)
            Missing values (NaN) are filled by the median, and an input says where they were.
        y : array of shape (n_samples,)
            Labels of any type.
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        X, y = self._numbers(X, y, reset=not self._goes_on())
        check_classification_targets(y)
        classes = classes_of(y)
        if self.warm_start and hasattr(self, "classes_") and not np.array_equal(classes, self.classes_):
            raise InputError(f"warm_start needs the same classes as before {self.classes_}, got {classes}.")
        self.classes_ = classes
        return self._fit(X, np.searchsorted(classes, y), len(classes), self._own_loss(), sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from these rows once, in streaming mode; ``predict`` works after every call.

        Running sums are carried from call to call. Features are scaled by the rows of the first call: let it have some
        hundred. After ``fit`` the fitted network learns on.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,)
        classes : array of shape (n_classes,), optional
            All labels there can be; needed in the first call.
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        first = not hasattr(self, "module_")
        if _check_partial_fit_first_call(self, classes):
            classes_of(self.classes_)
        X, y = self._numbers(X, y, reset=first)
        check_classification_targets(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y has labels {unknown[:5]} that are not among classes={self.classes_}.")
        labels = np.searchsorted(self.classes_, y)
        return self._learn(X, labels, len(self.classes_), self._own_loss(), sample_weight)

    def _own_loss(self) -> Loss:
        loss = get_loss("cross_entropy" if self.loss is None else self.loss)
        if loss.kind != "classification":
            raise InputError(f"loss must be a classification loss, got {loss.name!r}.")
        return loss

    def predict(self, X: Any) -> Array:
        """The most likely class of each row of X (n_samples, n_features), shape (n_samples,)."""
        output = self._output(X)
        return np.asarray(self.classes_[self._loss.decision(output).numpy()])

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n_samples, n_classes), columns in the order of ``classes_``."""
        output = self._output(X).double()
        return self._loss.probabilities(output).numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the class probabilities, shape (n_samples, n_classes)."""
        return np.log(self.predict_proba(X))


class MLPRegressor(RegressorMixin, MLPBase):  # type: ignore[misc]
    """Multi-layer perceptron regressor trained by dlADMM; ``y`` may have several columns and any units.

    Parameters and attributes that are not listed are those of :class:`MLPClassifier`, without ``classes_``.

    Parameters
    ----------
    loss : str, dict or Loss, optional
        A regression loss; None is half the squared error, "huber" is robust against outliers.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        X, y = self._numbers(X, y, reset=not self._goes_on(), multi_output=True, y_numeric=True)
        self._single = y.ndim == 1
        target = y.reshape(len(y), -1).astype(np.float64)
        return self._fit(X, target, target.shape[1], self._own_loss(), sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from these rows once, in streaming mode; ``predict`` works after every call.

        Running sums are carried from call to call. Features are scaled by the rows of the first call: let it have some
        hundred. After ``fit`` the fitted network learns on.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        first = not hasattr(self, "module_")
        X, y = self._numbers(X, y, reset=first, multi_output=True, y_numeric=True)
        target = y.reshape(len(y), -1).astype(np.float64)
        if not first and target.shape[1] != self.n_outputs_:
            raise InputError(f"y has {target.shape[1]} columns, before it had {self.n_outputs_}.")
        self._single = y.ndim == 1
        return self._learn(X, target, target.shape[1], self._own_loss(), sample_weight)

    def _own_loss(self) -> Loss:
        loss = get_loss("squared" if self.loss is None else self.loss)
        if loss.kind != "regression":
            raise InputError(f"loss must be a regression loss, got {loss.name!r}.")
        return loss

    def predict(self, X: Any) -> Array:
        """The network's output for X, of shape (n_samples,) or (n_samples, n_outputs) as y had in ``fit``."""
        output = self._output(X)  # says so if it is not fitted
        found = self._loss.decision(output).numpy()
        return np.asarray(found[:, 0] if self._single else found)
