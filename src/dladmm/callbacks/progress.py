"""A callback that shows progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from dladmm.callbacks.base import Callback

if TYPE_CHECKING:
    from dladmm.training.trainer import Result, Trainer


class ProgressBar(Callback):
    """Shows iteration, loss and accuracy: a rich progress bar on a terminal, else lines.

    Without a terminal a line is printed at iterations 1, 2, 5, 10, 20, 50, ... and at the last.

    Parameters
    ----------
    description : str, default "training"
    stream : file, optional
        Where to write; standard error by default.
    """

    every_rank = False

    def __init__(self, description: str = "training", stream: TextIO | None = None) -> None:
        self.description = description
        self.stream = sys.stderr if stream is None else stream

    def on_train_begin(self, trainer: Trainer) -> None:
        self._bar = None
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=Console(file=self.stream),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.description, total=trainer.options.max_iter, numbers="")

    def on_epoch_end(self, trainer: Trainer) -> None:
        k = trainer.history.n_iter
        if self._bar is not None:
            self._bar.update(self._task, completed=k, numbers=_numbers(trainer))
        elif k == trainer.options.max_iter or str(k).rstrip("0") in ("1", "2", "5"):
            print(
                f"{self.description}: iteration {k}/{trainer.options.max_iter}  {_numbers(trainer)}",
                file=self.stream,
                flush=True,
            )

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        if self._bar is not None:
            self._bar.stop()


def _numbers(trainer: Trainer) -> str:
    names = {"loss": "loss", "train_accuracy": "train", "val_accuracy": "val"}
    latest = {label: trainer.history.last(column) for column, label in names.items()}
    return "  ".join(f"{label} {value:.4f}" for label, value in latest.items() if value is not None)
