"""scikit-learn's own checks of an estimator, with few iterations where a check asks nothing of the fit's quality."""

from __future__ import annotations

from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

FEW, MORE = 4, 15
JUDGING = (
    "check_classifiers_train",
    "check_regressors_train",
    "check_classifiers_classes",
    "check_class_weight_classifiers",
    "check_classifiers_regression_target",
)
"""They look at scores."""


def own_checks(made, *, without=()):
    """(name of the check, estimator, check) of each check that is not among the names ``without``."""
    for estimator, check in estimator_checks_generator(made):
        name = check.func.__name__
        if name not in without:
            max_iter = MORE if name in JUDGING else FEW
            yield name, clone(estimator).set_params(max_iter=max_iter), check
