"""Batch normalisation as a block: its Jacobian by hand, its parameters frozen or absent, its statistics."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from dladmm import from_module, mlp, train
from dladmm.blocks import BatchNorm, Generic, Work
from dladmm.blocks.base import Block
from dladmm.engine import batches
from dladmm.solvers.local_step import change_along
from dladmm.solvers.subproblems import SubproblemOptions

WORK = Work(SubproblemOptions())
SHAPES = {"units": (nn.BatchNorm1d, (7, 4)), "channels": (nn.BatchNorm2d, (5, 4, 3, 2))}


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_what_is_handed_up_and_down_is_autograds(kind, affine):
    layer, shape = SHAPES[kind]
    block = BatchNorm(layer(4, affine=affine).double())
    params = {"weight": some(4, seed=1), "bias": some(4, seed=2)} if affine else {}
    v, change = 3 + 2 * some(*shape), some(*shape, seed=3)
    by_torch = lambda x: Generic.forward(block, params, x)  # noqa: E731
    output, push = by_torch(v), change_along(by_torch, [v], [change])
    torch.testing.assert_close(block.forward(params, v), output)
    torch.testing.assert_close(block.push_input(params, v, change, output), push)
    leaf = v.clone().requires_grad_()
    (pulled,) = torch.autograd.grad(by_torch(leaf), leaf, change)
    torch.testing.assert_close(block.pull_back(params, v, output, change, WORK), pulled)
    if not affine:
        return
    gradients = block.parameter_gradient(params, v, output, change, WORK)
    for name, expected in Block.parameter_gradient(block, params, v, output, change, WORK).items():
        torch.testing.assert_close(gradients[name], expected)
    moves = {"weight": some(4, seed=4), "bias": some(4, seed=5)}
    pushed = Block.push_parameters(block, params, moves, v, output)
    torch.testing.assert_close(block.push_parameters(params, moves, v, output), pushed)


def test_a_frozen_gain_is_the_layers_own():
    layer = nn.BatchNorm1d(4).double()
    layer.weight.data.fill_(3.0)
    layer.requires_grad_(False)
    (_, block, *_) = from_module(nn.Sequential(nn.Linear(4, 4), layer, nn.ReLU(), nn.Linear(4, 2)))
    assert isinstance(block, BatchNorm)
    assert block.initial_parameters(None, 1.0) == {}
    v = some(7, 4)
    torch.testing.assert_close(
        block.forward({}, v).std(0, correction=0), torch.full((4,), 3.0).double(), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        block.pull_back({}, v, v, v, WORK), 3 * BatchNorm(nn.BatchNorm1d(4)).pull_back({}, v, v, v, WORK)
    )


def test_layers_without_running_statistics_stay_generic():
    chain = from_module(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)))
    assert type(chain.blocks[0]) is Generic


def test_streaming_takes_statistics_of_all_rows_not_of_the_monitor_sample():
    """The monitor sample has 2,048 rows: another mean by a few hundredths of a deviation."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 5)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    module = nn.Sequential(
        nn.Linear(5, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )
    result = train(module, X, y, mode="streaming", max_iter=4, dropout=0.0)
    z = module[0](torch.from_numpy(X)).detach()
    torch.testing.assert_close(module[1].running_mean, z.mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(module[1].running_var, z.var(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(result.module(torch.from_numpy(X)), module.eval()(torch.from_numpy(X)))
    assert result.history["train_accuracy"][-1] > 0.85


@pytest.mark.parametrize("monitor", [40, 2048])
def test_the_history_measures_the_network_that_is_handed_out(monitor, monkeypatch):
    """By the statistics of all rows, also where the monitor sample has few of them; where it has all, once for both."""
    monkeypatch.setattr(batches, "MONITOR_ROWS", monitor)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    network = mlp([5, 8, 2], normalised=True)
    result = train(network, X, y, mode="streaming", max_iter=3, dtype="float64", random_state=3)
    rows = batches.monitor_rows(300, 3, torch.device("cpu"))
    output = result.module.eval()(torch.from_numpy(X)[rows]).detach()
    loss = nn.functional.cross_entropy(output, torch.from_numpy(y)[rows])
    assert result.history["loss"][-1] == pytest.approx(loss.item(), rel=1e-9)


def test_statistics_that_are_kept_are_of_the_batch_as_it_is():
    """Another batch, the same one changed in its place, and a copy of the block all have statistics of their own."""
    block, gradient = BatchNorm(nn.BatchNorm1d(4, affine=False).double()), some(7, 4, seed=9)
    v = some(7, 4)
    before = block.forward({}, v)
    fresh = lambda x: BatchNorm(nn.BatchNorm1d(4, affine=False)).pull_back({}, x, x, gradient, WORK)  # noqa: E731
    assert torch.equal(block.pull_back({}, v, before, gradient, WORK), fresh(v))
    assert torch.equal(block.pull_back({}, 2 * v, before, gradient, WORK), fresh(2 * v))
    assert pickle.loads(pickle.dumps(block))._known is None
    v.mul_(3.0)
    assert torch.equal(block.pull_back({}, v, before, gradient, WORK), fresh(v))


@pytest.mark.parametrize("eps", [1e-5, 1e-3, 0.1, 0.3])
def test_the_variance_of_a_constant_unit_is_not_below_zero(eps):
    block = BatchNorm(nn.BatchNorm1d(3, eps=eps))
    block.observe({}, torch.tensor([[1.0, -7.0, 1e4]]).repeat(9, 1))
    assert (block.module.running_var >= 0).all()
    assert (block.module.running_var <= 1e-6).all()
