"""Runs that dladmm's trainer does not make: estimators in cross-validation, scikit-learn's own models.

Each function is given a cell and returns a test accuracy.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier as ScikitMLP

from dladmm import datasets
from dladmm.estimators.mlp import MLPClassifier
from dladmm.runs.plan import Cell

LOADERS = {"digits": load_digits, "wine": load_wine, "breast_cancer": load_breast_cancer}


def folds(cell: Cell) -> float:
    """Five-fold stratified cross-validation of the library's estimator."""
    return _accuracy(MLPClassifier(random_state=cell.seed, device="cpu"), cell)


def folds_scikit_learn(cell: Cell) -> float:
    """Five-fold stratified cross-validation of scikit-learn's estimator of the same name."""
    return _accuracy(ScikitMLP(random_state=cell.seed), cell)


def logistic(cell: Cell) -> float:
    """Logistic regression on the split of a data set that the cell's seed draws."""
    data = datasets.load(cell.dataset, **cell.data)
    model = LogisticRegression(max_iter=5000).fit(data.x_train, data.y_train)
    return float(model.score(data.x_test, data.y_test))


MEASURES = {"folds": folds, "folds-scikit-learn": folds_scikit_learn, "logistic": logistic}


def _accuracy(estimator: Any, cell: Cell) -> float:
    X, y = LOADERS[cell.dataset](return_X_y=True)
    X = _prepared(X, cell.options.get("inputs", "as they are"))
    splits = StratifiedKFold(5, shuffle=True, random_state=cell.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(cross_val_score(estimator, X, y, cv=splits).mean())


def _prepared(X: Any, inputs: str) -> Any:
    if inputs == "times 100":
        return 100 * X
    if inputs == "standardised":
        deviation = X.std(axis=0)
        return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return X
