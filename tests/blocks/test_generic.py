"""Algorithm 1: any module as a block, solved with its own local gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import Chain
from dladmm.blocks import Affine, Anchor, Elementwise, Generic, Term, Work
from dladmm.callbacks import Checkpoint
from dladmm.regularizers import get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions


def generic_mlp(activation: nn.Module) -> Chain:
    layers = [nn.Linear(5, 8), activation, nn.Linear(8, 3)]
    return Chain([Generic(layer) for layer in layers])


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    return rng.normal(size=(90, 5)) + 2.5 * np.eye(3, 5)[y], y


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.GELU(), nn.LayerNorm(8)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_mlp_of_generic_blocks_trains_with_a_monotone_lagrangian(blobs, activation, dtype):
    X, y = blobs
    result = train(generic_mlp(activation), X, y, max_iter=80, init_scale=1.0, dtype=dtype)
    assert result.history["train_accuracy"][-1] > 0.85
    assert result.certificate.monotone, str(result.certificate)
    assert result.certificate.sufficient_descent, str(result.certificate)
    assert result.history["loss"][-1] < 0.6 * result.history["loss"][0]


def test_unknown_layers_of_a_sequential_become_generic(blobs):
    X, y = blobs
    module = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    result = train(module, X, y, max_iter=60)
    assert result.certificate.monotone
    assert (module(torch.from_numpy(X).float()).argmax(1).numpy() == y).mean() > 0.8


def problem(seed, block):
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    params = block.initial_parameters(generator, 1.0)
    prediction = block.forward(params, v)
    target = prediction + torch.randn(prediction.shape, generator=generator, dtype=torch.float64)
    anchor = Anchor(0.7, v + torch.randn(v.shape, generator=generator, dtype=torch.float64))
    return params, v, Term(1.3, target, prediction.clone()), anchor


def input_value(block, params, v, anchor, term):
    own = anchor.weight / 2 * ((v - anchor.value) ** 2).sum()
    return float(own + term.weight / 2 * ((term.target - block.forward(params, v)) ** 2).sum())


@pytest.mark.parametrize("seed", range(5))
def test_generic_and_closed_form_find_the_same_minimum(seed):
    """Repeated steps of Generic(Linear) reach the exact minimiser over the input, and over the parameters."""
    affine = Affine(4, 3)
    options = SubproblemOptions(w_solver="exact", a_solver="exact", damping=0.0)
    params, v, term, anchor = problem(seed, affine)
    layer = affine.to_module(params).double()
    generic = Generic(layer)
    own = generic.initial_parameters(None, 1.0)
    v2, term2 = v.clone(), Term(term.weight, term.target, term.prediction.clone())
    work, work2 = Work(options), Work(options)
    with torch.no_grad():
        affine.update_input(params, v, anchor, term, work)
    for _ in range(300):
        generic.update_input(own, v2, anchor, term2, work2)
    assert torch.allclose(v, v2, atol=1e-6)
    assert torch.allclose(term.prediction, term2.prediction, atol=1e-6)
    none = get_regularizer(None)
    for _ in range(60):
        with torch.no_grad():
            affine.update_parameters(params, v, term, none, work)
    for _ in range(1500):
        generic.update_parameters(own, v, term2, none, work2)
    assert torch.allclose(params["W"], own["weight"], atol=1e-4)
    assert torch.allclose(params["b"], own["bias"], atol=1e-4)


@pytest.mark.parametrize(
    "block", [Generic(nn.Tanh()), Generic(nn.Softplus()), Elementwise("tanh"), Affine(4, 3)]
)
@pytest.mark.parametrize("seed", range(3))
def test_an_input_update_falls_by_what_it_promises(block, seed):
    params, v, term, anchor = problem(seed, block)
    work = Work(SubproblemOptions())
    for _ in range(5):
        before = input_value(block, params, v, anchor, term)
        with torch.no_grad():
            (step,) = block.update_input(params, v, anchor, term, work)
        fall = before - input_value(block, params, v, anchor, term)
        promised = 0.0 if step.rate is None else float(step.rate * step.squared)
        assert fall >= promised - 1e-10 * abs(before)
        assert torch.allclose(term.prediction, block.forward(params, v), atol=1e-10)


def test_the_cap_leaves_the_variable_where_it_was():
    block = Generic(nn.Tanh())
    params, v, term, anchor = problem(0, block)
    before = v.clone()
    work = Work(SubproblemOptions(max_backtracks=1, t0=1e-9))
    (step,) = block.update_input(params, v, anchor, term, work)
    assert torch.equal(v, before)
    assert float(step.squared) == 0.0


def test_a_resumed_run_is_bit_equal_to_an_unbroken_one(blobs, tmp_path):
    X, y = blobs
    options = {"max_iter": 12, "init_scale": 1.0}
    whole = train(generic_mlp(nn.Tanh()), X, y, **options)
    train(generic_mlp(nn.Tanh()), X, y, **options | {"max_iter": 5}, callbacks=[Checkpoint(tmp_path)])
    resumed = train(generic_mlp(nn.Tanh()), X, y, **options, callbacks=[Checkpoint(tmp_path, resume=True)])
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]
