"""A progress bar that waits: short runs show none."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from convergent import train
from dladmm import datasets, mlp
from dladmm.callbacks import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("delay", "shown"), [(0.0, True), (60.0, False)])
@pytest.mark.parametrize("mode", ["convergent", "streaming"])
def test_a_bar_appears_after_its_delay_on_a_terminal(delay, shown, mode):
    data, stream = datasets.load("digits"), Terminal()
    bar = ProgressBar("digits", stream, delay=delay)
    train(mlp([64, 8, 10]), data.x_train, data.y_train, mode=mode, max_iter=2, callbacks=[bar])
    assert ("digits" in stream.getvalue()) is shown


def test_the_seconds_left_are_at_the_pace_of_the_steps_of_this_run(monkeypatch):
    """Resumed after 30 of 100 batches, 20 more took 10 seconds: the 50 that are left take 25."""
    clock, stream = iter([100.0, 110.0]), io.StringIO()
    monkeypatch.setattr("dladmm.callbacks.progress.time.monotonic", lambda: next(clock))
    passes = SimpleNamespace(finished=3, batch=0, batches=10, total=10)
    trainer: Any = SimpleNamespace(passes=passes)
    bar = ProgressBar("digits", stream)
    bar._show_bar = lambda trainer: None
    bar.on_train_begin(trainer)
    passes.finished = 5
    bar.on_batch_end(trainer)
    assert stream.getvalue() == "digits: pass 6/10  batch 0/10  25 s left\n"


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_progress_says_which_rows_an_accuracy_is_of():
    data, said = datasets.load("digits"), {}
    for held in ("test", None):
        stream = io.StringIO()
        bar = ProgressBar("digits", stream) if held is None else ProgressBar("digits", stream, held=held)
        rows = {"validation": (data.x_test[:20], data.y_test[:20]), "callbacks": [bar]}
        train(mlp([64, 4, 10]), data.x_train[:60], data.y_train[:60], max_iter=1, **rows)
        said[held] = stream.getvalue()
    assert "train accuracy" in said["test"]
    assert "test accuracy" in said["test"]
    assert "held-out accuracy" in said[None]
    assert " val " not in said["test"] + said[None]
