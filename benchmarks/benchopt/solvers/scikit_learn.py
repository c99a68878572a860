"""scikit-learn's MLPClassifier: Adam on mini-batches, an iteration is an epoch."""

import warnings

from benchopt import BaseSolver
from benchopt.stopping_criterion import NoCriterion
from sklearn.neural_network import MLPClassifier


class Solver(BaseSolver):
    name = "scikit-learn"
    requirements = ["scikit-learn"]
    sampling_strategy = "iteration"
    stopping_criterion = NoCriterion()

    def set_objective(self, X, y, widths, penalty, seed):
        self.data = X, y
        self.network = MLPClassifier(
            tuple(widths[1:-1]), alpha=penalty, random_state=seed, tol=0.0, n_iter_no_change=10**6
        )

    def run(self, n_iter):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.network.set_params(max_iter=max(n_iter, 1)).fit(*self.data)

    def get_result(self):
        pairs = zip(self.network.coefs_, self.network.intercepts_, strict=True)
        return {"layers": [(W.T, b) for W, b in pairs]}
