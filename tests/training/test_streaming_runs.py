"""Streaming runs as the trainer leads them: batches told to callbacks, stops and kills in mid-pass, history."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from convergent import train
from dladmm import Callback, InputError, Status, mlp
from dladmm.base.errors import BatchError
from dladmm.callbacks import Checkpoint, EarlyStopping, ProgressBar, StopOnSignal
from dladmm.training.checkpoint import latest


class Killed(BaseException):
    """A process that is gone: nobody catches it."""


class AfterBatch(Callback):
    """Does something after batch ``batch`` of pass ``number`` (both from 1)."""

    def __init__(self, number, batch, act):
        self.number, self.batch, self.act, self.seen = number, batch, act, []

    def on_batch_end(self, trainer):
        self.seen.append((trainer.passes.finished + 1, trainer.passes.batch))
        if self.seen[-1] == (self.number, self.batch):
            self.act(trainer)


def killed(trainer):
    raise Killed


def interrupted(trainer):
    raise KeyboardInterrupt


def stopped(trainer):
    trainer.request_stop(Status.EARLY_STOPPED)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    X = rng.normal(size=(400, 6)) + 1.5 * np.eye(3, 6)[y]
    return X.astype(np.float32), y


def run(data, callbacks=(), **options):
    settings = {"mode": "streaming", "max_iter": 3, "validation": None, "device": "cpu"} | options
    return train(mlp([6, 12, 3]), *data, callbacks=callbacks, **settings)


def equal(first, second):
    same = [
        torch.equal(a, b) for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True)
    ]
    left, right = first.history.to_dict(), second.history.to_dict()
    left.pop("seconds"), right.pop("seconds")
    return all(same) and left == right


def batches_of(rows):
    X, y = rows

    def batches():
        for start in range(0, 400, 30):
            yield X[start : start + 30], y[start : start + 30]

    return batches


def sources(rows):
    X, y = rows
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    return {
        "arrays": (X, y),
        "function": (batches_of(rows),),
        "loader": (DataLoader(dataset, batch_size=30, shuffle=True),),
    }


@pytest.mark.parametrize("kind", ["arrays", "function", "loader"])
@pytest.mark.parametrize("place", [(1, 5), (2, 8), (3, 4)])
def test_a_run_killed_in_mid_pass_and_resumed_is_the_same_run(rows, tmp_path, kind, place):
    data, options = sources(rows)[kind], {"batch_size": 30} if kind == "arrays" else {}
    whole = run(data, regularizer="l2", **options)
    with pytest.raises(Killed):
        run(
            data,
            [Checkpoint(tmp_path, every_batches=3), AfterBatch(*place, killed)],
            regularizer="l2",
            **options,
        )
    after = AfterBatch(0, 0, killed)
    resumed = run(data, [Checkpoint(tmp_path, resume=True), after], regularizer="l2", **options)
    first = place[1] // 3 * 3 + 1
    assert after.seen[0] == (place[0], first)
    assert equal(whole, resumed)


def test_a_checkpoint_of_mid_pass_is_not_that_of_the_pass_before(rows, tmp_path):
    """The planted fault of the test above: a resumed run that began the pass again would differ."""
    whole = run(rows, batch_size=30)
    with pytest.raises(Killed):
        run(rows, [Checkpoint(tmp_path, every=1), AfterBatch(2, 8, killed)], batch_size=30)
    after = AfterBatch(0, 0, killed)
    assert equal(whole, run(rows, [Checkpoint(tmp_path, resume=True), after], batch_size=30))
    assert after.seen[0] == (2, 1)


def test_a_request_in_mid_pass_keeps_the_average_and_can_be_resumed(rows, tmp_path):
    whole = run(rows, batch_size=30)
    stop = AfterBatch(2, 4, stopped)
    result = run(rows, [Checkpoint(tmp_path), stop], batch_size=30)
    assert result.status is Status.EARLY_STOPPED
    assert result.history.n_iter == 1, "a row per whole pass"
    after_one = run(rows, max_iter=3, batch_size=30, callbacks=[AfterBatch(1, 13, stopped)])
    assert not torch.equal(result.state.params[0]["W"], after_one.state.params[0]["W"])
    assert equal(whole, run(rows, [Checkpoint(tmp_path, resume=True)], batch_size=30))


@pytest.mark.parametrize("act", [stopped, interrupted])
def test_what_a_stop_in_mid_pass_hands_out_is_the_average(rows, act):
    kept = {}

    def look(trainer):
        kept["average"] = trainer.passes.network()
        kept["iterate"] = [{n: p.clone() for n, p in b.items()} for b in trainer.method.sweeps.params]
        act(trainer)

    result = run(rows, [AfterBatch(1, 6, look)], batch_size=30)
    assert result.status is (Status.EARLY_STOPPED if act is stopped else Status.INTERRUPTED)
    assert torch.equal(result.state.params[0]["W"], kept["average"][0]["W"])
    assert not torch.equal(result.state.params[0]["W"], kept["iterate"][0]["W"])
    assert result.history.n_iter == 0


def test_every_batch_is_told_and_nothing_is_asked_without_need(rows):
    after = AfterBatch(0, 0, killed)
    run(rows, [after], max_iter=2, batch_size=100)
    assert after.seen == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4)]

    class Looks(Callback):
        def on_epoch_end(self, trainer):
            assert trainer.method.after_batch is None

    run(rows, [Looks(), EarlyStopping("loss")], max_iter=1)


def test_signals_end_the_run_after_the_batch(rows):
    stop = StopOnSignal()

    class Signal(Callback):
        def on_batch_end(self, trainer):
            stop.received = 15

    result = run(rows, [Signal(), stop], batch_size=30)
    assert result.status is Status.INTERRUPTED
    assert result.history.n_iter == 0


def test_a_checkpoint_by_time(rows, tmp_path):
    with pytest.raises(Killed):
        run(rows, [Checkpoint(tmp_path, every_seconds=0.0), AfterBatch(2, 4, killed)], batch_size=30)
    after = AfterBatch(0, 0, killed)
    resumed = run(rows, [Checkpoint(tmp_path, resume=True), after], batch_size=30)
    assert after.seen[0] == (2, 5)
    assert equal(run(rows, batch_size=30), resumed)


@pytest.mark.parametrize("setting", [{"every_batches": 0}, {"every_batches": 1.5}, {"every_seconds": -1.0}])
def test_intervals_are_checked(tmp_path, setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        Checkpoint(tmp_path, **setting)


def test_one_row_per_pass_with_everything_in_it(rows):
    X, y = rows
    result = run((X[:300], y[:300]), max_iter=4, validation=(X[300:], y[300:]))
    for name in ("loss", "train_accuracy", "val_loss", "val_accuracy"):
        assert len(result.history[name]) == 4
        assert all(value is not None and math.isfinite(value) for value in result.history[name])


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_early_stopping_counts_passes(rows):
    X, y = rows
    rng = np.random.default_rng(1)
    stop = EarlyStopping("val_loss", patience=2)
    result = run((X, rng.permutation(y)), [stop], max_iter=60, validation=(X, y), batch_size=30)
    assert result.history.n_iter < 60
    assert stop.best_iteration == result.history.n_iter - 2


def test_progress_shows_passes_batches_and_seconds(rows, monkeypatch):
    monkeypatch.setattr("dladmm.callbacks.progress.PATIENT", 0.0)
    stream = io.StringIO()
    run(rows, [ProgressBar("stream", stream)], max_iter=2, batch_size=100)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("stream: pass 1/2  batch 1/4")
    assert lines[0].endswith("s left")
    assert any(line.startswith("stream: pass 1/2  loss") for line in lines)
    assert lines[-1].startswith("stream: pass 2/2  loss")


def test_progress_of_a_stream_of_unknown_length(rows, monkeypatch):
    monkeypatch.setattr("dladmm.callbacks.progress.PATIENT", 0.0)
    monkeypatch.setattr("dladmm.api.stream_batches.FIRST_ROWS", 60)
    stream = io.StringIO()
    run((batches_of(rows),), [ProgressBar("stream", stream)], max_iter=2)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "stream: pass 1/2  batch 1"
    assert any(line.startswith("stream: pass 2/2  batch 3/14") and "s left" in line for line in lines)


def test_a_bad_batch_leaves_what_was_learned(rows, tmp_path, monkeypatch):
    """The module has the network of the batches before, and the run goes on when the batch is mended."""
    monkeypatch.setattr("dladmm.api.stream_batches.FIRST_ROWS", 60)
    X, y = rows
    bad = X.copy()
    bad[200, 2] = np.nan
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    settings = {"mode": "streaming", "max_iter": 2, "device": "cpu"}
    with pytest.raises(BatchError, match=r"batch 7 of pass 1: x contains NaN .* Mend or leave out") as caught:
        train(model, batches_of((bad, y)), callbacks=[Checkpoint(tmp_path)], **settings)
    assert isinstance(caught.value, InputError)
    learned = (model(torch.from_numpy(X)).argmax(1).numpy() == y).mean()
    assert learned > 0.7
    after = AfterBatch(0, 0, killed)
    result = train(
        mlp([6, 12, 3]), batches_of(rows), callbacks=[Checkpoint(tmp_path, resume=True), after], **settings
    )
    assert after.seen[0] == (1, 7)
    assert equal(result, train(mlp([6, 12, 3]), batches_of(rows), **settings))
    assert latest(tmp_path) is not None
