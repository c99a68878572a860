"""Linear blocks with structure (convolutions, pooling, reshaping) and max pooling: adjoints, argmins, brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dladmm.blocks import Affine, Anchor, Composed, Convolution, Generic, LinearMap, MaxPool, Term, Work
from dladmm.blocks.patches import Patches
from dladmm.compute import execution
from dladmm.regularizers import get_regularizer
from dladmm.solvers.least_squares import update_linear_parameters
from dladmm.solvers.linear_input import conjugate_gradients
from dladmm.solvers.subproblems import SubproblemOptions

NONE = get_regularizer(None)
WORK = Work(SubproblemOptions())


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def convolutions(draw):
    """A convolution and an input that is large enough for it."""
    dims, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    each = st.integers(1, 2)
    n_in, n_out = groups * draw(each), groups * draw(each)
    numbers = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, stride, dilation, padding = numbers(1, 3), numbers(1, 3), numbers(1, 2), numbers(0, 2)
    block = Convolution(
        n_in, n_out, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=draw(st.booleans())
    )  # fmt: skip
    sizes = [
        max(1, d * (k - 1) + 1 - 2 * p) + draw(st.integers(0, 4))
        for d, k, p in zip(dilation, kernel, padding, strict=True)
    ]
    return block, randn(draw(st.integers(0, 999)), 3, n_in, *sizes)


def problem(block, v, seed=0):
    params = block.initial_parameters(torch.Generator().manual_seed(seed), 1.0)
    prediction = block.forward(params, v)
    target = prediction + randn(seed + 1, *prediction.shape)
    return params, Term(1.3, target, prediction.clone()), Anchor(0.7, v + randn(seed + 2, *v.shape))


def input_value(block, params, v, anchor, term):
    own = anchor.weight / 2 * ((v - anchor.value) ** 2).sum()
    return float(own + term.weight / 2 * ((term.target - block.forward(params, v)) ** 2).sum())


def matrix(apply, v):
    """A linear function of one sample as a matrix, column by column."""
    eye = torch.eye(v[0].numel(), dtype=torch.float64).reshape(-1, *v.shape[1:])
    return apply(eye).flatten(1).T


def assert_adjoint(block, params, v):
    weights = {name: p for name, p in params.items() if name != "b"}
    out = block.forward(weights, v)
    e = randn(7, *out.shape)
    back = block.input_gradient(params, v, Term(1.0, torch.zeros_like(e), e), WORK)
    torch.testing.assert_close((out * e).sum(), (v * back).sum(), rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_the_transposed_convolution_is_the_adjoint(case):
    block, v = case
    assert_adjoint(block, problem(block, v)[0], v)


@settings(max_examples=30, deadline=None)
@given(convolutions())
def test_patches_times_weights_are_the_convolution(case):
    block, v = case
    params, _, _ = problem(block, v)
    W = params["W"].reshape(block.groups, -1, block.patch)
    products = block.patches(v) @ W.mT
    out = block.forward({"W": params["W"]}, v)
    rows = out.flatten(2).permute(1, 0, 2).reshape(block.groups, -1, out.flatten(2).shape[2] * len(v))
    torch.testing.assert_close(products.mT, rows)


LAYERS = [
    (nn.Flatten(), (2, 3, 4)),
    (nn.Unflatten(1, (2, 3)), (6,)),
    (nn.AvgPool2d(2), (2, 4, 6)),
    (nn.AvgPool2d(2), (1, 5, 5)),
    (nn.AvgPool2d(3, stride=1), (1, 5, 5)),
    (nn.AvgPool2d(3, stride=2, padding=1), (2, 5, 5)),
    (nn.AvgPool1d(3), (2, 9)),
    (nn.AdaptiveAvgPool2d(2), (1, 5, 4)),
    (nn.ZeroPad2d(1), (1, 3, 3)),
    (nn.Upsample(scale_factor=2), (1, 3, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_a_linear_map_has_an_adjoint_and_its_exact_argmin(layer, shape):
    block, v = LinearMap(layer), randn(3, 4, *shape)
    params, term, anchor = problem(block, v)
    assert_adjoint(block, params, v)
    A = matrix(lambda x: block.forward({}, x), v)
    best = torch.linalg.solve(
        anchor.weight * torch.eye(A.shape[1], dtype=torch.float64) + term.weight * A.T @ A,
        anchor.weight * anchor.value.flatten(1).T + term.weight * A.T @ term.target.flatten(1).T,
    ).T
    before, start = input_value(block, params, v, anchor, term), v.clone()
    (step,) = block.update_input(params, v, anchor, term, Work(SubproblemOptions()))
    exact = block._diagonal(v, Work(SubproblemOptions())) is not None
    torch.testing.assert_close(v.flatten(1), best, rtol=0, atol=1e-10 if exact else 0.05)
    torch.testing.assert_close(term.prediction, block.forward({}, v))
    fall = before - input_value(block, params, v, anchor, term)
    assert fall >= float(step.rate * step.squared) - 1e-9
    torch.testing.assert_close(step.squared, ((v - start) ** 2).sum())


def test_which_maps_have_a_closed_form():
    work = Work(SubproblemOptions())
    found = [LinearMap(layer)._diagonal(randn(0, 2, *shape), work) is not None for layer, shape in LAYERS]
    assert found == [True, True, True, True, False, False, True, False, True, False]


@settings(max_examples=40, deadline=None)
@given(convolutions(), st.booleans())
def test_the_exact_weights_are_those_of_least_squares(case, weighted):
    """One solve without damping against lstsq on the explicit matrix of patches, group by group."""
    block, v = case
    params, term, _ = problem(block, v)
    counts = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64) if weighted else None
    weights = torch.ones(3, 1, dtype=torch.float64) if counts is None else counts
    patches = block.patches(v)
    positions = patches.shape[1] // 3
    target = term.target - params["b"].reshape(-1, *[1] * (v.ndim - 2)) if block.bias else term.target.clone()
    rhs = target.flatten(2).reshape(3, block.groups, -1, positions).permute(1, 0, 3, 2)
    rhs = rhs.reshape(block.groups, 3 * positions, -1)
    root = weights.sqrt().repeat_interleave(positions, 0)
    best = torch.linalg.lstsq(root * patches, root * rhs, driver="gelsd").solution
    work = Work(SubproblemOptions(damping=0.0), order=(True,), counts=counts)
    (step,) = update_linear_parameters(["W"], params, Patches(block, v, term, work), NONE, work)
    ours = patches @ params["W"].reshape(block.groups, -1, block.patch).mT
    torch.testing.assert_close(ours, patches @ best, rtol=0, atol=1e-4)
    torch.testing.assert_close(term.prediction, block.forward(params, v), rtol=0, atol=1e-9)
    assert float(step.rate) >= 0


@pytest.mark.parametrize("w_solver", ["exact", "quadratic"])
@pytest.mark.parametrize(
    "spec", [None, {"name": "l2", "strength": 0.5}, {"name": "l1", "strength": 0.5}, "non_negative"]
)
@settings(max_examples=8, deadline=None)
@given(case=convolutions())
def test_a_parameter_update_falls_by_what_it_promises(w_solver, spec, case):
    block, v = case
    penalty = get_regularizer(spec)
    params, term, _ = problem(block, v)
    params["W"] = penalty.prox(params["W"], 0.0)
    term.prediction.copy_(block.forward(params, v))
    value = lambda: float(  # noqa: E731
        term.weight / 2 * ((term.target - block.forward(params, v)) ** 2).sum() + penalty.value(params["W"])
    )
    for forward in (False, True):
        before = value()
        steps = block.update_parameters(
            params, v, term, penalty, Work(SubproblemOptions(w_solver=w_solver), order=(forward,))
        )
        promised = sum(float(step.rate * step.squared) for step in steps)
        assert before - value() >= promised - 1e-8 * (1 + abs(before))
        torch.testing.assert_close(term.prediction, block.forward(params, v), rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(convolutions())
def test_conjugate_gradients_find_the_input_of_a_dense_solve(case):
    block, v = case
    params, term, anchor = problem(block, v)
    K = matrix(lambda x: block.forward({"W": params["W"]}, x), v)
    bias = block.forward(params, torch.zeros_like(v)).flatten(1)
    best = torch.linalg.solve(
        anchor.weight * torch.eye(K.shape[1], dtype=torch.float64) + term.weight * K.T @ K,
        (anchor.weight * anchor.value.flatten(1) + term.weight * (term.target.flatten(1) - bias) @ K).T,
    ).T
    c = term.weight / anchor.weight
    adjoint = lambda e: block._backward(e, v, params["W"], of_input=True)  # noqa: E731
    gradient = v - anchor.value + c * adjoint(term.residual())
    before = input_value(block, params, v, anchor, term)
    step = conjugate_gradients(
        v, gradient, lambda d: block.forward({"W": params["W"]}, d), adjoint, anchor, term, WORK, 1e-14, 200
    )
    torch.testing.assert_close(v.flatten(1), best, rtol=0, atol=1e-7)
    torch.testing.assert_close(term.prediction, block.forward(params, v), rtol=0, atol=1e-9)
    assert before - input_value(block, params, v, anchor, term) >= float(step.rate * step.squared) - 1e-9


@pytest.mark.parametrize("a_solver", ["exact", "quadratic"])
@pytest.mark.parametrize("per_sample", [False, True])
@settings(max_examples=15, deadline=None)
@given(case=convolutions())
def test_an_input_update_falls_by_what_it_promises(a_solver, per_sample, case):
    block, v = case
    params, term, anchor = problem(block, v)
    before = input_value(block, params, v, anchor, term)
    options = SubproblemOptions(a_solver=a_solver, tau_per_sample=per_sample)
    (step,) = block.update_input(params, v, anchor, term, Work(options))
    fall = before - input_value(block, params, v, anchor, term)
    assert fall >= float(step.rate * step.squared) - 1e-9 * (1 + before)
    torch.testing.assert_close(term.prediction, block.forward(params, v), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Conv2d(2, 4, 2, stride=2, groups=2),
        nn.Conv2d(2, 3, 3, padding="same"),
    ],
)
def test_generic_and_closed_form_find_the_same_minimum(layer):
    """Repeated steps of Generic(Conv2d) reach the block's argmin over the input, and over the parameters."""
    block, v = Convolution.from_module(layer), randn(0, 5, 2, 4, 4)
    generic = Generic(layer.double())
    params, term, anchor = problem(block, v)
    own = {"weight": params["W"].clone(), "bias": params["b"].clone()}
    v2, term2 = v.clone(), Term(term.weight, term.target, term.prediction.clone())
    options = SubproblemOptions(damping=0.0)
    work, work2 = Work(options), Work(options)
    for _ in range(30):
        block.update_input(params, v, anchor, term, work)
    for _ in range(400):
        generic.update_input(own, v2, anchor, term2, work2)
    torch.testing.assert_close(v, v2, rtol=0, atol=1e-6)
    for _ in range(60):
        block.update_parameters(params, v, term, NONE, work)
    for _ in range(2500):
        generic.update_parameters(own, v, term2, NONE, work2)
    torch.testing.assert_close(params["W"], own["weight"], rtol=0, atol=1e-4)
    torch.testing.assert_close(params["b"], own["bias"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "block",
    [
        Composed([LinearMap(nn.Flatten())], Affine(12, 4)),
        Composed([LinearMap(nn.AvgPool2d(2, stride=1))], Convolution(3, 2, (1, 1))),
        Composed([LinearMap(nn.AvgPool2d(2)), LinearMap(nn.Flatten())], Affine(3, 4)),
    ],
)
def test_maps_before_a_linear_block_are_part_of_its_operator(block):
    v = randn(1, 6, 3, 2, 2)
    params, term, anchor = problem(block, v)
    assert_adjoint(block, params, v)
    K = matrix(lambda x: block.forward({"W": params["W"]}, x), v)
    bias = block.forward(params, torch.zeros_like(v)).flatten(1)
    best = torch.linalg.solve(
        anchor.weight * torch.eye(K.shape[1], dtype=torch.float64) + term.weight * K.T @ K,
        (anchor.weight * anchor.value.flatten(1) + term.weight * (term.target.flatten(1) - bias) @ K).T,
    ).T
    work = Work(SubproblemOptions())
    for _ in range(12):
        block.update_input(params, v, anchor, term, work)
    torch.testing.assert_close(v.flatten(1), best, rtol=0, atol=1e-8)
    torch.testing.assert_close(term.prediction, block.forward(params, v))


# Max pooling ---------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0.05, 20.0), st.booleans())
def test_the_argmin_of_max_pooling_is_global(seed, size, weight, ties):
    """Against every choice of the entries that sit at the maximum, on a grid of maxima refined by its formula."""
    m, target = randn(seed, 1, 1, size), 2 * randn(seed + 1, 1, 1, 1)
    if ties:
        m, target = m.round(), target.round()
    block, v = MaxPool((size,)), randn(seed + 2, 1, 1, size)
    term, anchor = Term(weight, target, block.forward({}, v)), Anchor(1.0, m)
    block.update_input({}, v, anchor, term, Work(SubproblemOptions()))
    found = input_value(block, {}, v, anchor, term)
    assert float(block.input_stationarity({}, v, anchor, term, WORK)) < 1e-18
    best = float("inf")
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            top = (m[0, 0, list(chosen)].sum() + weight * target[0, 0, 0]) / (count + weight)
            trial = torch.minimum(m, top).index_fill(2, torch.tensor(chosen), float(top))
            best = min(best, input_value(block, {}, trial, anchor, term))
    assert found <= best + 1e-12
    near = input_value(block, {}, v + 1e-3 * randn(seed + 3, 1, 1, size), anchor, term)
    assert found <= near + 1e-12


def test_entries_outside_whole_windows_keep_their_anchor():
    block, v = MaxPool((2, 2)), randn(0, 2, 3, 5, 5)
    _, term, anchor = problem(block, v)
    block.update_input({}, v, anchor, term, Work(SubproblemOptions()))
    assert torch.equal(v[..., 4], anchor.value[..., 4])
    torch.testing.assert_close(term.prediction, nn.functional.max_pool2d(v, 2))
    assert float(block.input_stationarity({}, v, anchor, term, WORK)) < 1e-18


@pytest.mark.parametrize(
    ("layer", "closed"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool1d(3, stride=3), True),
        (nn.MaxPool2d(3, stride=2), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
    ],
)
def test_which_max_pooling_has_a_closed_form(layer, closed):
    assert (MaxPool.from_module(layer) is not None) == closed


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
@pytest.mark.parametrize("counted", [False, True])
def test_parts_of_the_samples_change_nothing(monkeypatch, stride, counted):
    """Conjugate gradients and pooling on three samples at a time are those on all of them."""
    block = Convolution(2, 3, (3, 3), stride=stride, padding=(1, 1))
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(8, 2, 6, 5, generator=generator, dtype=torch.float64)
    counts = torch.randint(0, 4, (8, 1), generator=generator).double() if counted else None
    params, term, anchor = problem(block, v)
    pool = MaxPool((2, 2))
    pulled_from = torch.randn(8, 2, 3, 2, generator=generator, dtype=torch.float64)
    found = []
    for entries in (1 << 18, 3 * term.target[0].numel()):
        monkeypatch.setattr(execution, "CACHED", entries)
        at, prediction = v.clone(), term.prediction.clone()
        work = Work(SubproblemOptions(a_solver="exact"), counts=counts)
        (step,) = block.update_input(params, at, anchor, replace(term, prediction=prediction), work)
        pulled = pool.pull_back({}, v, pool.forward({}, v), pulled_from, work)
        found.append((at, prediction, step.squared, step.rate, pulled))
        torch.testing.assert_close(prediction, block.forward(params, at), rtol=0, atol=1e-12)
    assert not torch.equal(found[0][0], v)
    for whole, in_parts in zip(*found, strict=True):
        torch.testing.assert_close(in_parts, whole, rtol=1e-12, atol=1e-12)
