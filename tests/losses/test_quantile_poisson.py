"""The absolute error, the pinball loss and the Poisson deviance: what they measure and what they are minimised by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_poisson_deviance

from dladmm.base.errors import InputError
from dladmm.losses import Absolute, Loss, Poisson, Quantile, get_loss


def column(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))[:, None]


def test_values_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, z = rng.normal(size=300), rng.normal(size=300)
    narrow = 1e-7
    absolute = Absolute(narrow).rows(column(z), column(y)).mean()
    assert float(absolute) == pytest.approx(mean_absolute_error(y, z), abs=1e-6)
    pinball = Quantile(0.8, narrow).rows(column(z), column(y)).mean()
    assert float(pinball) == pytest.approx(mean_pinball_loss(y, z, alpha=0.8), abs=1e-6)
    counts = rng.poisson(3.0, 300).astype(float)
    half = Poisson().rows(column(z), column(counts)).mean()
    assert float(half) == pytest.approx(mean_poisson_deviance(counts, np.exp(z)) / 2)


def best_constant(loss: Loss, y: np.ndarray, low: float, high: float) -> float:
    tried = torch.linspace(low, high, 4001, dtype=torch.float64)
    values = torch.stack([loss.rows(z.expand(len(y), 1), column(y)).sum() for z in tried])
    return float(tried[values.argmin()])


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_best_constant_is_the_quantile(q: float) -> None:
    y = np.random.default_rng(1).gumbel(size=4001)
    assert best_constant(Quantile(q), y, -4, 8) == pytest.approx(np.quantile(y, q), abs=0.03)


def test_the_best_constant_is_the_median_or_the_mean() -> None:
    rng = np.random.default_rng(2)
    y = rng.gumbel(size=4001)
    assert best_constant(Absolute(), y, -4, 8) == pytest.approx(np.median(y), abs=0.02)
    counts = rng.poisson(2.5, 2000).astype(float)
    assert np.exp(best_constant(Poisson(), counts, -2, 3)) == pytest.approx(counts.mean(), rel=1e-3)


@pytest.mark.parametrize("loss", [Absolute(), Absolute(0.5), Quantile(0.9), Quantile(0.2)], ids=str)
def test_the_curvature_is_that_of_a_parabola_above_the_loss(loss: Loss) -> None:
    rng = np.random.default_rng(3)
    z, y, d = (column(rng.normal(size=2000)) for _ in range(3))
    if isinstance(loss, Quantile):  # the weight changes at zero, where no parabola touches both branches
        d = torch.where((z - y).sign() == (z + d - y).sign(), d, torch.zeros_like(d))
    slope = (loss.gradient(z, y) * d).sum(1)
    above = loss.rows(z, y) + slope + loss.curvature(z, y, d) / 2
    assert (loss.rows(z + d, y) <= above + 1e-12).all()
    assert (loss.curvature(z, y, d) <= (1 + 1e-12) * loss.H * d.square().sum(1)).all()


def test_the_curvature_of_counts_is_their_expectation() -> None:
    z, d = torch.linspace(-3, 3, 50, dtype=torch.float64)[:, None], torch.ones(50, 1, dtype=torch.float64)
    y, h = torch.ones_like(z), 1e-4
    measured = (Poisson().gradient(z + h, y) - Poisson().gradient(z - h, y)) / (2 * h)
    torch.testing.assert_close(Poisson().curvature(z, y, d), measured[:, 0], rtol=1e-6, atol=1e-8)


def test_units_of_counts_move_the_last_bias_alone() -> None:
    y = column(np.random.default_rng(4).poisson(40.0, 500))
    units = Poisson().units(y)
    assert float(units.apply(y).mean()) == pytest.approx(1.0)
    (folded,) = units.fold([{"W": torch.ones(1, 2).double(), "b": torch.zeros(1).double()}])
    assert (folded["W"] == 1).all()
    assert float(folded["b"].exp()) == pytest.approx(float(y.mean()))
    assert float(Poisson().decision(folded["b"][None])) == pytest.approx(float(y.mean()))


def test_predictions_of_counts_stay_finite() -> None:
    assert Poisson().decision(torch.tensor([[1e4]])).isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Poisson().encode(torch.tensor([1.0, -1.0]), 1, torch.float64), "y must be 0 or more"),
        (lambda: Poisson().units(torch.zeros(5, 1)), "nothing but zeros"),
        (lambda: Quantile(1.0), "q must lie between 0 and 1"),
        (lambda: Quantile(0.0), "q must be a finite number > 0"),
        (lambda: Absolute(0.0), "width must be"),
        (lambda: get_loss({"name": "quantile", "alpha": 0.9}), "has no parameter 'alpha'; allowed: q, width"),
    ],
)
def test_errors(make, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_the_least_poisson_deviance_is_zero_on_both_sides_of_the_cap() -> None:
    loss, y = Poisson(cap=4.0), column(np.array([0.0, 0.5, 3.9, 4.0, 4.1, 9.0, 80.0]))
    best = torch.where(y <= 4, y.clamp_min(1e-300).log(), np.log(4.0) + (y - 4) / 4)
    torch.testing.assert_close(loss.rows(best, y), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-10)
    for apart in (-3.0, -0.1, 0.1, 3.0):
        assert (loss.rows(best + apart, y) >= 0).all()
