"""Estimators with scikit-learn's interface."""

from dladmm.estimators.gcn import GCNClassifier
from dladmm.estimators.mlp import MLPClassifier, MLPRegressor
from dladmm.estimators.module import ModuleClassifier

__all__ = ["GCNClassifier", "MLPClassifier", "MLPRegressor", "ModuleClassifier"]
