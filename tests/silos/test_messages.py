"""How many messages an iteration takes, and what travels with them."""

from __future__ import annotations

import pytest
import torch
from test_same_network import WIDTHS, digits, furthest, silos_of

from dladmm import mlp, train
from dladmm.base.history import Status
from dladmm.callbacks import Callback
from dladmm.silos import Hub, run_silos, train_silo
from dladmm.silos.communicator import Silo

# Silos are threads, and filters of warnings are not theirs alone
pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS = len(WIDTHS) - 1


def rounds(parts, n, **settings):
    hub = Hub(2)
    silos_of(parts, hub=hub, max_iter=n, dtype="float64", diagnostics_every=1000, **settings)
    return hub.traffic.calls


def halves(n_rows):
    X, y = digits(n_rows)
    return [(X[k::2], y[k::2]) for k in range(2)]


@pytest.mark.parametrize(("settings", "each"), [
    ({"mode": "convergent"}, 2 * LAYERS),
    ({"mode": "accelerated", "regularizer": "l2"}, 2 * LAYERS),
    ({"mode": "accelerated", "sweep": "backward"}, LAYERS + 1),
])  # fmt: skip
def test_a_message_for_every_update_of_parameters_and_one_more(settings, each):
    """Those of the safeguard, of the history, of the agreement on parameters and of stop requests are that one."""
    parts = halves(120)
    assert rounds(parts, 5, **settings) - rounds(parts, 2, **settings) == 3 * each


def test_a_batch_of_streaming_mode_takes_one_message_or_two():
    """One for the gradients of all layers, and one for the step length where it is measured: batches 1 to 8, 12, ..."""
    parts, settings = halves(400), {"mode": "streaming"}
    few, many = (rounds(parts, 1, batch_size=400 // n, **settings) for n in (8, 20))
    assert many - few == 12 + 3  # twelve batches more, of which 12, 16 and 20 are measured
    assert few - (8 + 8) <= 20  # before the first batch, and after the last


def test_updates_on_the_way_back_alone_are_the_same_over_silos():
    X, y = digits(200)
    settings = {"mode": "accelerated", "sweep": "backward", "dtype": "float64", "max_iter": 6}
    pooled = train(mlp(WIDTHS), X, y, **settings)
    (result, _), *_ = silos_of([(X[:70], y[:70]), (X[70:], y[70:])], **settings)
    assert furthest(result, pooled) < 1e-10
    assert result.history.last("objective") < 0.5 * result.history["objective"][0]


class Asks(Callback):
    """Requests a stop after the second iteration on one silo."""

    def __init__(self, silo):
        self.silo = silo

    def on_epoch_end(self, trainer):
        if self.silo == 1 and trainer.history.n_iter == 2:
            trainer.request_stop(Status.INTERRUPTED)


def test_a_stop_that_one_silo_asks_for_reaches_all_with_the_next_sums():
    def task(k, part):
        settings = {"mode": "convergent", "max_iter": 9, "smallest": 1, "callbacks": [Asks(k)]}
        return lambda silo: train_silo(silo, mlp(WIDTHS), *part, **settings)

    found = run_silos([task(k, part) for k, part in enumerate(halves(120))])
    assert [result.status for result in found] == [Status.INTERRUPTED] * 2
    assert [result.history.n_iter for result in found] == [3, 3]
    assert furthest(found[0], found[1]) == 0


class Echo:
    """A server of one silo."""

    def __init__(self):
        self.hub, self.sent = Hub(1), []

    def exchange(self, said):
        self.sent.append(len(said))
        return self.hub.answer({0: said})[0]


def test_what_is_the_same_everywhere_does_not_travel():
    link = Echo()
    silo = Silo(link)
    before, large = len(link.sent), torch.arange(10_000.0)
    silo.from_first(large)
    assert sum(link.sent[before:]) < 500
    assert silo.largest_wish(3) == 0
    silo.total(torch.zeros(1))
    assert silo.largest_wish(0) == 3
    silo.total(torch.zeros(1))
    assert silo.largest_wish(0) == 0


def test_the_first_silos_parameters_are_taken_where_they_differ():
    def task(k):
        def run(silo):
            own = torch.full((3,), float(k))
            silo.from_first(own)
            return own.tolist()

        return run

    assert run_silos([task(5), task(7)]) == [[5.0] * 3] * 2


def test_weighted_batches_count_their_own_samples():
    """Two silos with the same rows and weights are one silo with rows that count twice as much."""
    X, y = digits(100)
    weight = torch.linspace(0.1, 3.0, 100).numpy()
    settings = {"mode": "streaming", "dtype": "float64", "max_iter": 2, "batch_size": 20, "dropout": 0.0}
    (one, _), _ = silos_of([(X, y, weight)] * 2, **settings | {"batch_size": 40})
    pooled = train(mlp(WIDTHS), X, y, sample_weight=2 * weight, **settings)
    assert furthest(one, pooled) < 1e-10
