"""Rates from both sides: where a subproblem is quadratic its value falls by exactly what the update promises.

The certificate's C2 is the smallest rate of an iteration. A rate too large makes it lie, one too small makes it say
nothing; an inequality would notice only the first.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from dladmm.blocks import Affine, Anchor, Composed, Convolution, Embedding, GraphConv, Term, Work
from dladmm.blocks.recurrent_parts import StateSelection
from dladmm.compute.sparse import SparseMatrix
from dladmm.regularizers import L1, L2, NoPenalty
from dladmm.solvers.least_squares import update_linear_parameters
from dladmm.solvers.subproblems import SubproblemOptions

WEIGHT, NU = 1.3, 0.7


def randn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def graph(n=9):
    rng = np.random.default_rng(0)
    dense = rng.random((n, n)) * (rng.random((n, n)) < 0.4)
    return SparseMatrix.of(sparse.csr_array(dense), torch.float64, torch.device("cpu"))


CASES = {
    "affine": (lambda: Affine(4, 3), (9, 4)),
    "affine, fewer outputs": (lambda: Affine(5, 2), (9, 5)),
    "convolution": (lambda: Convolution(2, 3, (3, 2), padding=(1, 0)), (9, 2, 4, 5)),
    "convolution in groups": (lambda: Convolution(4, 2, (3,), stride=(2,), groups=2), (9, 4, 7)),
    "graph": (lambda: GraphConv(4, 3, "identity", graph()), (9, 4)),
    "affine, of entries chosen": (lambda: Composed([StateSelection(4, last=True)], Affine(4, 3)), (9, 2, 6)),
}
COUNTS = torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 1, 1], dtype=torch.float64)[:, None]


def problem(name, counts=None):
    make, shape = CASES[name]
    block, v = make(), randn(0, *shape)
    params = {
        key: p + 0.1 for key, p in block.initial_parameters(torch.Generator().manual_seed(1), 1.0).items()
    }
    prediction = block.forward(params, v)
    term = Term(WEIGHT, prediction + randn(2, *prediction.shape), prediction.clone())
    return block, v, params, term, counts


def smooth(block, params, v, term, counts=None):
    """(c/2) ||target - g||^2 in float64, straight from the forward pass."""
    squares = (term.target - block.forward(params, v)).square().flatten(1).sum(1, keepdim=True)
    return term.weight / 2 * float((squares if counts is None else squares * counts).sum())


def value(block, params, v, term, penalty, counts=None):
    return smooth(block, params, v, term, counts) + sum(
        float(penalty.value(params[n])) for n in block.penalised
    )


SOLVERS = [
    {"w_solver": "exact", "a_solver": "exact", "damping": 0.0},
    {"w_solver": "exact", "a_solver": "exact", "damping": 0.4},
    {"w_solver": "quadratic", "a_solver": "quadratic"},
]
PENALTIES = [NoPenalty(), L2(0.6)]


# The rows of a graph count once, and its inputs are majorised, all together
COUNTED = [(name, counted) for name in CASES for counted in (False, True) if name != "graph" or not counted]


@pytest.mark.parametrize(("name", "counted"), COUNTED)
@pytest.mark.parametrize("solver", SOLVERS, ids=["exact", "damped", "majorised"])
@pytest.mark.parametrize("penalty", PENALTIES, ids=["none", "l2"])
def test_weights_fall_by_exactly_what_is_promised(name, solver, penalty, counted):
    """Exact: half the step in the problem's metric, delta's half twice; majorised and tight: (alpha + lambda)/2."""
    block, v, params, term, counts = problem(name, COUNTS if counted else None)
    before = value(block, params, v, term, penalty, counts)
    old = {key: p.clone() for key, p in params.items()}
    work = Work(SubproblemOptions(**solver), counts=counts)
    if name == "graph":
        (step,) = block.update_parameters(params, v, term, penalty, work)
    else:
        operator = block.linear_operator(params, v, term.prediction, work)
        operator.term, operator.weight = term, term.weight
        (step,) = update_linear_parameters(["W"], params, operator, penalty, work)
    fall = before - value(block, params, v, term, penalty, counts)
    moved = float((params["W"] - old["W"]).square().sum())
    assert float(step.squared) == pytest.approx(moved, rel=1e-9)
    assert float(step.rate * step.squared) == pytest.approx(fall, rel=1e-7)
    torch.testing.assert_close(term.prediction, block.forward(params, v))


@pytest.mark.parametrize("name", ["affine", "convolution", "convolution in groups"])
@pytest.mark.parametrize("counted", [False, True])
def test_biases_fall_by_exactly_what_is_promised(name, counted):
    block, v, params, term, counts = problem(name, COUNTS if counted else None)
    before, old = smooth(block, params, v, term, counts), params["b"].clone()
    work = Work(SubproblemOptions(), counts=counts)
    operator = block.linear_operator(params, v, term.prediction, work)
    operator.term, operator.weight = term, term.weight
    (step,) = update_linear_parameters(["b"], params, operator, NoPenalty(), work)
    assert float(step.squared) == pytest.approx(float((params["b"] - old).square().sum()), rel=1e-12)
    assert float(step.rate * step.squared) == pytest.approx(
        before - smooth(block, params, v, term, counts), rel=1e-9
    )
    residual = (block.forward(params, v) - term.target).flatten(2 if v.ndim > 2 else 1)
    rows = residual if counts is None else residual * counts.reshape(-1, *[1] * (residual.ndim - 1))
    means = rows.sum((0, 2)) if v.ndim > 2 else rows.sum(0)
    torch.testing.assert_close(means, torch.zeros_like(means), rtol=0, atol=1e-10)  # it is the minimiser


INPUT_SOLVERS = {
    "exact": SOLVERS[0],
    "majorised": SOLVERS[2],
    "row by row": SOLVERS[2] | {"tau_per_sample": True},
}
INPUTS = [
    (*case, solver)
    for case in COUNTED
    for solver in INPUT_SOLVERS
    if case[0] != "graph" or solver == "majorised"
]


@pytest.mark.parametrize(("name", "counted", "solver"), INPUTS)
def test_inputs_fall_by_exactly_what_is_promised(name, counted, solver):
    solver = INPUT_SOLVERS[solver]
    block, v, params, term, counts = problem(name, COUNTS if counted else None)
    anchor = Anchor(NU, v + randn(5, *v.shape))

    def whole():
        squares = (v - anchor.value).square().flatten(1).sum(1, keepdim=True)
        own = float((squares if counts is None else squares * counts).sum())
        return NU / 2 * own + smooth(block, params, v, term, counts)

    before, old = whole(), v.clone()
    steps = block.update_input(params, v, anchor, term, Work(SubproblemOptions(**solver), counts=counts))
    squares = (v - old).square().flatten(1).sum(1, keepdim=True)
    assert sum(float(step.squared) for step in steps) == pytest.approx(
        float((squares if counts is None else squares * counts).sum()), rel=1e-9
    )
    promised = sum(float(step.rate * step.squared) for step in steps)
    assert promised == pytest.approx(before - whole(), rel=1e-7)
    torch.testing.assert_close(term.prediction, block.forward(params, v))


def test_entries_that_a_map_leaves_out_are_what_ties_them():
    """The last hidden states by h's own subproblem, the minimiser; all others equal the anchor, bit for bit."""
    block, v, params, term, _ = problem("affine, of entries chosen")
    anchor = Anchor(NU, v + randn(5, *v.shape))
    block.update_input(params, v, anchor, term, Work(SubproblemOptions(**SOLVERS[0])))
    W, b = params["W"], params["b"]
    left = NU * torch.eye(4, dtype=torch.float64) + WEIGHT * W.T @ W
    right = NU * anchor.value[:, -1, :4] + WEIGHT * (term.target - b) @ W
    torch.testing.assert_close(v[:, -1, :4], torch.linalg.solve(left, right.T).T)
    for entries in ((slice(None), 0), (slice(None), -1, slice(4, None))):
        assert torch.equal(v[entries], anchor.value[entries])


