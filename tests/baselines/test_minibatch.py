"""Mini-batch baselines: each against a loop written out by hand, resumed bit for bit, and refused where it must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dladmm import Callback, InputError, Status, baselines, datasets, mlp
from dladmm.api.train import fresh_parameters
from dladmm.baselines.muon import AVAILABLE
from dladmm.callbacks import Checkpoint

# Steps of a few iterations are the subject, not what the networks have learnt
pytestmark = pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")

CPU = torch.device("cpu")
OPTIMIZERS = {
    "gd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
}
BATCHED = [*OPTIMIZERS, *(["muon"] if AVAILABLE else [])]
needs_muon = pytest.mark.skipif(not AVAILABLE, reason="torch has Muon from 2.9 on")


def rows(seed=0, n=50, features=5, classes=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, features)), rng.integers(0, classes, n)


def orders(n, size, passes, seed):
    """The rows of every batch: shuffled by seed and pass, all batches of one size."""
    n_batches = max(1, round(n / size))
    for number in range(passes):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
        yield from order[: n_batches * (n // n_batches)].split(n // n_batches)


def leaves_of(sizes, seed):
    start = fresh_parameters(mlp(sizes), seed, 1.0, None, torch.float64, CPU)
    return [p.clone().requires_grad_() for block in start for p in block.values()]


def network(leaves, v):
    for l in range(0, len(leaves), 2):
        v = v @ leaves[l].T + leaves[l + 1]
        v = torch.relu(v) if l < len(leaves) - 2 else v
    return v


def trained(name, X, y, **arguments):
    settings = {"dtype": "float64", "max_iter": 3, "random_state": 2, "batch_size": 16, "device": "cpu"}
    return baselines.train(name, mlp([5, 7, 3]), X, y, **settings | arguments)


def assert_near(result, leaves):
    found = [p for block in result.state.params for p in block.values()]
    for mine, theirs in zip(found, leaves, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("schedule", [None, "linear"])
def test_steps_are_those_of_a_loop_written_out(name, schedule):
    X, y = rows()
    result = trained(name, X, y, lr=0.01, schedule=schedule, regularizer={"name": "l2", "strength": 0.4})
    leaves = leaves_of([5, 7, 3], 2)
    optimizer = OPTIMIZERS[name](leaves, lr=0.01)
    x, target = torch.from_numpy(X), torch.from_numpy(y)
    batches = list(orders(50, 16, 3, 2))
    assert len(batches) == 9
    for k, batch in enumerate(batches):
        if schedule == "linear":
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - k / 9)
        optimizer.zero_grad()
        penalty = 0.4 / 2 * (leaves[0].square().sum() + leaves[2].square().sum())
        (F.cross_entropy(network(leaves, x[batch]), target[batch]) + penalty / 50).backward()
        optimizer.step()
    assert_near(result, leaves)
    value = F.cross_entropy(network(leaves, x), target, reduction="sum") + penalty_of(leaves, 0.4)
    # All 50 rows are monitored
    assert result.history["lagrangian"][-1] == pytest.approx(float(value.detach()), rel=1e-9)
    assert result.certificate.baseline == name
    assert result.history.n_iter == 3


def penalty_of(leaves, strength):
    return strength / 2 * sum(leaves[l].square().sum() for l in range(0, len(leaves), 2))


@needs_muon
def test_muon_has_the_hidden_matrices_and_adamw_the_rest():
    X, y = rows()
    result = trained("muon", X, y, lr=0.01)
    leaves = leaves_of([5, 7, 3], 2)
    muon = torch.optim.Muon(leaves[:1], lr=0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(leaves[1:], lr=0.01, weight_decay=0.0)
    for batch in orders(50, 16, 3, 2):
        muon.zero_grad()
        adam.zero_grad()
        loss = F.cross_entropy(network(leaves, torch.from_numpy(X)[batch]), torch.from_numpy(y)[batch])
        loss.backward()
        muon.step()
        adam.step()
    assert_near(result, leaves)


@needs_muon
def test_muon_trains_full_batch_and_graphs_too():
    X, y = rows()
    result = baselines.train("muon", mlp([5, 7, 3]), X, y, max_iter=5, device="cpu")
    assert result.history["loss"][-1] < result.history["loss"][0]
    graph = baselines.train_graph("muon", datasets.load("karate"), hidden=(8,), max_iter=2, device="cpu")
    assert graph.certificate.baseline == "muon"


def test_sample_weights_count_as_repetitions_do_in_the_mean():
    """One batch per pass: a weighted row is a repeated row."""
    X, y = rows(1)
    weight = np.arange(len(y)) % 3 + 1
    each = np.repeat(np.arange(len(y)), weight)
    some = trained("adam", X, y, sample_weight=weight, batch_size=50)
    repeated = trained("adam", X[each], y[each], batch_size=len(each))
    assert_near(some, [p for block in repeated.state.params for p in block.values()])


@pytest.mark.parametrize("name", BATCHED)
def test_it_learns_and_takes_unscaled_inputs_when_it_scales(name):
    data = datasets.load("digits")
    result = baselines.train(
        name, mlp([64, 30, 10]), 100 * data.x_train, data.y_train, batch_size=64, max_iter=2,
        lr=1.0 if name in ("gd", "adadelta") else 0.01,
        scale_inputs=True, validation=(100 * data.x_test, data.y_test), diagnostics_every=1, device="cpu",
    )  # fmt: skip
    assert result.history["loss"][-1] < 2.3
    with torch.no_grad():
        hits = result.module(100 * data.x_test).argmax(1) == data.y_test
    assert float(hits.double().mean()) == pytest.approx(result.history["val_accuracy"][-1], abs=1e-9)


def test_without_a_number_of_passes_there_are_ten():
    X, y = rows(n=20)
    assert baselines.train("adam", mlp([5, 3]), X, y, batch_size=10, device="cpu").history.n_iter == 10


class StopAt(Callback):
    def __init__(self, iteration):
        self.iteration = iteration

    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == self.iteration:
            trainer.request_stop(Status.INTERRUPTED)


@pytest.mark.parametrize("name", BATCHED)
def test_a_resumed_run_ends_where_an_unbroken_one_does(name, tmp_path):
    X, y = rows()
    common = {"max_iter": 4, "schedule": "linear"}
    whole = trained(name, X, y, **common)
    trained(name, X, y, callbacks=[Checkpoint(tmp_path, every=1), StopAt(2)], **common)
    again = trained(name, X, y, callbacks=[Checkpoint(tmp_path, every=1, resume=True)], **common)
    assert again.history.n_iter == 4
    for mine, theirs in zip(again.state.params, whole.state.params, strict=True):
        for key in mine:
            assert torch.equal(mine[key], theirs[key])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adam", {"batch_size": 0}, "batch_size must be a whole number >= 1, or None, got 0"),
        ("adam", {"batch_size": True}, "batch_size must be a whole number"),
        ("adam", {"batch_size": 8, "schedule": "cosine"}, "schedule must be 'linear' or None, got 'cosine'"),
        ("adam", {"schedule": "linear"}, "schedule is for mini-batches; give batch_size too"),
        ("lbfgs", {"batch_size": 8}, "lbfgs needs the whole objective in every step"),
        ("admm", {"batch_size": 8}, "admm needs the whole objective in every step"),
        ("adam", {"batch_size": 8, "rho": 1.0}, "adam has no option rho"),
        ("adam", {"batch_size": 8, "lr": 0.0}, "lr must be"),
        ("adam", {"batch_size": 8, "regularizer": "non_negative"}, "cannot keep the constraint"),
    ],
)
def test_what_does_not_fit_is_refused(name, arguments, message):
    X, y = rows(n=20)
    with pytest.raises(InputError, match=message):
        baselines.train(name, mlp([5, 3]), X, y, device="cpu", **arguments)


def test_graphs_have_no_batches():
    with pytest.raises(InputError, match="a graph is one sample"):
        baselines.train_graph("adam", datasets.load("karate"), batch_size=8)
