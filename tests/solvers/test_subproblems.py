"""Backtracking in closed form, safe norms, guarded factorisations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dladmm.base.errors import InputError
from dladmm.compute import execution
from dladmm.compute.passes import ranged_squared_norm, ratio, squared_norm, unit
from dladmm.solvers.factor import damped_cholesky, full_precision_gram, inverse_of_triangular
from dladmm.solvers.subproblems import SubproblemOptions, backtracked


@given(
    seed=st.integers(0, 10_000),
    start=st.floats(1e-4, 1e2),
    growth=st.floats(1.1, 5.0),
    c=st.floats(1e-3, 1e2),
)
def test_closed_form_equals_the_loop_over_phi(seed, start, growth, c):
    """On a random quadratic phi(W) = (c/2)||A W^T - t||^2, loop and closed form stop at the same alpha."""
    rng = np.random.default_rng(seed)
    A, t, W = rng.normal(size=(7, 4)), rng.normal(size=(7, 3)), rng.normal(size=(3, 4))

    def phi(X):
        return c / 2 * np.sum((A @ X.T - t) ** 2)

    gradient = c * (A @ W.T - t).T @ A
    required = c * np.sum((A @ gradient.T) ** 2) / np.sum(gradient**2)
    ratios = required / (start * growth ** np.arange(60))
    assume(np.abs(ratios - 1).min() > 1e-9)
    alpha = start
    for _ in range(200):
        zeta = W - gradient / alpha
        P = phi(W) + np.sum(gradient * (zeta - W)) + alpha / 2 * np.sum((zeta - W) ** 2)
        if phi(zeta) <= P + 1e-12 * abs(phi(W)):
            break
        alpha *= growth
    closed = float(backtracked(torch.tensor(required, dtype=torch.float64), start, growth))
    assert closed == pytest.approx(alpha, rel=1e-9)


@given(required=st.floats(0, 1e12), start=st.floats(1e-6, 1e6), growth=st.floats(1.01, 10))
def test_closed_form_is_the_smallest_power_that_reaches(required, start, growth):
    found = float(backtracked(torch.tensor(required, dtype=torch.float64), start, growth))
    assert found >= required * (1 - 1e-12)
    assert found == start or found / growth < required * (1 + 1e-9)


def test_tight_start_returns_the_requirement():
    assert float(backtracked(torch.tensor(3.7, dtype=torch.float64), None, 2.0)) == 3.7


def test_squared_norm_is_right_where_float32_sums_are_not():
    x = torch.randn(20_000, 300, generator=torch.Generator().manual_seed(0))
    exact = float(x.double().square().sum())
    assert float(squared_norm(x)) == pytest.approx(exact, rel=1e-6)
    assert squared_norm(x).dtype == torch.float64


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
@pytest.mark.parametrize("cached", [6, 1 << 18])
def test_squares_beyond_float32_are_added_in_parts_or_at_once(monkeypatch, scale, cached):
    monkeypatch.setattr(execution, "CACHED", cached)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * scale
    for entries in (x, -x.abs(), x.abs(), x.reshape(5, 10, 3)):
        exact = float(entries.double().square().sum())
        assert float(ranged_squared_norm(entries)) == pytest.approx(exact, rel=1e-6)
        scaled, power = unit(entries)
        assert torch.equal(scaled * power, entries)
        assert 0.5 <= float(scaled.abs().max()) < 1
    assert float(ranged_squared_norm(x[0])) == pytest.approx(float(x[0].double().square().sum()), rel=1e-6)
    assert float(ranged_squared_norm(x[:0])) == 0.0
    x[7, 1] = torch.nan
    assert ranged_squared_norm(x).isnan()


def test_ratio_guards_zero():
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    assert float(ratio(one, zero, 5.0)) == 5.0
    assert float(ratio(one, one * 4)) == 0.25


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_damped_cholesky_factors_singular_grams(rank):
    generator = torch.Generator().manual_seed(rank)
    a = torch.randn(30, rank, generator=generator, dtype=torch.float64) @ torch.randn(
        rank, 6, generator=generator, dtype=torch.float64
    )
    gram = a.T @ a
    factor, delta = damped_cholesky(gram, 0.0, torch.float64)
    assert torch.isfinite(factor).all()
    assert float(delta) > 0
    assert torch.allclose(factor @ factor.T, gram + delta * torch.eye(6, dtype=torch.float64), atol=1e-9)


def test_damped_cholesky_survives_an_indefinite_matrix():
    factor, delta = damped_cholesky(-torch.eye(3, dtype=torch.float64), 0.0, torch.float64)
    assert torch.isfinite(factor).all()
    assert float(delta) > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("w_solver", "newton"),
        ("a_solver", None),
        ("alpha0", 0.0),
        ("t0", float("nan")),
        ("growth", 1.0),
        ("damping", -1.0),
        ("max_backtracks", 0),
    ],
)
def test_options_check_themselves(field, value):
    with pytest.raises(InputError, match=field):
        SubproblemOptions(**{field: value})


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130, 300])
def test_a_triangular_inverse_by_products_is_the_inverse(n):
    L = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).tril()
    L.diagonal().abs_().add_(1).mul_(n**0.5)
    eye = torch.eye(n, dtype=torch.float64)
    found = inverse_of_triangular(L)
    torch.testing.assert_close(found, torch.linalg.solve_triangular(L, eye, upper=False))
    torch.testing.assert_close(found @ L, eye)


@pytest.mark.parametrize("n", [511, 512, 600, 1024])
@pytest.mark.parametrize("counted", [False, True])
def test_a_gram_matrix_by_stripes_is_the_gram_matrix(n, counted):
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(40, n, generator=generator, dtype=torch.float64)
    rows = torch.rand(40, 1, generator=generator, dtype=torch.float64) if counted else None
    found = full_precision_gram(a, rows)
    torch.testing.assert_close(found, a.T @ (a if rows is None else a * rows))