def test_an_embedding_falls_by_exactly_what_is_promised():
    block = Embedding(5, 3)
    params = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)
    tokens = torch.tensor([[0, 1], [1, 3], [3, 3], [0, 4]]).double()
    prediction = block.forward(params, tokens)
    term = Term(WEIGHT, prediction + randn(2, *prediction.shape), prediction.clone())
    before = smooth(block, params, tokens, term)
    (step,) = block.update_parameters(params, tokens, term, NoPenalty(), Work(SubproblemOptions(damping=0.0)))
    assert float(step.rate * step.squared) == pytest.approx(
        before - smooth(block, params, tokens, term), rel=1e-9
    )
    assert smooth(block, params, tokens, term) < before


@pytest.mark.parametrize(
    "solver", [*SOLVERS[1:], SOLVERS[2] | {"alpha0": 0.01}], ids=["exact", "majorised", "searched"]
)
@pytest.mark.parametrize("name", ["affine", "convolution", "graph"])
def test_with_a_kinked_penalty_it_falls_by_what_is_promised_at_least(name, solver):
    block, v, params, term, _ = problem(name)
    penalty = L1(0.5)
    before = value(block, params, v, term, penalty)
    steps = block.update_parameters(params, v, term, penalty, Work(SubproblemOptions(**solver)))
    promised = sum(float(s.rate * s.squared) for s in steps)
    fall = before - value(block, params, v, term, penalty)
    assert promised > 0
    assert fall >= promised * (1 - 1e-9)


