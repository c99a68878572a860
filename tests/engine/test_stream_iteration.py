"""What a streaming run does to a batch before its sweep, scaling and dropping; an embedding's running sums."""

from __future__ import annotations

import pytest
import torch

from dladmm.blocks import Embedding, Work
from dladmm.engine.batches import ArrayBatches, Batch
from dladmm.engine.running_table import RunningTable
from dladmm.engine.streaming import Streaming
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.network.scaling import Scaling
from dladmm.regularizers import Signed
from dladmm.solvers.subproblems import SubproblemOptions
from problems import random_problem

F64 = torch.float64


def streaming(dropout=0.4, seed=5, scaling=None, scaled=False):
    engine, state = random_problem(2, depth=2, samples=30)
    batches = ArrayBatches(engine.x, engine.risk.target, None, None, 3, seed)
    batches.scaled = scaled
    return Streaming(engine, state, batches, 4, StreamingOptions(), dropout, seed, scaling)


def test_dropped_entries_are_made_up_for_and_others_in_every_batch():
    method = streaming()
    x = torch.ones(200, 50, dtype=F64)
    prepared = []
    for step in (1, 2, 1):
        method.step_number = step
        prepared.append(method._prepared(Batch(x, x), method._draw(x)).x)
    assert torch.equal(prepared[0], prepared[2])
    assert not torch.equal(prepared[0], prepared[1])
    assert set(prepared[0].unique().tolist()) == {0.0, 1 / 0.6}
    assert float(prepared[0].mean()) == pytest.approx(1.0, abs=0.05)
    assert torch.equal(method._prepared(Batch(x, x), None).x, x)
    other = streaming(seed=6)
    other.step_number = 1
    assert not torch.equal(other._draw(x), method._draw(x))


def test_nothing_is_dropped_in_the_first_pass():
    method = streaming()
    assert not method._drops
    method.finished_passes = 1
    assert method._drops
    none = streaming(dropout=0.0)
    none.finished_passes = 1
    assert not none._drops


@pytest.mark.parametrize("scaled", [False, True])
def test_inputs_are_scaled_once(scaled):
    shift, scale = torch.tensor(2.0, dtype=F64), torch.tensor(4.0, dtype=F64)
    method = streaming(scaling=Scaling(shift, scale), scaled=scaled)
    x = torch.arange(6.0, dtype=F64).reshape(3, 2)
    expected = x if scaled else (x - 2) / 4
    assert torch.equal(method._prepared(Batch(x, x), None).x, expected)


def test_an_embedding_steps_by_how_often_its_rows_are_used():
    """With keep 0: ``-dR/dW`` over root of spread and over use plus damping times the mean use."""
    block = Embedding(4, 2)
    W = torch.zeros(4, 2, dtype=F64)
    tokens = torch.tensor([[0.0], [0.0], [0.0], [1.0]], dtype=F64)
    gradient = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]], [[1.0, 1.0]], [[5.0, 1.0]]], dtype=F64) / 4
    running, work = RunningTable(block, {"W": W}), Work(SubproblemOptions())
    running.observe_inputs({"W": W}, tokens, gradient, gradient, work, torch.ones((), dtype=F64))
    assert running.often.tolist() == [0.75, 0.25, 0.0, 0.0]
    spread = float(gradient.square().sum()) * 4 / 2
    assert float(running.spread) == pytest.approx(spread)
    running.refactor(0.5)
    running.aim({"W": W}, tokens, gradient, gradient, {}, work, 0.0)
    slope = torch.stack([gradient[:3].sum((0, 1)), gradient[3, 0], *torch.zeros(2, 2, dtype=F64)])
    use = torch.tensor([0.75, 0.25, 0.0, 0.0], dtype=F64) + 0.5 * 0.25
    torch.testing.assert_close(running.moves["W"], -slope / use[:, None] / spread**0.5)


def test_signs_hold_after_every_step():
    """The constraint of a monotone network's block beside no penalty: entries that a step would turn over are zero."""
    method = streaming(dropout=0.0)
    first = method.engine.chain.blocks[0]
    W = method.sweeps.params[0]["W"]
    first.constraint = Signed(torch.ones_like(W))
    W.copy_(W.abs() * 1e-3)
    for number in range(3):
        for batch in method.batches.one_pass(number):
            method.step(batch)
            assert bool((W >= 0).all())
    assert bool((W == 0).any())
    assert bool((W > 0).any())
