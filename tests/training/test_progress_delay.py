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