def test_the_exact_weights_are_the_damped_minimiser():
    """``(c/2)||A W^T + b - target||^2 + (lambda/2)||W||^2 + (delta/2)||W - W_k||^2``, delta = c damping trace/n."""
    block, v, params, term, _ = problem("affine")
    old, damping, strength = params["W"].clone(), 0.4, 0.6
    delta = WEIGHT * damping * float(v.square().sum()) / 4
    work = Work(SubproblemOptions(damping=damping))
    operator = block.linear_operator(params, v, term.prediction, work)
    operator.term, operator.weight = term, term.weight
    update_linear_parameters(["W"], params, operator, L2(strength), work)
    wanted = term.target - params["b"]
    left = WEIGHT * v.T @ v + (strength + delta) * torch.eye(4, dtype=torch.float64)
    best = torch.linalg.solve(left, WEIGHT * v.T @ wanted + delta * old.T).T
    torch.testing.assert_close(params["W"], best, rtol=1e-9, atol=1e-10)


def test_a_factor_made_for_one_penalty_or_weight_is_not_taken_for_another():
    """The same block, input and workspace; penalty, weight of the term and damping change from call to call."""
    block, v, params, _, _ = problem("affine")
    shared = Work(SubproblemOptions(damping=0.1))
    asked = ((0.5, 1.0, 0.1), (5.0, 1.0, 0.1), (5.0, 7.0, 0.1), (5.0, 7.0, 2.0))
    for strength, weight, damping in asked:
        options = SubproblemOptions(damping=damping)
        kept = Work(options, workspace=shared.workspace)
        results = []
        for work in (kept, Work(options)):
            own = {key: p.clone() for key, p in params.items()}
            prediction = block.forward(own, v)
            term = Term(weight, prediction + randn(2, *prediction.shape), prediction.clone())
            block.update_parameters(own, v, term, L2(strength), work)
            results.append(own["W"])
        assert torch.equal(*results)


@pytest.mark.parametrize("name", ["affine", "affine, fewer outputs"])
def test_the_exact_input_is_the_minimiser(name):
    """One solve reaches ``(nu I + c W^T W)^-1 (nu value + c W^T (target - b))``, by either form of the inverse."""
    block, v, params, term, _ = problem(name)
    anchor = Anchor(NU, v + randn(5, *v.shape))
    W, wanted = params["W"], term.target - params["b"]
    left = NU * torch.eye(W.shape[1], dtype=torch.float64) + WEIGHT * W.T @ W
    best = torch.linalg.solve(left, (NU * anchor.value + WEIGHT * wanted @ W).T).T
    block.update_input(params, v, anchor, term, Work(SubproblemOptions()))
    torch.testing.assert_close(v, best, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("n_out", [6, 20])
def test_a_stiff_link_costs_the_input_no_digits_in_float32(n_out):
    """At a feasible point the gradient is longer than the move by the condition number, here about 10^4."""
    block = Affine(12, n_out)
    params = {"W": 10 * randn(1, n_out, 12), "b": randn(2, n_out)}
    v = randn(3, 50, 12)
    target = block.forward(params, v) + 30 * randn(4, 50, n_out)
    found = []
    for dtype in (torch.float64, torch.float32):
        own, a = {name: p.to(dtype) for name, p in params.items()}, v.to(dtype, copy=True)
        term = Term(0.1, target.to(dtype), block.forward(own, a))
        block.update_input(own, a, Anchor(0.01, v.to(dtype)), term, Work(SubproblemOptions()))
        found.append(a.double() - v)
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 5e-6


def test_an_inverse_made_for_one_nu_is_not_taken_for_another():
    block, v, params, term, _ = problem("affine")
    kept = Work(SubproblemOptions())
    for nu in (0.1, 3.0):
        results = []
        for work in (kept, Work(SubproblemOptions())):
            own, prediction = v.clone(), term.prediction.clone()
            anchor = Anchor(nu, v + randn(5, *v.shape))
            block.update_input(params, own, anchor, Term(WEIGHT, term.target, prediction), work)
            results.append(own)
        assert torch.equal(*results)


@pytest.mark.parametrize("counted", [False, True])
def test_penalised_biases_fall_by_exactly_what_is_promised(counted):
    block, v, params, term, counts = problem("affine", COUNTS if counted else None)
    penalty, old = L2(0.6), params["b"].clone()

    def whole():
        return smooth(block, params, v, term, counts) + float(penalty.value(params["b"]))

    before = whole()
    work = Work(SubproblemOptions(penalise_bias=True), counts=counts)
    operator = block.linear_operator(params, v, term.prediction, work)
    operator.term, operator.weight = term, term.weight
    (step,) = update_linear_parameters(["b"], params, operator, penalty, work)
    assert float(step.squared) == pytest.approx(float((params["b"] - old).square().sum()), rel=1e-12)
    assert float(step.rate * step.squared) == pytest.approx(before - whole(), rel=1e-9)
    best, b = whole(), params["b"]
    for nudge in (1e-4, -1e-4):
        b += nudge
        assert whole() > best
        b -= nudge
