"""A loss from a function of one's own: H given or estimated, masks, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convergent import train
from dladmm import CallableLoss, InputError, mlp
from dladmm.api.train import EstimatedConstant
from dladmm.engine.certificate import Certificate
from dladmm.losses import estimated

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ RNG.normal(size=(4, 2)) + 0.1 * RNG.normal(size=(60, 2))


def half_square(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * ((z - target) ** 2).sum(1)


def smooth_distance(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (1 + ((z - target) ** 2).sum(1)).sqrt()


def logistic(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(z).sum(1) - (z * target).sum(1)


@pytest.mark.parametrize(("fn", "true"), [(half_square, 1.0), (smooth_distance, 1.0), (logistic, 0.25)])
def test_the_estimate_is_twice_the_curvature(fn, true):
    H = estimated(CallableLoss(fn), torch.from_numpy(np.abs(Y))).H
    assert true <= H <= 2.02 * true


def test_a_function_is_a_loss_whose_constant_is_estimated_and_said():
    with pytest.warns(EstimatedConstant, match="H of the loss was not given and is estimated as 2"):
        result = train(mlp([4, 8, 2]), X, Y, loss=half_square, max_iter=20)
    assert pytest.approx(2.0, rel=1e-3) == result.certificate.H
    assert result.certificate.certified, str(result.certificate)
    assert result.certificate.H_estimated
    assert "H = 2 was estimated" in str(result.certificate)
    assert Certificate.from_dict(result.certificate.to_dict()).H_estimated
    given = train(mlp([4, 8, 2]), X, Y, loss="squared", rho=6.0, max_iter=20)
    assert not given.certificate.H_estimated
    assert "estimated" not in str(given.certificate)
    assert result.history["loss"][-1] == pytest.approx(given.history["loss"][-1], rel=1e-2)


def test_a_loss_without_curvature_needs_a_constant():
    with pytest.raises(InputError, match="could not be estimated"):
        train(mlp([4, 8, 2]), X, Y, loss=lambda z, target: (z * target).sum(1))


def test_masked_rows_do_not_count():
    mask = np.arange(60) % 3 > 0
    wrong = np.where(mask[:, None], Y, 100.0)
    kept = train(mlp([4, 8, 2]), X, Y, loss="squared", target_mask=mask, max_iter=10)
    other = train(mlp([4, 8, 2]), X, wrong, loss="squared", target_mask=mask, max_iter=10)
    assert kept.history["lagrangian"] == other.history["lagrangian"]
    assert kept.history["loss"] == other.history["loss"]
    weighted = train(
        mlp([4, 8, 2]), X, wrong, loss="squared", target_mask=mask, sample_weight=1 + np.arange(60) % 2, max_iter=10,
        validation=(X, wrong, mask),
    )  # fmt: skip
    assert weighted.certificate.certified
    assert weighted.history["val_loss"][-1] < 10.0
