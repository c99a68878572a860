"""Baselines: gradient methods and another ADMM, on the same data, network, initialisation and training loop.

    train("adam", mlp([64, 100, 10]), X, y)         as dladmm.train, for gd, adagrad, adadelta, adam, lbfgs, muon, admm
    train("adam", ..., batch_size=128, max_iter=10) mini-batches, ten passes, for all but lbfgs and admm
    train_graph("adam", datasets.load("cora"))      as dladmm.train_graph, for all but admm

Each returns a :class:`~dladmm.training.result.Result` like dlADMM's; its certificate reports measurements and makes no
claims.
"""

from __future__ import annotations

from dladmm.baselines.api import METHODS, train, train_graph
from dladmm.baselines.optimizers import LEARNING_RATES, Rate

__all__ = ["LEARNING_RATES", "METHODS", "Rate", "train", "train_graph"]
