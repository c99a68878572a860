"""Activations at and around their kinks, and everywhere else on a coarse net of points: brute force, differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from dladmm.activations import (
    ELU,
    Activation,
    HardTanh,
    Identity,
    LeakyReLU,
    PiecewiseLinear,
    Quantised,
    ReLU,
    Sigmoid,
    Sign,
    Softplus,
    Step,
    Tanh,
)
from dladmm.activations.piecewise import Piece, _below

F64 = torch.float64


@dataclass(frozen=True)
class Steeper(PiecewiseLinear):
    """z/2 up to 1, 2 z - 3/2 from there on: a sloped piece with an intercept, as one's own may have."""

    name: ClassVar[str] = "steeper"

    def pieces(self) -> list[Piece]:
        return [Piece(-float("inf"), 0.5, 0.0), Piece(1.0, 2.0, -1.5)]

    def module(self) -> nn.Module:
        class Module(nn.Module):
            def forward(self, z):
                return torch.where(z > 1, 2 * z - 1.5, z / 2)

        return Module()


EVERY = [
    ReLU(), LeakyReLU(0.1), LeakyReLU(-0.5), Identity(), HardTanh(), Sigmoid(), Tanh(), Softplus(), ELU(0.7), ELU(2.0),
    Sign(), Step(), Quantised(5, -1.0, 2.0), Steeper(),
]  # fmt: skip
CONTINUOUS = [f for f in EVERY if f.continuous]
KINKS = {"relu": [0.0], "leaky_relu": [0.0], "hard_tanh": [-1.0, 1.0], "elu": [0.0], "steeper": [1.0]}


def objective(f: Activation, z, m, a, weight):
    return (z - m) ** 2 + weight * (a - f(z)) ** 2


def net(low: float, high: float, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    line = torch.linspace(low, high, n, dtype=F64)
    m, a = torch.meshgrid(line, line, indexing="ij")
    return m.flatten(), a.flatten()


@pytest.mark.parametrize("f", EVERY, ids=str)
@pytest.mark.parametrize("weight", [0.3, 8.0, 200.0])
def test_no_point_of_a_fine_grid_is_better(f: Activation, weight: float) -> None:
    m, a = net(-6.0, 6.0, 13)
    grid = torch.linspace(-20, 20, 8001, dtype=F64)
    best = torch.stack([objective(f, grid, *pair, weight).min() for pair in zip(m, a, strict=True)])
    for found in (f.argmin(m, a, weight), f.project(m, a, weight)):
        assert bool((objective(f, found, m, a, weight) <= best + 1e-9).all())


@pytest.mark.parametrize("f", CONTINUOUS, ids=str)
def test_derivatives_are_torchs_at_kinks_too(f: Activation) -> None:
    z = torch.tensor([-2.5, -0.3, 0.4, 3.0, *KINKS.get(f.name, [])], dtype=F64, requires_grad=True)
    (expected,) = torch.autograd.grad(f.module()(z).sum(), z)
    if f.name in ("relu", "hard_tanh"):
        torch.testing.assert_close(f.derivative(z.detach()), expected)
    else:
        torch.testing.assert_close(f.derivative(z.detach())[:4], expected[:4])
    ones = torch.ones_like(expected)
    torch.testing.assert_close(f.times_derivative(z.detach(), 2 * ones), 2 * f.derivative(z.detach()))


@pytest.mark.parametrize("f", CONTINUOUS, ids=str)
@pytest.mark.parametrize("weight", [0.3, 8.0])
def test_the_distance_to_the_subdifferential_is_that_of_one_sided_differences(
    f: Activation, weight: float
) -> None:
    m, a = net(-2.0, 2.0, 6)
    step = 1e-7
    for place in (-2.5, -0.3, 0.4, 3.0, *KINKS.get(f.name, [])):
        z = torch.full_like(m, place)
        here = objective(f, z, m, a, weight) / 2
        right = (objective(f, z + step, m, a, weight) / 2 - here) / step
        left = (here - objective(f, z - step, m, a, weight) / 2) / step
        convex = torch.maximum(left, -right).clamp_min(0)
        expected = torch.where(left <= right, convex, torch.minimum(left.abs(), right.abs()))
        if place not in KINKS.get(f.name, []):
            expected = (left + right).abs() / 2
        torch.testing.assert_close(f.stationarity(z, m, a, weight), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("f", [Sigmoid(), Tanh(), Softplus()], ids=str)
def test_jets_are_three_derivatives(f) -> None:
    z = torch.linspace(-3, 3, 13, dtype=F64)
    jet = f.jet(z)
    torch.testing.assert_close(jet.f, f(z))
    for lower, higher in (("f", "f1"), ("f1", "f2")):
        slope = (getattr(f.jet(z + 1e-6), lower) - getattr(f.jet(z - 1e-6), lower)) / 2e-6
        torch.testing.assert_close(getattr(jet, higher), slope, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_number_below_is_not_subnormal(dtype):
    tiny = torch.finfo(dtype).tiny
    assert [_below(x, dtype) for x in (tiny, tiny / 2, 0.0, -tiny / 2)] == [0.0, 0.0, -tiny, -tiny]
    assert _below(1.0, dtype) == 1 - torch.finfo(dtype).eps / 2
