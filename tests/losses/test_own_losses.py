"""A loss from a function of one's own: H given or estimated, masks, errors."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from convergent import train
from dladmm import CallableLoss, InputError, mlp
from dladmm.api.train import EstimatedConstant
from dladmm.engine.certificate import Certificate
from dladmm.losses import estimated
from dladmm.losses.sampling import sampled_curvature
from dladmm.training.result import ConvergenceNotGuaranteed

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
        result = train(mlp([4, 8, 2]), X, Y, loss=half_square, max_iter=6)
    assert pytest.approx(2.0, rel=1e-3) == result.certificate.H
    assert result.certificate.certified, str(result.certificate)
    assert result.certificate.H_estimated
    assert "H = 2 was estimated" in str(result.certificate)
    assert Certificate.from_dict(result.certificate.to_dict()).H_estimated
    given = train(mlp([4, 8, 2]), X, Y, loss="squared", rho=6.0, max_iter=6)
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


def five_squares(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 5 * ((z - target) ** 2).sum(1)  # H is 10


def concave(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -half_square(z, target)


def wave(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.sin(z - target).sum(1)


def mostly_convex(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return half_square(z, target) - 0.8 * (z[:, 0] - target[:, 0]) * (z[:, 1] - target[:, 1]) * 1.5


class OwnHinge(CallableLoss):
    """A subclass is as much a loss of one's own as a function."""


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (CallableLoss(five_squares, H=1.0), "H = 1 is too small: a curvature of 10 "),
        (OwnHinge(five_squares, H=9.9), "H = 9.9 is too small: a curvature of 10 "),
        (CallableLoss(concave, H=1.0), r"not convex.* curvature of -1 "),
        (CallableLoss(wave, H=1.0), "not convex"),
        (CallableLoss(mostly_convex, H=3.0), r"not convex.* curvature of -0.2 "),
    ],
    ids=["H", "H by 1 %", "concave", "wave", "one direction"],
)
def test_a_loss_that_contradicts_what_is_said_of_it_is_not_certified(loss, words):
    with pytest.warns(ConvergenceNotGuaranteed, match=words):
        result = train(mlp([4, 3, 2]), X, Y, loss=loss, rho=30.0, max_iter=2, dtype="float64")
    certificate = result.certificate
    assert not certificate.certified
    assert not certificate.covered
    text = str(certificate)
    assert re.search(words, text.split("\n")[0]), text
    assert "guaranteed at every iteration" not in text
    assert "critical points" not in text
    assert str(Certificate.from_dict(certificate.to_dict())) == text


@pytest.mark.parametrize(("fn", "true"), [(half_square, 1.0), (smooth_distance, 1.0), (logistic, 0.25)])
@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_a_right_constant_is_never_contradicted(fn, true, scale):
    found = sampled_curvature(CallableLoss(fn, H=true), torch.from_numpy(scale * np.abs(Y)))
    assert found.fits(true), found
    if scale == 1.0:
        assert found.largest > 0.95 * true


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_row_weights_count_in_the_sampled_curvature():
    with pytest.warns(ConvergenceNotGuaranteed, match="H = 1 is too small: a curvature of 10 "):
        result = train(
            mlp([4, 3, 2]), X, Y, loss=CallableLoss(five_squares, H=1.0), max_iter=1, target_mask=[True] * 60
        )
    assert result.certificate.sampled.largest == pytest.approx(10, rel=1e-3)


def test_a_loss_that_knows_float32_only_is_refused_before_training():
    matrix = torch.eye(2)
    loss = CallableLoss(lambda z, target: half_square((z - target) @ matrix, 0 * target), H=1.0)
    with pytest.raises(InputError, match=r"fails on float64 .* z\.new_tensor"):
        train(mlp([4, 3, 2]), X, Y, loss=loss, max_iter=1)
