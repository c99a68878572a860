"""The default estimator beside scikit-learn's on its own small data sets, inputs as they come.

    python -m dladmm.experiments.tabular > docs/results/tabular.json

Five-fold stratified cross-validation, both estimators with nothing set but the seed. Ours is run on X, on 100 X and on
X standardised as well: one default has to serve them all.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier as ScikitMLP

from dladmm.estimators.mlp import MLPClassifier

LOADERS = {"digits": load_digits, "wine": load_wine, "breast_cancer": load_breast_cancer}


def compare(name: str, seed: int = 0) -> dict[str, Any]:
    """Mean accuracies on one data set."""
    X, y = LOADERS[name](return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    deviation = X.std(axis=0)
    standardised = (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)

    def accuracy(estimator: Any, inputs: Any) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return round(float(cross_val_score(estimator, inputs, y, cv=folds).mean()), 4)

    ours = MLPClassifier(random_state=seed, device="cpu")
    return {
        "data": name,
        "accelerated": accuracy(ours, X),
        "times_100": accuracy(ours, 100 * X),
        "standardised": accuracy(ours, standardised),
        "scikit_learn": accuracy(ScikitMLP(random_state=seed), X),
    }


def main() -> None:
    results = []
    for name in LOADERS:
        print(name, file=sys.stderr)
        results.append(compare(name))
    json.dump({"command": "python -m dladmm.experiments.tabular", "results": results}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
