"""Labels, weights of classes and rows, and best values of curves, number by number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator

from dladmm import InputError, MLPClassifier
from dladmm.base.history import History
from dladmm.estimators.checks import Labels, held_out, labels_of, rows_that_count, weighted_by_class
from dladmm.estimators.curves import Curves


class Fitted(Curves, BaseEstimator):
    """What the curves are read from: a history."""

    def fit(self, X, y):
        return self


Y = np.array(["a", "c", "b", "a", "a"])


def test_rows_count_by_their_class_and_by_themselves():
    labels = labels_of(Y)
    assert labels.encoded(Y).tolist() == [0, 2, 1, 0, 0]
    given = {"a": 2.0, "c": 5.0}
    assert weighted_by_class(given, labels, Y, None).tolist() == [2, 5, 1, 2, 2]
    assert weighted_by_class(given, labels, Y, [1, 2, 3, 4, 0.5]).tolist() == [2, 10, 3, 8, 1]
    balanced = weighted_by_class("balanced", labels, Y, None)
    assert balanced == pytest.approx([5 / 9, 5 / 3, 5 / 3, 5 / 9, 5 / 9])
    assert weighted_by_class(None, labels, Y, "as given") == "as given"


def test_labels_that_are_not_known_are_refused():
    with pytest.raises(InputError, match="not among classes"):
        Labels(np.array(["a", "c"])).encoded(Y)
    with pytest.raises(InputError, match="not among the labels"):
        weighted_by_class({"z": 1.0}, labels_of(Y), Y, None)


def test_rows_of_weight_zero_are_left_out():
    X = np.arange(8.0).reshape(4, 2)
    kept, y, weight = rows_that_count(X, np.arange(4), [1.0, 0.0, 2.0, 0.0])
    assert kept.tolist() == [[0, 1], [4, 5]]
    assert (y.tolist(), weight.tolist()) == ([0, 2], [1, 2])
    assert rows_that_count(X, np.arange(4), [1.0, 1.0, 0.0, 1.0])[2] is None
    with pytest.raises(InputError, match="negative"):
        rows_that_count(X, np.arange(4), [1.0, -1.0, 0.0, 1.0])


def test_best_values_are_the_best_not_the_last():
    fitted = Fitted()
    fitted.history_ = History({"loss": [3.0, 1.0, None, 2.0], "val_accuracy": [0.5, None, 0.9, 0.7]})
    assert fitted.loss_curve_ == [3.0, 1.0, 2.0]
    assert fitted.best_loss_ == 1.0
    assert fitted.validation_scores_ == [0.5, 0.9, 0.7]
    assert fitted.best_validation_score_ == 0.9
    fitted.history_ = History({"loss": [3.0, 2.0, 1.0], "val_r2": [0.1, 0.3, 0.2]})
    assert fitted.best_validation_score_ == 0.3


@pytest.mark.parametrize("packed", [np.asarray, sparse.csr_array])
def test_rows_that_judge_early_stopping_are_not_trained_with(packed):
    X, y, weight = np.arange(1.0, 41.0)[:, None], np.arange(40) % 2, np.arange(40.0)
    estimator = MLPClassifier(validation_fraction=0.25, early_stopping=True)
    kept, labels, weights, (held, judged), stopping = held_out(estimator, packed(X), y, weight, 3)
    kept = kept.toarray() if sparse.issparse(kept) else kept
    assert len(held) == 10
    assert sorted([*kept[:, 0], *held[:, 0]]) == X[:, 0].tolist()
    assert labels.tolist() == ((kept[:, 0] - 1) % 2).tolist()
    assert judged.tolist() == ((held[:, 0] - 1) % 2).tolist()
    assert weights.tolist() == (kept[:, 0] - 1).tolist()
    assert stopping[0].monitor == "val_accuracy"


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_class_cannot_count_less_than_nothing(wrong):
    y = np.array([0, 1, 1])
    with pytest.raises(InputError, match="class_weight must hold finite numbers >= 0"):
        weighted_by_class({0: wrong}, labels_of(y), y, None)
