"""The engine on a chain of graph blocks equals the literal Algorithm 5, variable by variable."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from graph_problems import graph_engine, random_graph
from reference_gcn import ReferenceGCN

LITERAL = {"w_solver": "quadratic", "a_solver": "quadratic", "alpha0": 1.0, "t0": 1.0}


def paired(depth, *, rho, mu, lam, kind="factors", seed=0, n=31, hidden=None):
    rng = np.random.default_rng(seed)
    widths = [6, *(hidden or rng.integers(4, 9, depth - 1).tolist()), 3]
    pairs, x, y, labelled = random_graph(rng, n, widths[0], 3)
    W = [rng.normal(size=(i, o)) * 0.5 for i, o in pairwise(widths)]
    reference = ReferenceGCN(pairs, x, y, labelled, W, rho, mu, lam)
    regularizer = {"name": "l2", "strength": lam} if lam else None
    engine = graph_engine(pairs, x, y, labelled, widths, kind=kind, regularizer=regularizer, **LITERAL)
    params = [{"W": torch.from_numpy(w.T.copy())} for w in W]
    return reference, engine, engine.feasible_state(params, rho, mu)


def largest_difference(reference, state):
    pairs = [
        *((w.T, actual) for w, actual in zip(reference.W[1:], state.W, strict=True)),
        *zip(reference.Z[1:], state.z, strict=True),
        (reference.U, state.u),
    ]
    return max(np.abs(expected - actual.numpy()).max() for expected, actual in pairs)


def run(reference, engine, state, iterations=5):
    assert largest_difference(reference, state) < 1e-12
    for _ in range(iterations):
        reference.iterate()
        engine.sweep(state)
    assert largest_difference(reference, state) < 1e-8
    assert float(engine.energy(state).lagrangian) == pytest.approx(reference.lagrangian(), rel=1e-9)


@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("rho", [1e-3, 0.05, 1.5, 20.0])
@pytest.mark.parametrize("mu", [0.01, 1.0])
@pytest.mark.parametrize("depth", [2, 3])
def test_five_iterations_agree(depth, rho, mu, lam):
    run(*paired(depth, rho=rho, mu=mu, lam=lam))


@pytest.mark.parametrize("kind", ["factors", "dense factors", "product", "dense product"])
@pytest.mark.parametrize("hidden", [[3, 9], [9, 2]])
def test_every_form_of_the_input_and_order_of_products_agrees(kind, hidden):
    run(*paired(3, rho=1.5, mu=0.5, lam=0.1, kind=kind, hidden=hidden, seed=3))


def test_cached_predictions_follow_every_update():
    _, engine, state = paired(3, rho=1.5, mu=1.0, lam=0.1)
    for _ in range(20):
        engine.sweep(state)
    for cached, raw in zip(state.predictions, engine.raw_predictions(state), strict=True):
        assert torch.allclose(cached, raw, atol=1e-10)
