"""A one-layer network is a convex problem: dlADMM reaches scikit-learn's solution."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from convergent import train
from dladmm import mlp


def test_ridge():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    y = X @ rng.normal(size=(6, 2)) + 0.1 * rng.normal(size=(120, 2))
    lam = 3.0
    result = train(
        mlp([6, 2]), X, y, loss="squared", regularizer={"name": "l2", "strength": lam}, dtype="float64",
        max_iter=2000, eps_abs=1e-12, eps_rel=1e-12, damping=0.0,
    )  # fmt: skip
    # (1/2)||y - z||^2 + (lam/2)||W||^2 is half of scikit-learn's objective with alpha = lam
    expected = Ridge(alpha=lam).fit(X, y)
    assert np.allclose(result.state.W[0].numpy(), expected.coef_, atol=1e-6)
    assert np.allclose(result.state.b[0].numpy(), expected.intercept_, atol=1e-6)
    assert result.certificate.certified


@pytest.mark.parametrize("solver", ["exact", "quadratic"])
def test_multinomial_logistic_regression(solver):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 4))
    y = np.argmax(X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(60, 3)), axis=1)
    lam = 10.0
    result = train(
        mlp([4, 3]), X, y, regularizer={"name": "l2", "strength": lam}, dtype="float64", w_solver=solver,
        max_iter=1000, eps_abs=1e-8, eps_rel=1e-8, damping=0.0, diagnostics_every=20,
    )  # fmt: skip
    expected = LogisticRegression(C=1 / lam, tol=1e-10, max_iter=10_000).fit(X, y)
    ours = result.state.W[0].numpy()
    assert np.allclose(ours, expected.coef_, atol=1e-5)
    # the softmax does not see a common shift of the intercepts
    shift = result.state.b[0].numpy() - expected.intercept_
    assert np.ptp(shift) < 1e-5
