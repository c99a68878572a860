"""Signs of weights: what they are, that initial and extrapolated weights have them, and how they repeat in copies."""

from __future__ import annotations

import numpy as np
import torch

from dladmm import Callback, mlp, train
from dladmm.network.ensemble import ensemble, ensemble_parameters
from dladmm.network.monotone import constrain, weight_signs

CPU = torch.device("cpu")


def test_the_sign_of_a_weight_is_the_product_of_its_ends():
    first, last = weight_signs([3, 2, 2], [1, -1, 0], [-1, 1])
    assert first.tolist() == [[1, -1, 0], [-1, 1, 0]]  # units of sign 1 and -1
    assert last.tolist() == [[-1, 1], [1, -1]]


def test_every_copy_starts_with_the_signs_and_nothing_is_zero():
    signs = weight_signs([3, 4, 4, 1], [1, 0, -1], [1])
    chain = constrain(ensemble([3, 4, 4, 1], 5), signs, copies=5)
    params = ensemble_parameters(chain, torch.Generator().manual_seed(0), torch.float32, CPU)
    for own, sign in zip((p for p in params if p), signs, strict=True):
        for copy in own["W"].chunk(5):
            assert (copy * sign >= 0).all()
            assert (copy != 0).all()
    assert (params[0]["W"][:, 1] < 0).any()  # a free feature keeps both signs
    assert (params[0]["W"][:, 1] > 0).any()


class Outside(Callback):
    """Asks for an extrapolation that leaves the constraint."""

    def on_loop_end(self, trainer):
        method = trainer.method
        for old in method.previous:
            for name in old:
                old[name] = 10 * old[name] + 1
        self.moved = method._extrapolated(trainer.state.params, 0.9)


def test_extrapolated_weights_keep_the_signs():
    X = np.random.default_rng(0).normal(size=(60, 2))
    signs = weight_signs([2, 6, 1], [1, -1], [1])
    look = Outside()
    train(
        constrain(mlp([2, 6, 1]), signs), X, X[:, :1], loss="squared", mode="accelerated", max_iter=3,
        callbacks=[look], dtype="float64",
    )  # fmt: skip
    for own, sign in zip((p for p in look.moved if p), signs, strict=True):
        assert (own["W"] * sign >= 0).all()
        assert (own["W"] == 0).any()
