"""The scikit-learn classifier :class:`MLPClassifier`, trained without back-propagation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from dladmm.base.errors import InputError
from dladmm.callbacks import Callback
from dladmm.engine.options import AutoMode
from dladmm.estimators.base import MLPBase
from dladmm.estimators.checks import Labels, check_parameters, labels_of, weighted_by_class
from dladmm.losses import BinaryLogistic, Loss, Multilabel, get_loss

Array = NDArray[Any]


class MLPClassifier(ClassifierMixin, MLPBase):  # type: ignore[misc]
    """Multi-layer perceptron classifier trained by dlADMM; X needs no scaling.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default (100,)
        Widths of the hidden layers.
    activation : str, dict or Activation, default "relu"
        Of the hidden layers; "logistic" is "sigmoid".
    loss : str, dict or Loss, optional
        A classification loss; None is softmax cross-entropy.
    mode : {"auto", "accelerated", "convergent", "streaming"}
        "auto" trains cross-fitted copies of the network, and one network in streaming mode where copies cannot be
        (see Notes). "streaming" makes a sweep per mini-batch; sparse rows stay sparse. "convergent" is the paper's
        algorithm with its certificate. "accelerated" sees all rows in every iteration, and the objective never rises.
        All but "convergent" scale the features.
    rho, nu : float, optional
        Weights of the hard and of the relaxed constraints, where ``mode`` is "convergent" or "accelerated"; None is the
        default of the mode (in convergent mode rho is ``3H``, inside the certified region).
    regularizer : str, dict, Regularizer or None, default "auto"
        "auto" is a mild l2 penalty in accelerated mode and none in the others; None is no penalty; or a name such as
        "l2", or ``{"name": "l1", "strength": 0.1}``.
    w_solver, a_solver : {"exact", "quadratic"}
        How the W- and a-updates are solved in those two modes.
    damping : float, optional
        Damping of the exact solves in those two modes.
    batch_size : int, "auto" or None
        Rows of a mini-batch in streaming mode and of cross-fitted copies; None and "auto" choose 32 to 512, or 32 to
        128, by the number of rows.
    max_iter : int, optional
        Iterations; in streaming mode and for cross-fitted copies passes over the rows. None is 200 iterations; in
        streaming mode 10 passes for images and for 50,000 rows or more, else 20, or as many as make 300 steps; for
        copies at most 60.
    tol : float, default 1e-4
        Relative tolerance of the stopping criterion.
    early_stopping : bool, default False
        Stop when the score on rows that are not learnt from no longer improves, and keep good weights. Copies do
        so anyway, by the rows that each of them never saw; where one network is trained, rows are held out.
    validation_fraction : float, default 0.1
        Share of the rows held out for early stopping of one network.
    n_iter_no_change : int, default 10
        Iterations (passes) without improvement before early stopping of one network: in a row, with a score that is
        worse than the best one by more than its standard error. The last network that is not is kept.
    warm_start : bool, default False
        Continue from the fitted network on the next ``fit``; one network is trained, no copies.
    random_state : int, RandomState or None
        Draws initial weights, the order of rows, and what is held out.
    device : str, default "auto"
        "auto" is CUDA where available, else the CPU.
    dtype : {"auto", "float32", "float64"}
        "auto" is float64 for small problems on a CPU, else float32; copies are trained in float32 and kept in float64.
    max_memory : int or str, optional
        Memory limit above the data, such as "2GB": rows are processed in chunks (docs/memory.md).
    callbacks : sequence of Callback
        What looks on: progress, checkpoints, early stopping of your own (:mod:`dladmm.callbacks`).
    verbose : bool, default False
        Show a progress bar.
    categorical_features : "auto", None, or list of names, indices or booleans
        Columns of X that are categories, each an input of 0 and 1 per level. "auto" takes the columns of a data frame
        that hold text or categories (docs/tables.md).
    monotone_constraints : dict or list of {-1, 0, 1}, optional
        1 where the prediction (of two classes, the probability of the second) must not fall with a feature, -1 where it
        must not rise; by feature, or a dictionary by column name. The signs of the weights force it (docs/tables.md).
    weights : {"real", "binary", "ternary"}, int, dict, WeightSet or a list of these, optional
        The set that the weights of all layers but the last are of: +1 and -1, also 0, or a grid of so many bits; a list
        has one for every layer. Trained with ``mode="streaming"`` (docs/signs.md).
    class_weight : dict, "balanced" or None
        How often rows of each class count, ``{label: weight}`` (1 where a label is left out); "balanced" lets all
        classes count alike. Multiplied with ``sample_weight``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels; for y with several labels per row the numbers of its columns.
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
        One entry per iteration or pass and column (:class:`~dladmm.History`); ``pandas.DataFrame`` makes a table of it.
    loss_curve_, validation_scores_ : list of float
    best_loss_, best_validation_score_ : float
        Curves of the history under scikit-learn's names; without rows held out the scores are None.
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
    :class:`~dladmm.network.table_inputs.TableInputs`. A row of the history is one or several passes.

    "auto" is "streaming" for 50,000 rows or more, more than 2,000 features, large sparse X, several ranks, a warm
    start, ``weights``, and activations that have jumps (sign, step, quantised), whose batches are then normalised
    inside the network; docs/defaults.md has the rules and what they are worth.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MLPClassifier((20,), max_iter=50, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    classes_: Array

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (100,),
        activation: Any = "relu",
        *,
        loss: Any = None,
        mode: AutoMode = "auto",
        rho: float | None = None,
        nu: float | None = None,
        regularizer: Any = "auto",
        w_solver: str = "exact",
        a_solver: str = "exact",
        damping: float | None = None,
        batch_size: int | str | None = None,
        max_iter: int | None = None,
        tol: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "auto",
        dtype: str = "auto",
        max_memory: int | str | None = None,
        callbacks: Sequence[Callback] = (),
        verbose: bool = False,
        categorical_features: Any = "auto",
        monotone_constraints: Any = None,
        weights: Any = None,
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes, activation, loss=loss, mode=mode, rho=rho, nu=nu, regularizer=regularizer,
            w_solver=w_solver, a_solver=a_solver, damping=damping, batch_size=batch_size, max_iter=max_iter, tol=tol,
            early_stopping=early_stopping, validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change, warm_start=warm_start, random_state=random_state, device=device,
            dtype=dtype, max_memory=max_memory, callbacks=callbacks, verbose=verbose,
            categorical_features=categorical_features, monotone_constraints=monotone_constraints, weights=weights,
        )  # fmt: skip
        self.class_weight = class_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the network.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n_samples, n_features)
            Missing values (NaN) are filled by the median, and an input says where they were.
        y : array of shape (n_samples,) or (n_samples, n_labels)
            Labels of any type; or one column of 0 and 1 per label where rows have any number of labels, each of which
            is then told by itself.
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        check_parameters(self)
        X, y = self._validated(X, y, reset=not self._continues())
        labels = labels_of(y)
        if (
            self.warm_start
            and hasattr(self, "classes_")
            and not np.array_equal(labels.classes, self.classes_)
        ):
            raise InputError(
                f"warm_start needs the same classes as before {self.classes_}, got {labels.classes}."
            )
        self.classes_ = labels.classes
        weight = weighted_by_class(self.class_weight, labels, y, sample_weight)
        return self._fit(X, labels.encoded(y), len(labels.classes), self._loss_for(labels), weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from these rows once, in streaming mode; ``predict`` works after every call.

        Running sums are carried from call to call. Features are scaled by the rows of the first call: let it have some
        hundred. After ``fit`` the fitted network learns on. A pickle holds the running sums and up to 2,048 rows on
        which the history is measured, so that learning goes on; ``save`` writes the network alone.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_labels)
        classes : array of shape (n_classes,), optional
            All labels there can be; needed in the first call (for several labels per row, the numbers of the columns).
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, 0 or more.
        """
        check_parameters(self)
        first = not hasattr(self, "module_")
        known = Labels.of_first_call(self, classes)
        X, y = self._validated(X, y, reset=first)
        labels = Labels(known, y.ndim == 2)
        self.classes_ = known
        weight = weighted_by_class(self.class_weight, labels, y, sample_weight, whole=False)
        return self._learn(X, labels.encoded(y), len(known), self._loss_for(labels), weight)

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Array]:
        X, y = self._numbers(X, y, reset=reset, multi_output=True)
        y = y.toarray() if hasattr(y, "toarray") else y
        y = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
        check_classification_targets(y)
        if y.ndim == 2 and type_of_target(y) != "multilabel-indicator":
            raise InputError(
                "y has several columns, which must hold 0 and 1, one column per label; for several questions of "
                "several classes each, wrap the classifier in sklearn.multioutput.MultiOutputClassifier."
            )
        return X, np.asarray(y)

    def _loss_for(self, labels: Labels) -> Loss:
        if not labels.several:
            return self._own_loss()
        if self.loss is not None and not isinstance(get_loss(self.loss), (BinaryLogistic, Multilabel)):
            raise InputError(
                f"y has several labels per row, which loss 'multilabel' (the default then) tells each by itself; "
                f"got loss={self.loss!r}."
            )
        return Multilabel()

    def _own_loss(self) -> Loss:
        loss = get_loss("cross_entropy" if self.loss is None else self.loss)
        if loss.kind != "classification":
            raise InputError(f"loss must be a classification loss, got {loss.name!r}.")
        return loss

    def predict(self, X: Any) -> Array:
        """The most likely class of each row of X (n_samples, n_features), shape (n_samples,).

        Of several labels per row, 0 or 1 for each, shape (n_samples, n_labels).
        """
        output = self._output(X)
        decision = self._loss.decision(output).numpy()
        return np.asarray(self.classes_[decision]) if self._loss.one_answer_per_row else decision

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n_samples, n_classes), columns in the order of ``classes_``.

        Of several labels per row, the probability of each by itself, (n_samples, n_labels).
        """
        output = self._output(X).double()
        return self._loss.probabilities(output).numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the class probabilities, shape (n_samples, n_classes)."""
        return np.log(self.predict_proba(X))
