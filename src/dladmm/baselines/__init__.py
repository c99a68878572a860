"""The methods dlADMM is compared with, on the same data, network, initialisation and loop.

    train("adam", mlp([64, 100, 10]), X, y)         as dladmm.train, for gd, adagrad, adadelta, adam, lbfgs, admm
    train_graph("adam", datasets.load("cora"))      as dladmm.train_graph, for all but admm

Each gives the same :class:`~dladmm.training.trainer.Result` as dlADMM; its certificate says what was seen and claims
nothing.
"""

from __future__ import annotations

from dladmm.baselines.api import METHODS, train, train_graph
from dladmm.baselines.optimizers import LEARNING_RATES, Rate

__all__ = ["LEARNING_RATES", "METHODS", "Rate", "train", "train_graph"]
