"""Estimators with scikit-learn's interface."""

from dladmm.estimators.gcn import GCNClassifier
from dladmm.estimators.mlp import MLPClassifier
from dladmm.estimators.module import ModuleClassifier, ModuleRegressor
from dladmm.estimators.regressor import MLPRegressor

__all__ = ["GCNClassifier", "MLPClassifier", "MLPRegressor", "ModuleClassifier", "ModuleRegressor"]
