"""What is measured: an MLP's training objective, and its accuracy on held-out rows."""

import numpy as np
from benchopt import BaseObjective
from scipy.special import logsumexp


class Objective(BaseObjective):
    """Mean softmax cross-entropy of an MLP plus ``(penalty / 2N) sum ||W||^2``, as the paper's Problem 3.

    A solver gets the data, the widths and a seed, and gives back the weights: a list of ``(W, b)`` with W of shape
    (n_out, n_in). How it finds them is its own affair, so that methods without gradients can take part.
    """

    name = "MLP, softmax cross-entropy"
    url = "https://github.com/xianggebenben/dlADMM"
    requirements = ["numpy", "scipy"]
    min_benchopt_version = "1.7"
    parameters = {"width": [100], "depth": [1], "penalty": [0.0], "seed": [0]}
    test_config = {"width": 8}

    def set_data(self, X_train, y_train, X_test, y_test):
        self.train, self.test = (X_train, y_train), (X_test, y_test)
        self.n_classes = int(max(y_train.max(), y_test.max())) + 1

    @property
    def widths(self):
        return [self.train[0].shape[1], *[self.width] * self.depth, self.n_classes]

    def get_objective(self):
        X, y = self.train
        return {"X": X, "y": y, "widths": self.widths, "penalty": self.penalty, "seed": self.seed}

    def evaluate_result(self, layers):
        loss, accuracy = measure(layers, *self.train)
        test_loss, test_accuracy = measure(layers, *self.test)
        squares = sum(float((W**2).sum()) for W, _ in layers)
        return {
            "value": loss + self.penalty / 2 * squares / len(self.train[1]),
            "train_loss": loss,
            "train_error": 1 - accuracy,
            "test_loss": test_loss,
            "test_error": 1 - test_accuracy,
        }

    def get_one_result(self):
        pairs = zip(self.widths, self.widths[1:], strict=False)
        return {"layers": [(np.zeros((n_out, n_in)), np.zeros(n_out)) for n_in, n_out in pairs]}


def measure(layers, X, y):
    """Mean cross-entropy and accuracy of a relu network with these weights."""
    for W, b in layers[:-1]:
        X = np.maximum(X @ W.T + b, 0.0)
    z = X @ layers[-1][0].T + layers[-1][1]
    loss = logsumexp(z, axis=1) - z[np.arange(len(y)), y]
    return float(loss.mean()), float((z.argmax(1) == y).mean())
