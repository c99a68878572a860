"""Test accuracy by iteration: measured here, read here."""

from __future__ import annotations

from collections.abc import Collection

from dladmm.callbacks import Callback
from dladmm.report.data import Run
from dladmm.training.standing import score
from dladmm.training.trainer import Trainer

SHOWN = (*range(1, 11), 20, 50, 100, 150, 200, 300, 400, 500)
"""Iterations whose test accuracy is always measured, and stands in the record of a cell."""


class AccuracyAt(Callback):
    """Measures test accuracy at given iterations, whatever the interval of the other measurements.

    The cost is one forward pass per measurement; the values go into the run's history.
    """

    def __init__(self, iterations: Collection[int] = SHOWN) -> None:
        self.iterations = frozenset(iterations)

    def on_epoch_end(self, trainer: Trainer) -> None:
        history = trainer.history
        if history.n_iter not in self.iterations or history["val_accuracy"][-1] is not None:
            return
        if trainer.validation is not None:
            x, risk = trainer.validation
            loss, accuracy = score(risk, trainer.engine.chain.predict(trainer.state.params, x))
            history.amend(val_loss=loss, val_accuracy=accuracy)


def by_iteration(run: Run, column: str = "val_accuracy") -> dict[int, float]:
    """What was measured, by iteration: test accuracy, or another column of the history."""
    pairs = zip(run.column("iteration"), run.column(column), strict=True)
    return {int(k): value for k, value in pairs if k is not None and value is not None}


def first_reaching(run: Run, level: float, column: str = "val_accuracy") -> int | None:
    """The first iteration whose test accuracy (or R^2) was not below this; None where there is none."""
    return next((k for k, value in by_iteration(run, column).items() if value >= level), None)
