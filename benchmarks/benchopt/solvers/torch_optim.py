"""Full-batch gradient methods of torch.optim, through the library's baselines; the learning rates are the paper's."""

import warnings

from benchopt import BaseSolver
from benchopt.stopping_criterion import NoCriterion

from dladmm import baselines, mlp


class Solver(BaseSolver):
    name = "torch.optim"
    requirements = ["pip::dladmm"]
    parameters = {"method": ["adam", "gd", "lbfgs"]}
    sampling_strategy = "iteration"
    stopping_criterion = NoCriterion()

    def set_objective(self, X, y, widths, penalty, seed):
        self.data, self.widths, self.seed = (X, y), widths, seed
        self.regularizer = {"name": "l2", "strength": penalty} if penalty else None

    def run(self, n_iter):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = baselines.train(
                self.method,
                mlp(self.widths),
                *self.data,
                regularizer=self.regularizer,
                random_state=self.seed,
                max_iter=max(n_iter, 1),
                dtype="float64",
            )
        layers = [layer for layer in result.module if hasattr(layer, "weight")]
        self.layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]

    def get_result(self):
        return {"layers": self.layers}
