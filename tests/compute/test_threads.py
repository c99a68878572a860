"""How many threads a run has on a CPU: small products gain nothing from a second one."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

import dladmm
from dladmm.callbacks import Callback
from dladmm.compute.execution import SMALL_PRODUCT, threads_for
from dladmm.engine.batches import ArrayBatches


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Looking(Callback):
    def __init__(self, fails=False):
        self.seen, self.fails = [], fails

    def on_epoch_end(self, trainer):
        self.seen.append(torch.get_num_threads())
        if self.fails:
            raise RuntimeError("on purpose")


def fit(n_rows, width, looking, **settings):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n_rows, width)).astype("float32"), np.arange(n_rows) % 2
    chain = dladmm.mlp([width, width, 2])
    return dladmm.train(chain, X, y, max_iter=1, callbacks=[looking], **settings)


@pytest.mark.parametrize("mode", ["convergent", "accelerated", "streaming"])
def test_a_small_run_has_one_thread_and_gives_the_others_back(mode):
    looking = Looking()
    fit(40, 5, looking, mode=mode)
    assert set(looking.seen) == {1}
    assert torch.get_num_threads() == 3


def test_a_large_run_has_all_threads():
    looking = Looking()
    fit(900, 100, looking, mode="convergent")
    assert SMALL_PRODUCT < 900 * 100 * 100
    assert looking.seen == [3]


def test_of_streaming_mode_the_rows_of_a_batch_count():
    few, many = Looking(), Looking()
    fit(900, 100, few, mode="streaming", batch_size=100)
    fit(900, 100, many, mode="streaming", batch_size=900)
    assert (few.seen, many.seen) == ([1], [3])


def test_a_run_that_fails_gives_the_threads_back():
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(40, 5, Looking(fails=True), mode="accelerated")
    assert torch.get_num_threads() == 3


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_the_largest_product_of_a_network_by_hand():
    chain = dladmm.mlp([7, 30, 4])
    result = dladmm.train(chain, np.zeros((11, 7)), np.arange(11) % 4, max_iter=1, mode="convergent")
    from dladmm.engine.sweep import Engine

    engine = Engine.__new__(Engine)
    engine.x, engine.chain = torch.zeros(11, 7), chain
    batches = ArrayBatches(torch.zeros(11, 7), torch.zeros(11, 4), None, None, 2, 0)
    assert Engine.largest_product(engine, result.state, batches) == 5.5 * 7 * 30


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_a_recurrent_layer_makes_its_products_step_by_step():
    """Of 300 steps each is small: with a second thread every one of them would wait for it."""
    network = nn.Sequential(
        nn.Unflatten(1, (300, 2)), dladmm.Recurrent(nn.GRU(2, 64, batch_first=True)), nn.Linear(64, 2)
    )
    looking = Looking()
    dladmm.train(
        network, torch.randn(40, 600), torch.arange(40) % 2, mode="streaming", max_iter=1, callbacks=[looking]
    )
    assert looking.seen == [1]
    assert SMALL_PRODUCT < 20 * 300 * 64 * 64


def test_runs_that_overlap_give_the_threads_back():
    """Runs of several Python threads; torch has a number for each, and one for the process."""
    inside, leave, found = threading.Event(), threading.Event(), []

    def other():
        with threads_for(1):
            found.append(torch.get_num_threads())
            inside.set()
            leave.wait(10)
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    with threads_for(1):
        thread.start()
        assert inside.wait(10)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    leave.set()
    thread.join()
    assert (found, torch.get_num_threads()) == ([1, 3], 3)
    with threads_for(SMALL_PRODUCT + 1):
        assert torch.get_num_threads() == 3
