"""Mini-batches: their order depends on the seed and the pass, and rows keep their targets, weights and counts."""

from __future__ import annotations

import pytest
import torch

from dladmm.engine.batch_sweep import BatchSweep
from dladmm.engine.batches import (
    MONITOR_ROWS,
    ArrayBatches,
    Batch,
    default_batch_size,
    default_passes,
    default_smoothing,
    monitor_rows,
    shuffled,
)
from dladmm.engine.rounds import Rounds, looks
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.network.finite import with_weights


def rows_of(batches):
    return [batch.x[:, 0].long().tolist() for batch in batches]


def made(seed=3, **more):
    x = torch.arange(20.0, dtype=torch.float64)[:, None]
    return ArrayBatches(x, 10 * x, None, None, 4, seed, **more)


def test_orders_depend_on_seed_and_pass_alone():
    orders = [tuple(shuffled(30, seed, number).tolist()) for seed in (0, 1) for number in (0, 1, 2)]
    assert len(set(orders)) == 6
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert tuple(shuffled(30, 1, 2).tolist()) == orders[-1]


def test_a_pass_resumed_in_the_middle_is_the_rest_of_it():
    whole = rows_of(made().one_pass(2))
    assert rows_of(made().one_pass(2, skip=3)) == whole[3:]
    assert sorted(row for rows in whole for row in rows) == list(range(20))
    assert rows_of(made(seed=4).one_pass(2)) != whole
    assert rows_of(made().one_pass(1)) != whole


def test_rows_keep_what_belongs_to_them():
    x = torch.arange(6.0)[:, None]
    target = torch.arange(12.0)[:, None]  # two positions per sample
    batches = ArrayBatches(x, target, 100 + target, 7 + x, 1, 0)
    batch = batches.batch(torch.tensor([4, 1]))
    assert batch.target[:, 0].tolist() == [8, 9, 2, 3]
    assert batch.weight[:, 0].tolist() == [108, 109, 102, 103]
    assert batch.counts[:, 0].tolist() == [11, 8]
    part = Batch(x, x, None, 7 + x).part(2, 4)
    assert (part.x[:, 0].tolist(), part.counts[:, 0].tolist()) == ([2, 3], [9, 10])


def test_sizes_passes_and_smoothing():
    assert [default_batch_size(n, convolutions=False) for n in (8, 300, 1000, 5000, 100_000)] == [
        8,
        32,
        128,
        256,
        512,
    ]
    assert [default_batch_size(n, convolutions=True) for n in (300, 1000, 100_000)] == [32, 64, 256]
    counted = [(3, 100), (8, 1000), (78, 20_000), (98, 50_000), (98, None), (None, None)]
    assert [default_passes(*each) for each in counted] == [100, 38, 20, 10, 10, 10]
    assert [default_passes(n, 1000, convolutions=True) for n in (16, 100)] == [19, 10]
    assert [default_passes(9999, n, jumps=True) for n in (50_000, None)] == [20, 20]
    assert [default_smoothing(n) for n in (None, 5000, 50_000, 10**6)] == pytest.approx([0.1, 0.01, 0.1, 0.1])
    assert [default_smoothing(n, jumps=True) for n in (None, 50, 50_000)] == [0.1] * 3
    device = torch.device("cpu")
    some = monitor_rows(5000, 1, device)
    assert len(some) == MONITOR_ROWS
    assert some.tolist() == sorted(set(some.tolist()))
    assert len(monitor_rows(5000, 1, device, n_ranks=3)) == -(-MONITOR_ROWS // 3)
    assert monitor_rows(5000, 2, device).tolist() != some.tolist()
    assert monitor_rows(10, 0, device).tolist() == list(range(10))


@pytest.mark.parametrize(
    ("jumps", "finite", "n_samples", "expected"),
    [
        (False, False, 100, (1.5, 0.3)),
        (False, True, 100, (1.5, 0.3)),
        (True, False, 14_999, (3.0, 1.0)),
        (True, False, 15_000, (1.5, 0.3)),
        (True, False, None, (1.5, 0.3)),
        (True, True, 60_000, (3.0, 1.0)),
        (True, True, None, (3.0, 1.0)),
    ],
)
def test_networks_with_jumps_make_longer_steps_with_weights_of_a_set_or_few_rows(
    jumps, finite, n_samples, expected
):
    about = {"jumps": jumps, "finite": finite, "n_samples": n_samples}
    assert StreamingOptions().bounds(**about) == expected
    assert StreamingOptions(planned=False).bounds(**about) == (1.5, 0.3)
    assert StreamingOptions(stretch=2.0, largest_change=0.1).bounds(**about) == (2.0, 0.1)


@pytest.mark.parametrize(
    ("weights", "n", "stretch"), [(None, 40, 3.0), (None, 15_000, 1.5), ("binary", 15_000, 3.0)]
)
def test_a_sweep_takes_the_bounds_of_its_chain_and_rows(weights, n, stretch):
    chain = mlp([2, 3, 2], "sign")
    chain = chain if weights is None else with_weights(chain, weights)
    x = torch.zeros(4, 2, dtype=torch.float64)
    params = chain.initial_parameters(torch.Generator().manual_seed(0), 1.0, dtype=x.dtype, device=x.device)
    sweep = BatchSweep(Engine(chain, x, Risk(get_loss("squared"), x)), params, StreamingOptions(), n)
    assert sweep.stretch == stretch


def test_rounds_are_the_passes_between_two_looks():
    assert looks(12, 4) == [1, 2, 3, 4, 5, 8, 11, 12]
    assert looks(12, 1)[0] == 4
    x = torch.arange(12.0, dtype=torch.float64)[:, None]
    rounds = Rounds(x, x, None, 3, 8, 5)
    plain = ArrayBatches(x, x, None, None, 3, 5)
    expected = [batch for number in range(5, 8) for batch in rows_of(plain.one_pass(number))]
    assert rounds.ends == [2, 3, 4, 5, 8]
    assert rows_of(rounds.one_pass(4)) == expected
    assert rows_of(rounds.one_pass(4, skip=4)) == expected[4:]
