"""Where a linear model explains the classes, first and last layers of cross-fitted networks start larger."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot

from dladmm import MLPClassifier
from dladmm.api import cross_fit
from dladmm.api.cross_fit import PROBE_PENALTY, edge_scale_for, linear_share
from dladmm.network.ensemble import EDGE_SCALE


def table(n_rows: int, n_features: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Features, and three classes by the largest of the first three with noise."""
    generator = torch.Generator().manual_seed(n_rows + n_features)
    x = torch.randn(n_rows, n_features, dtype=torch.float64, generator=generator)
    noisy = x[:, :3] + noise * torch.randn(n_rows, 3, dtype=torch.float64, generator=generator)
    return x, one_hot(noisy.argmax(1), 3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_features", [5, 40])
def test_every_row_is_judged_by_a_fit_to_the_others(n_features, weighted):
    x, y = table(20, n_features, 0.1)
    weight = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)[:, None] if weighted else torch.ones(20, 1)
    w = (weight / weight.mean()).double()
    a, t = (w.sqrt() * (each - (w * each).mean(0)) for each in (x, y.double()))
    left = 0.0
    for i in range(20):
        others = torch.arange(20) != i
        ridge = PROBE_PENALTY * 20 * torch.eye(n_features, dtype=torch.float64)
        B = torch.linalg.solve(a[others].T @ a[others] + ridge, a[others].T @ t[others])
        left += float((t[i] - a[i] @ B).square().sum())
    found = linear_share(x, y, weight if weighted else None)
    assert found == pytest.approx(1 - left / float(t.square().sum()), abs=1e-10)


def test_a_target_without_spread_is_not_explained():
    assert linear_share(torch.rand(9, 2), torch.ones(9, 1)) == 0.0


def test_clean_classes_start_larger():
    x, y = table(1200, 4, 0.05)
    assert edge_scale_for(x, y, "classification") == 1.0
    assert edge_scale_for(x, y, "classification", torch.ones(1200, 1)) == 1.0
    assert edge_scale_for(x, y, "regression") == EDGE_SCALE
    assert edge_scale_for(x[:60], y[:60], "classification") == EDGE_SCALE
    assert edge_scale_for(*table(1200, 4, 3.0), "classification") == EDGE_SCALE


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize(("noise", "expected"), [(0.05, 1.0), (3.0, EDGE_SCALE)])
def test_a_fit_starts_with_it(monkeypatch, noise, expected):
    seen = []
    drawn = cross_fit.ensemble_parameters
    monkeypatch.setattr(
        cross_fit, "ensemble_parameters", lambda *given: seen.append(given[4]) or drawn(*given)
    )
    x, y = table(120, 4, noise)
    MLPClassifier((4,), max_iter=1, device="cpu", random_state=0).fit(1e6 * x.numpy(), y.argmax(1).numpy())
    assert seen == [expected]
