"""Copies of an MLP as one chain, merged into one MLP, and trained by streaming mode."""

from __future__ import annotations

import pytest
import torch

from dladmm.engine.batch_sweep import BatchSweep
from dladmm.engine.batches import Batch
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.losses import CrossFitted, Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.network.ensemble import copy_of, ensemble, ensemble_parameters, merged

COPIES, ROWS = 4, 24
FLOAT64 = {"dtype": torch.float64, "device": torch.device("cpu")}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def fresh(widths, activation="relu"):
    chain = ensemble(widths, COPIES, activation)
    params = ensemble_parameters(chain, torch.Generator().manual_seed(3), **FLOAT64)
    for block in params:
        if block:
            block["b"] += drawn(*block["b"].shape)
    return chain, params


@pytest.mark.parametrize("widths", [[5, 3], [5, 7, 3], [5, 7, 6, 1], [5, 7, 6, 4, 2]])
def test_the_merged_network_is_the_mean_of_the_copies(widths):
    chain, params = fresh(widths, "tanh")
    x, single = drawn(ROWS, 5), mlp(widths, "tanh")
    copies = [single.predict(copy_of(params, COPIES, k), x) for k in range(COPIES)]
    assert torch.allclose(chain.predict(params, x), torch.cat(copies, 1), atol=1e-13)
    wide = mlp([5, *(COPIES * n for n in widths[1:-1]), widths[-1]], "tanh")
    found = merged(params, COPIES, sharpness=0.7)
    assert torch.allclose(wide.predict(found, x), 0.7 * torch.stack(copies).mean(0), atol=1e-13)
    assert torch.allclose(chain.to_module(params)(x), torch.cat(copies, 1), atol=1e-13)


@pytest.mark.parametrize("widths", [[5, 3], [5, 7, 3], [5, 7, 6, 1]])
def test_first_and_last_layers_begin_small(widths):
    chain = ensemble(widths, COPIES)
    drawn_weights = [
        p["W"] for p in ensemble_parameters(chain, torch.Generator().manual_seed(3), **FLOAT64) if p
    ]
    he = [p["W"] for p in chain.initial_parameters(torch.Generator().manual_seed(3), 1.0, **FLOAT64) if p]
    factors = [float((W / own).mean()) for W, own in zip(drawn_weights, he, strict=True)]
    first, last = [0.3][: len(he) - 1], 0.3 * 0.5**0.5
    assert factors == pytest.approx([*first, *[1.0] * (len(he) - 2), last])


def sweeps_of(chain, params, loss, x, target, options):
    engine = Engine(chain, x, Risk(loss, target))
    own = [{name: p.clone() for name, p in block.items()} for block in params]
    return BatchSweep(engine, own, options, ROWS)


def sweep(sweeps, batch, heavy, first):
    if first:
        sweeps.prepare(batch)
    sweeps.sweep(lambda: batch, heavy=heavy, first=first)


@pytest.mark.parametrize("name", ["cross_entropy", "squared"])
def test_equal_copies_learn_as_one_network_does(name):
    """With nothing held out every copy makes the steps of a run by itself: the same moves, and the same lengths."""
    widths, inner = [5, 7, 6, 3], get_loss(name)
    single, together = mlp(widths), ensemble(widths, COPIES)
    one = single.initial_parameters(torch.Generator().manual_seed(0), 1.0, **FLOAT64)
    same = [{n: p.repeat(COPIES, *[1] * (p.ndim - 1)) for n, p in block.items()} for block in one]
    x = drawn(ROWS, 5)
    y = inner.encode(torch.arange(ROWS) % 3 if name == "cross_entropy" else drawn(ROWS, 3), 3, torch.float64)
    loss = CrossFitted(inner, COPIES, 3)
    target = loss.targets(y, torch.full((ROWS,), -1))
    options = StreamingOptions(damping=1.0, momentum=0.9, smoothing=0.0)
    alone = sweeps_of(single, one, inner, x, y, options)
    copies = sweeps_of(together, same, loss, x, target, options)
    for j in range(20):
        rows = slice(8 * (j % 3), 8 * (j % 3) + 8)
        for sweeps, aims in ((alone, y), (copies, target)):
            for share in (sweeps.shares.metric, sweeps.shares.lengths, sweeps.shares.average):
                share.fill_(max(0.1, 1 / (j + 1)))
            sweeps.shares.fading.fill_(1.0)
            sweep(sweeps, Batch(x[rows], aims[rows]), heavy=j % 2 == 0, first=j == 0)
    for k in range(COPIES):
        for own, block in zip(copy_of(copies.params, COPIES, k), alone.params, strict=True):
            assert all(torch.allclose(own[n], block[n], rtol=1e-9, atol=1e-11) for n in block)


def test_labels_of_a_fold_reach_its_copy_through_the_length_of_the_step_alone():
    """Every copy's direction is free of the labels of its own fold; how far all go together is one number."""
    chain, params = fresh([5, 7, 6, 3], "tanh")
    inner, fold, x = get_loss("cross_entropy"), torch.arange(ROWS) % COPIES, drawn(ROWS, 5)
    loss = CrossFitted(inner, COPIES, 3)
    y = torch.arange(ROWS) % 3
    moves = []
    for labels in (y, torch.where(fold == 2, (y + 1) % 3, y)):
        target = loss.targets(inner.encode(labels, 3, torch.float64), fold)
        sweeps = sweeps_of(chain, params, loss, x, target, StreamingOptions(smoothing=0.0))
        for share in (sweeps.shares.metric, sweeps.shares.lengths, sweeps.shares.fading):
            share.fill_(1.0)
        sweep(sweeps, Batch(x, target), heavy=True, first=True)
        moves.append([running.moves for running in sweeps.running.values()])
    for k in range(COPIES):
        unchanged = []
        for before, after in zip(*moves, strict=True):
            first, second = (copy_of([block], COPIES, k)[0]["W"] for block in (before, after))
            factor = (first * second).sum() / first.square().sum()
            unchanged.append(torch.allclose(second, factor * first, rtol=1e-9))
        assert all(unchanged) if k == 2 else not any(unchanged)
