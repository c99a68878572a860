"""What Section 4 of the paper promises, on many random problems."""

from __future__ import annotations

import math

import pytest
import torch

from dladmm.engine.sweep import last_layer_rate
from problems import random_problem

ACTIVATIONS = [
    "relu", "leaky_relu", "identity", "hard_tanh", "sigmoid", "tanh", "softplus", "elu", "gelu", "sign", "step",
    "quantised",
]  # fmt: skip
LOSSES = ["cross_entropy", "squared", "binary_logistic", "huber", "squared_hinge"]
REGULARIZERS = [
    None,
    {"name": "l2", "strength": 0.1},
    {"name": "l1", "strength": 0.05},
    {"name": "elastic_net", "l1": 0.05, "l2": 0.1},
    {"name": "non_negative"},
]
SOLVERS = [
    {"w_solver": "quadratic", "a_solver": "quadratic", "alpha0": 1.0, "t0": 1.0},
    {"w_solver": "quadratic", "a_solver": "quadratic"},
    {"w_solver": "quadratic", "a_solver": "quadratic", "tau_per_sample": True},
    {"w_solver": "exact", "a_solver": "exact", "damping": 0.1},
    {"w_solver": "exact", "a_solver": "quadratic", "damping": 0.0},
]


def descents(engine, state, iterations):
    """(actual fall, promised fall, magnitude) of every iteration."""
    before = engine.energy(state)
    rows = []
    for _ in range(iterations):
        steps = [s for s in engine.sweep(state) if s.rate is not None]
        after = engine.energy(state)
        moved = [float(s.rate) for s in steps if float(s.squared) > 0]
        promised = min(moved, default=0.0) * sum(float(s.squared) for s in steps)
        rows.append(
            (float(before.lagrangian - after.lagrangian), promised, abs(float(before.lagrangian)) + 1)
        )
        before = after
    return rows


@pytest.mark.parametrize("batch", range(10))
def test_property_2_holds_on_200_random_problems(batch):
    """rho > 2H, float64: the Lagrangian falls by at least C2 times the squared steps, at every iteration."""
    for seed in range(20 * batch, 20 * (batch + 1)):
        engine, state = random_problem(
            seed,
            activation=ACTIVATIONS[seed % len(ACTIVATIONS)],
            loss=LOSSES[(seed // 2) % len(LOSSES)],
            regularizer=REGULARIZERS[(seed // 3) % len(REGULARIZERS)],
            rho_factor=[2.01, 3.0, 10.0][seed % 3],
            nu=[0.01, 1.0, 5.0][(seed // 5) % 3],
            **SOLVERS[(seed // 7) % len(SOLVERS)],
        )
        for k, (fall, promised, scale) in enumerate(descents(engine, state, 6)):
            assert fall >= promised - 1e-10 * scale, f"seed {seed}, iteration {k + 1}: {fall} < {promised}"


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("solver", SOLVERS[:4])
def test_lemma_2_and_stationarity_fall(activation, solver):
    engine, state = random_problem(
        5, activation=activation, depth=3, samples=30, regularizer={"name": "l2", "strength": 0.1}, **solver
    )
    engine.sweep(state)
    first = float(engine.stationarity(state))
    for _ in range(40):
        engine.sweep(state)
    assert math.sqrt(float(engine.dual_optimality(state))) < 1e-7
    assert float(engine.stationarity(state)) < first


def test_last_layer_constant_is_positive_exactly_above_2H():
    H = 0.5
    assert last_layer_rate(2 * H, H) == pytest.approx(0.0)
    assert last_layer_rate(2 * H * 1.001, H) > 0
    assert last_layer_rate(2 * H * 0.999, H) < 0


def test_far_below_2H_the_lagrangian_rises():
    rises = 0
    for seed in range(10):
        engine, state = random_problem(seed, depth=2, samples=30, rho_factor=1e-3, nu=1e-3)
        rises += any(fall < -1e-6 * scale for fall, _, scale in descents(engine, state, 30))
    assert rises >= 5


def lagrangian_of(engine, state):
    """L_rho as one differentiable expression of every variable, written straight from Equation 1."""
    blocks = engine.chain.blocks
    inputs = [engine.x, *state.outputs[:-1]]
    g = [block.forward(p, v) for block, p, v in zip(blocks, state.params, inputs, strict=True)]
    r = state.outputs[-1] - g[-1]
    coupling = sum(((v - p) ** 2).sum() for v, p in zip(state.outputs[:-1], g[:-1], strict=True))
    risk = engine.risk.loss.rows(state.outputs[-1], engine.risk.target).sum()
    omega = sum(engine.penalty.quadratic / 2 * (p["W"] ** 2).sum() for p in state.params if "W" in p)
    return risk + omega + state.nu / 2 * coupling + (state.u * r).sum() + state.rho / 2 * (r**2).sum()


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
@pytest.mark.parametrize("loss", LOSSES)
def test_stationarity_is_the_gradient_autograd_finds(activation, loss):
    engine, state = random_problem(
        3, activation=activation, loss=loss, depth=3, samples=12, nu=0.4,
        regularizer={"name": "l2", "strength": 0.3},
    )  # fmt: skip
    engine.sweep(state)
    generator = torch.Generator().manual_seed(0)
    for v in state.outputs:  # off the kinks of relu and the squared hinge, where there is no gradient
        v.add_(0.1 * torch.randn(v.shape, generator=generator, dtype=v.dtype))
    state.predictions = engine.raw_predictions(state)
    leaves = [*(p[n] for p in state.params for n in p), *state.outputs, state.u]
    for leaf in leaves:
        leaf.requires_grad_()
    value = lagrangian_of(engine, state)
    gradients = torch.autograd.grad(value, leaves)
    for leaf in leaves:
        leaf.requires_grad_(False)
    expected = sum(float((g**2).sum()) for g in gradients)
    assert float(value.detach()) == pytest.approx(float(engine.energy(state).lagrangian), rel=1e-10)
    assert float(engine.stationarity(state)) == pytest.approx(expected, rel=1e-7, abs=1e-9)
