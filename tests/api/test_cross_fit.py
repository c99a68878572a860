"""Cross-fitted copies: what is found out of fold reaches the merged network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dladmm.api.cross_fit import fit_cross_fitted
from dladmm.callbacks.out_of_fold import OutOfFold
from dladmm.losses import get_loss

pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), np.arange(40) % 3


def outputs(**settings):
    found = fit_cross_fitted(
        [3, 4, 3],
        "relu",
        X,
        Y,
        loss=get_loss("cross_entropy"),
        seed=0,
        device=torch.device("cpu"),
        passes=2,
        **settings,
    ).result
    with torch.no_grad():
        return found.module(torch.from_numpy(X))


def test_the_sharpness_out_of_fold_is_that_of_the_network(monkeypatch):
    found = []
    for sharpness in (1.0, 2.0):
        monkeypatch.setattr(
            OutOfFold, "on_loop_end", lambda self, _, s=sharpness: setattr(self, "sharpness", s)
        )
        found.append(outputs())
    assert torch.allclose(found[1], 2 * found[0])


def test_only_ratios_of_weights_count():
    weight = RNG.uniform(0.5, 2.0, len(Y))
    assert torch.allclose(outputs(sample_weight=weight), outputs(sample_weight=1000 * weight), atol=1e-5)
