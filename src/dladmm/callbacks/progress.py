"""A callback that shows progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from dladmm.callbacks.base import Callback

if TYPE_CHECKING:
    from dladmm.training.result import Result
    from dladmm.training.trainer import Trainer


LIVELY, PATIENT = 0.2, 10.0
"""Seconds between two looks at the batches: of a bar on a terminal, and of lines."""


class ProgressBar(Callback):
    """Shows iteration, loss and accuracy: a rich progress bar on a terminal, else lines.

    Without a terminal a line is printed at iterations 1, 2, 5, 10, 20, 50, ... and at the last. Streaming mode shows
    passes, batches and the seconds that are left; without a terminal also in passes that take long, every ten seconds.

    Parameters
    ----------
    description : str, default "training"
    stream : file, optional
        Where to write; standard error by default.
    delay : float, default 0
        Seconds before the bar appears on a terminal: a short run shows none.
    held : str, default "held-out"
        What the rows of ``validation`` are called, such as "test".
    """

    every_rank = False

    def __init__(
        self,
        description: str = "training",
        stream: TextIO | None = None,
        *,
        delay: float = 0.0,
        held: str = "held-out",
    ) -> None:
        self.description, self.delay, self.held = description, delay, held
        self.stream = sys.stderr if stream is None else stream

    def on_train_begin(self, trainer: Trainer) -> None:
        self._bar: Any = None
        self._began = self._said = time.monotonic()
        self._before = _steps(trainer)
        self._unit = "iteration" if trainer.passes is None else "pass"
        self._on_terminal = self.stream.isatty()
        self._show_bar(trainer)

    def _show_bar(self, trainer: Trainer) -> None:
        """Start the bar on a terminal, once the delay is over."""
        late = time.monotonic() - self._began >= self.delay
        if self._on_terminal and self._bar is None and late:
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
            self._task = self._bar.add_task(self.description, total=_total(trainer), numbers="")

    def on_batch_end(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if now - self._said < (LIVELY if self._on_terminal else PATIENT) or trainer.passes is None:
            return
        self._said = now
        self._show_bar(trainer)
        if self._bar is not None:
            self._bar.update(
                self._task, completed=_steps(trainer), total=_total(trainer), numbers=_where(trainer)
            )
        elif not self._on_terminal:
            left = self._seconds_left(trainer, now)
            print(f"{self.description}: {_where(trainer)}{left}", file=self.stream, flush=True)

    def _seconds_left(self, trainer: Trainer, now: float) -> str:
        done, total = _steps(trainer) - self._before, _total(trainer)
        if total is None or done == 0:
            return ""
        return f"  {(now - self._began) * (total - _steps(trainer)) / done:.0f} s left"

    def on_epoch_end(self, trainer: Trainer) -> None:
        k = trainer.history.n_iter
        self._show_bar(trainer)
        if self._bar is not None:
            numbers = _numbers(trainer, self.held)
            shown = numbers if trainer.passes is None else f"{_where(trainer)}  {numbers}"
            self._bar.update(self._task, completed=_steps(trainer), total=_total(trainer), numbers=shown)
        elif not self._on_terminal and (
            k == trainer.options.max_iter or str(k).rstrip("0") in ("1", "2", "5")
        ):
            left = "" if trainer.passes is None else self._seconds_left(trainer, time.monotonic())
            numbers = _numbers(trainer, self.held)
            print(
                f"{self.description}: {self._unit} {k}/{trainer.options.max_iter}  {numbers}{left}",
                file=self.stream,
                flush=True,
            )

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        if self._bar is not None:
            self._bar.stop()


def _steps(trainer: Trainer) -> int:
    """Batches that are done in streaming mode, where a pass has a known number of them; else iterations."""
    passes = trainer.passes
    if passes is None or passes.batches is None:
        return trainer.history.n_iter
    return passes.finished * passes.batches + passes.batch


def _total(trainer: Trainer) -> int | None:
    """As many as there will be; None in a first pass of unknown length."""
    passes = trainer.passes
    if passes is None:
        return trainer.options.max_iter
    return None if passes.batches is None else passes.total * passes.batches


def _where(trainer: Trainer) -> str:
    passes = trainer.passes
    assert passes is not None
    present = min(passes.finished + 1, passes.total)
    batch = f"batch {passes.batch}" + ("" if passes.batches is None else f"/{passes.batches}")
    return f"pass {present}/{passes.total}  {batch}"


def _numbers(trainer: Trainer, held: str) -> str:
    names = {
        "loss": "loss",
        "train_accuracy": "train accuracy",
        "val_accuracy": f"{held} accuracy",
        "train_r2": "train R^2",
        "val_r2": f"{held} R^2",
    }
    latest = {label: trainer.history.last(column) for column, label in names.items()}
    return "  ".join(f"{label} {value:.4f}" for label, value in latest.items() if value is not None)
