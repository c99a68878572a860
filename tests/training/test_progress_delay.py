"""A progress bar that waits: short runs show none."""

from __future__ import annotations

import io

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
