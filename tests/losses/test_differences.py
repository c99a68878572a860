"""Every loss, weights and settings included, by differences of its own values: gradient, curvature, H, prox, risk."""

from __future__ import annotations

import pytest
import torch

from dladmm.losses import (
    Absolute,
    BinaryLogistic,
    CrossEntropy,
    Huber,
    Loss,
    Multilabel,
    Poisson,
    Quantile,
    Risk,
    Squared,
    SquaredHinge,
)

F64 = torch.float64
EVERY = [
    CrossEntropy(), CrossEntropy((1.0, 4.0, 0.5), 0.1), BinaryLogistic(), BinaryLogistic((2.0, 1.0, 3.0)), Multilabel(),
    SquaredHinge(), Squared(), Huber(0.5), Absolute(0.3), Quantile(0.8, 0.2), Poisson(3.0),
]  # fmt: skip
every = pytest.mark.parametrize("loss", EVERY, ids=str)


def problem(loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets (25, 3)."""
    draw = torch.Generator().manual_seed(3)
    z = 2 * torch.randn(25, 3, generator=draw, dtype=F64)
    labels = torch.randint(3, (25,), generator=draw)
    if loss.name == "multilabel":
        return z, loss.encode(torch.randint(2, (25, 3), generator=draw), 3, F64)
    if loss.name == "poisson":
        return z, torch.poisson(torch.full_like(z, 3.0), generator=draw)
    if loss.kind == "regression":
        return z, torch.randn(25, 3, generator=draw, dtype=F64)
    return z, loss.encode(labels, 3, F64)


@every
def test_gradients_are_differences_of_values(loss: Loss) -> None:
    z, target = problem(loss)
    for column in range(3):
        step = torch.zeros_like(z)
        step[:, column] = 1e-6
        slope = (loss.rows(z + step, target) - loss.rows(z - step, target)) / 2e-6
        torch.testing.assert_close(loss.gradient(z, target)[:, column], slope, rtol=0, atol=1e-7)


@every
def test_curvatures_are_differences_of_gradients_or_bounds_on_them(loss: Loss) -> None:
    z, target = problem(loss)
    d = torch.randn(25, 3, generator=torch.Generator().manual_seed(5), dtype=F64)
    change = loss.gradient(z + 1e-6 * d, target) - loss.gradient(z - 1e-6 * d, target)
    found, true = loss.curvature(z, target, d), (d * change).sum(1) / 2e-6
    if loss.name in ("cross_entropy", "binary_logistic", "multilabel", "poisson", "squared"):
        torch.testing.assert_close(found, true, rtol=1e-6, atol=1e-7)
    assert bool((found >= true - 1e-6).all())
    assert bool((true <= loss.H * d.square().sum(1) + 1e-6).all())


@every
@pytest.mark.parametrize("r", [0.05, 3.0])
def test_the_prox_is_optimal_with_one_r_and_with_one_per_row(loss: Loss, r: float) -> None:
    v, target = problem(loss)
    z = loss.prox(v, target, r)
    torch.testing.assert_close(loss.gradient(z, target), r * (v - z), rtol=1e-7, atol=1e-8)
    each = torch.linspace(0.1, 4.0, 25, dtype=F64)[:, None]
    z = loss.prox(v, target, each)
    torch.testing.assert_close(loss.gradient(z, target), each * (v - z), rtol=1e-7, atol=1e-8)


@every
def test_H_is_attained_or_nearly(loss: Loss) -> None:
    """A bound that is too large would be safe, and rho = 3H would take steps that are too short."""
    z = torch.zeros(1, 3, dtype=F64)
    starts = {
        "poisson": z + 10, "squared_hinge": z, "cross_entropy": torch.tensor([[10.0, 10.0, -30.0]], dtype=F64),
    }  # fmt: skip
    z = starts.get(loss.name, z)
    found = 0.0
    for label in range(3):
        target = torch.eye(3, dtype=F64)[[label]]
        if loss.name in ("squared_hinge",):
            target = 2 * target - 1
        if loss.kind == "regression":
            target = z.clone() - 1e-6 * (-1) ** label
        for direction in (*torch.eye(3, dtype=F64), torch.tensor([1.0, -1.0, 0.0], dtype=F64) / 2**0.5):
            change = loss.gradient(z + 1e-7 * direction, target) - loss.gradient(z, target)
            found = max(found, float((direction * change).sum()) / 1e-7)
    if loss.name == "cross_entropy" and loss.class_weight is not None:
        assert found <= loss.H * (1 + 1e-5)  # smoothed: a whole target of the heaviest class does not occur
        assert found > 0.4 * loss.H
    else:
        assert found == pytest.approx(loss.H, rel=1e-3)


def test_a_risk_weighs_rows_and_leaves_out_those_of_weight_zero() -> None:
    loss = CrossEntropy()
    z, target = problem(loss)
    weight = (torch.arange(25) % 4).to(F64)[:, None] * 1.5
    risk = Risk(loss, target, weight)
    expected = float((loss.rows(z, target)[:, None] * weight).sum())
    assert float(risk.value(z)) == pytest.approx(expected, rel=1e-12)
    assert float(risk.by_sample(z).sum()) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(risk.gradient(z), loss.gradient(z, target) * weight)
    assert pytest.approx(0.5 * 4.5) == risk.H
    assert risk.n_labelled() == float((weight > 0).sum())
    found = risk.prox(z, 0.7)
    torch.testing.assert_close(risk.gradient(found), 0.7 * (z - found), rtol=1e-7, atol=1e-8)
    assert torch.equal(found[weight[:, 0] == 0], z[weight[:, 0] == 0])
    d = torch.randn_like(z)
    torch.testing.assert_close(risk.curvature(z, d), loss.curvature(z, target, d) * weight[:, 0])


@pytest.mark.parametrize("loss", [Squared(), Huber(0.5), CrossEntropy()], ids=str)
def test_fista_finds_what_the_closed_form_does(loss: Loss) -> None:
    v, target = problem(loss)
    exact, searched = (Risk(loss, target, None, how).prox(v, 0.4) for how in ("auto", "fista"))
    torch.testing.assert_close(searched, exact, rtol=0, atol=1e-6)
