"""Streaming mode on several ranks: each has its own batches, sums are those of all of them."""

from __future__ import annotations

import numpy as np
import pytest

import distributed_tasks as tasks
from distributed_pool import Pool
from dladmm.engine.streaming_options import StreamingOptions


@pytest.fixture(scope="module")
def pool():
    pool = Pool(size=2)
    yield pool
    pool.close()


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first["module"], second["module"], strict=True))


@pytest.mark.parametrize("kind", ["arrays", "function", "ranks"])
@pytest.mark.parametrize("settings", [{}, {"regularizer": "l2"}])
def test_two_ranks_have_one_network(pool, kind, settings):
    first, second = pool.run(tasks.streamed, 2, kind, settings)
    assert same(first, second)
    assert first["history"] == second["history"]
    assert len(first["history"]["loss"]) == 3


@pytest.mark.parametrize("settings", [{}, {"regularizer": {"name": "l2", "strength": 5.0}}])
def test_two_ranks_are_one_process_on_the_union(pool, settings):
    """Batch j of one process holds the rows of batch j on both ranks: equal but for the order of the sums.

    The scaling is fitted on the same rows. The stream's length is known, for the whole of it is among the first rows.
    """
    (alone,) = pool.run(tasks.streamed, 1, "function", settings)
    both = pool.run(tasks.streamed, 2, "function", settings)[0]
    for a, b in zip(alone["module"], both["module"], strict=True):
        assert np.allclose(a, b, rtol=1e-6, atol=1e-8)


def test_arrays_cut_among_ranks_train_as_well_as_one_process(pool):
    """Each rank shuffles its own rows: other batches than those of one process, of the same size, as good a network."""
    options = {"batch_size": 24, "streaming": StreamingOptions(smoothing=0.1)}
    (alone,) = pool.run(tasks.streamed, 1, "arrays", options)
    both = pool.run(tasks.streamed, 2, "arrays", options)[0]
    losses = [run["history"]["val_loss"][-1] for run in (alone, both)]
    assert losses[1] < 1.15 * losses[0] + 0.02
    assert both["history"]["val_accuracy"][-1] >= alone["history"]["val_accuracy"][-1] - 0.07


def test_a_pass_ends_with_the_shortest_stream(pool):
    first, second = pool.run(tasks.streamed, 2, "function", {}, (120, 60))
    short = pool.run(tasks.streamed, 2, "function", {}, (60, 60))[0]
    assert same(first, second)
    assert first["status"] == "PASSES_MADE"
    assert first["history"]["loss"][-1] != short["history"]["loss"][-1], "the monitor sample is larger"


def test_a_stop_on_one_rank_stops_all_and_is_resumed(pool, tmp_path):
    whole = pool.run(tasks.streamed_and_stopped, 2, str(tmp_path / "whole"), False)[0]
    stopped = pool.run(tasks.streamed_and_stopped, 2, str(tmp_path / "two"), True)
    assert [run["status"] for run in stopped] == ["EARLY_STOPPED"] * 2
    assert len(stopped[0]["history"]["loss"]) == 1
    assert same(*stopped)
    resumed = pool.run(tasks.streamed_and_stopped, 2, str(tmp_path / "two"), False)
    assert same(*resumed)
    assert same(resumed[0], whole)


def test_a_bad_batch_of_one_rank_is_refused_by_all(pool):
    first, second = pool.outcomes(tasks.streamed_with_a_bad_batch, 2)
    assert "BatchError" in second[1]
    assert "batch 6 of pass 1" in second[1]
    assert first[1] is not None
    assert "refused" in first[1]


@pytest.mark.parametrize("norm", ["LayerNorm", "BatchNorm1d"])
def test_a_module_that_is_no_chain_is_one_network_on_two_ranks(pool, norm):
    first, second = pool.run(tasks.streamed, 2, "function", {"norm": norm, "regularizer": "l2"})
    assert same(first, second)
    assert first["history"] == second["history"]
    if norm == "LayerNorm":
        (alone,) = pool.run(tasks.streamed, 1, "function", {"norm": norm, "regularizer": "l2"})
        for a, b in zip(alone["module"], first["module"], strict=True):
            assert np.allclose(a, b, rtol=1e-6, atol=1e-8)
