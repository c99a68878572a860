"""The scikit-learn regressor :class:`MLPRegressor`, trained without back-propagation."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dladmm.base.errors import InputError
from dladmm.estimators.base import MLPBase
from dladmm.estimators.checks import check_parameters
from dladmm.estimators.documented import with_parameters_of
from dladmm.estimators.mlp import MLPClassifier
from dladmm.losses import Loss, get_loss

Array = NDArray[Any]


@with_parameters_of(MLPClassifier)
class MLPRegressor(RegressorMixin, MLPBase):  # type: ignore[misc]
    """Multi-layer perceptron regressor trained by dlADMM; ``y`` may have several columns and any units.

    Targets are scaled inside, and the last layer undoes it; losses in the history are in units in which the targets
    have deviation 1 (for robust losses, 1.4826 times the median of ``|y - median|`` is 1). Attributes are those of
    :class:`MLPClassifier`, without ``classes_``.

    Parameters
    ----------
    loss : str, dict or Loss, optional
        A regression loss; None is half the squared error. "huber" and "absolute" are robust against outliers,
        ``{"name": "quantile", "q": 0.9}`` predicts a quantile, "poisson" is for counts (``predict`` gives the expected
        count, ``module_`` its logarithm). Widths such as Huber's ``delta`` are in units of the scaled targets.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> MLPRegressor((20,), loss="huber", random_state=0).fit(X, 1000 * y).score(X, 1000 * y) > 0.4
    True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the network.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        check_parameters(self)
        X, y = self._numbers(X, y, reset=not self._continues(), multi_output=True, y_numeric=True)
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
        check_parameters(self)
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
        output = self._output(X)
        predicted = self._loss.decision(output).numpy()
        return np.asarray(predicted[:, 0] if self._single else predicted)
