"""Distances to a stationary point and derivatives of every block against autograd; nu, weights and counts apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from dladmm.blocks import (
    Affine,
    Anchor,
    Convolution,
    Elementwise,
    Generic,
    GraphConv,
    GroupedAffine,
    LinearMap,
    Positionwise,
    Term,
    Work,
)
from dladmm.compute.sparse import SparseMatrix
from dladmm.regularizers import L2
from dladmm.solvers.subproblems import SubproblemOptions

F64 = torch.float64
WEIGHT, NU, STRENGTH = 1.3, 0.4, 0.6


def randn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def graph(n=7):
    rng = np.random.default_rng(0)
    return SparseMatrix.of(
        sparse.csr_array(rng.random((n, n)) * (rng.random((n, n)) < 0.5)), F64, torch.device("cpu")
    )


BLOCKS = {
    "affine": (lambda: Affine(4, 3), (7, 4)),
    "affine without a bias": (lambda: Affine(4, 3, bias=False), (7, 4)),
    "convolution": (lambda: Convolution(2, 3, (3, 2), padding=(1, 0)), (7, 2, 4, 5)),
    "convolution in groups": (lambda: Convolution(4, 2, (3,), stride=(2,), groups=2), (7, 4, 7)),
    "grouped": (lambda: GroupedAffine(3, 2, 4), (7, 6)),
    "positions": (lambda: Positionwise(Affine(4, 3)), (7, 2, 4)),
    "pooling": (lambda: LinearMap(nn.AvgPool2d(2)), (7, 2, 4, 4)),
    "module": (lambda: Generic(nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()), (7, 4)),
    "activation": (lambda: Elementwise("tanh"), (7, 4)),
    "graph": (lambda: GraphConv(4, 3, "tanh", graph()), (7, 4)),
    "linear graph": (lambda: GraphConv(3, 4, "identity", graph()), (7, 3)),
}
COUNTS = torch.tensor([1.0, 2, 1, 3, 1, 2, 1], dtype=F64)[:, None]
CASES = [
    (name, counted) for name in BLOCKS for counted in (False, True) if "graph" not in name or not counted
]


def problem(name):
    make, shape = BLOCKS[name]
    block, v = make(), randn(0, *shape)
    params = {
        key: p + 0.1 for key, p in block.initial_parameters(torch.Generator().manual_seed(1), 1.0).items()
    }
    prediction = block.forward(params, v)
    term = Term(WEIGHT, prediction + randn(2, *prediction.shape), prediction)
    return block, v, params, term, Anchor(NU, v + randn(3, *v.shape))


def like(rows, x):
    return rows.reshape(-1, *[1] * (x.ndim - 1))


@pytest.mark.parametrize(("name", "counted"), CASES)
def test_stationarity_is_the_gradient(name, counted):
    block, v, params, term, anchor = problem(name)
    rows = COUNTS if counted else torch.ones(7, 1, dtype=F64)
    work = Work(SubproblemOptions(), counts=COUNTS if counted else None)
    leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
    if leaves:
        gap = term.target - block.differentiable_forward(leaves, v)
        value = WEIGHT / 2 * (like(rows, gap) * gap**2).sum()
        value = value + STRENGTH / 2 * sum((leaves[key] ** 2).sum() for key in block.penalised)
        gradients = torch.autograd.grad(value, list(leaves.values()))
        expected = sum((g**2).sum() for g in gradients)
        found = block.parameter_stationarity(params, v, term, L2(STRENGTH), work)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    leaf = v.clone().requires_grad_()
    gap = term.target - block.differentiable_forward(params, leaf)
    value = WEIGHT / 2 * (gap**2).sum() + NU / 2 * ((leaf - anchor.value) ** 2).sum()
    (gradient,) = torch.autograd.grad(value, leaf)
    found = block.input_stationarity(params, v, anchor, term, work)
    torch.testing.assert_close(found, (like(rows, gradient) * gradient**2).sum(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_pulled_back_and_moves_pushed_through(name):
    block, v, params, term, _ = problem(name)
    work, output = Work(SubproblemOptions()), block.forward(params, v)
    upstream = randn(4, *output.shape)
    leaf = v.clone().requires_grad_()
    leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
    of_v, *of_params = torch.autograd.grad(
        block.differentiable_forward(leaves, leaf), [leaf, *leaves.values()], upstream
    )
    torch.testing.assert_close(block.pull_back(params, v, output, upstream, work), of_v)
    (pulled,) = torch.autograd.grad(
        block.differentiable_forward(params, leaf), leaf, WEIGHT * term.residual()
    )
    torch.testing.assert_close(block.input_gradient(params, v, term, work), pulled)
    move = randn(5, *v.shape)
    pushed = (block.forward(params, v + 1e-6 * move) - block.forward(params, v - 1e-6 * move)) / 2e-6
    torch.testing.assert_close(block.push_input(params, v, move, output), pushed, rtol=0, atol=1e-7)
    if params:
        found = block.parameter_gradient(params, v, output, upstream, work)
        for key, expected in zip(params, of_params, strict=True):
            torch.testing.assert_close(found[key], expected)
        moves = {key: randn(6, *p.shape) for key, p in params.items()}
        up, down = ({key: p + s * moves[key] for key, p in params.items()} for s in (1e-6, -1e-6))
        pushed = (block.forward(up, v) - block.forward(down, v)) / 2e-6
        torch.testing.assert_close(block.push_parameters(params, moves, v, output), pushed, rtol=0, atol=1e-7)
