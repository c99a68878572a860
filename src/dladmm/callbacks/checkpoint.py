"""Callbacks for runs that may be interrupted: checkpoints to go on from, and a clean end on SIGINT or SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from dladmm.base.errors import DataError, InputError
from dladmm.base.history import Status
from dladmm.base.spec import number
from dladmm.callbacks.base import Callback
from dladmm.training.checkpoint import CheckpointWarning, checkpoints, resume_latest, save_in_folder

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


class Checkpoint(Callback):
    """Saves the run before the first, after every ``every``-th and after the last iteration.

    If a later save fails (disk full), a warning is issued and the run continues; the older checkpoint is kept.

    Parameters
    ----------
    folder : str or path
    every : int, default 10
        Iterations (passes, in streaming mode) between two checkpoints.
    keep : int, default 2
        Number of newest checkpoints to keep.
    resume : bool, default False
        True continues from the newest intact checkpoint, bit for bit as if the run had not been interrupted, or starts
        a new run if there is none. False requires that the folder holds no checkpoints.
    every_batches : int, optional
        Streaming mode: also save after so many batches, in the middle of a pass. Such a checkpoint has the name of the
        pass before and takes its place.
    every_seconds : float, optional
        Streaming mode: also save when so much time has passed since the last checkpoint.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int = 10,
        keep: int = 2,
        resume: bool = False,
        *,
        every_batches: int | None = None,
        every_seconds: float | None = None,
    ) -> None:
        counts = {
            "every": every,
            "keep": keep,
            "every_batches": 1 if every_batches is None else every_batches,
        }
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number >= 1, got {value!r}.")
        self.folder, self.every, self.keep, self.resume_run = Path(folder), every, keep, resume
        self.every_batches = every_batches
        self.every_seconds = (
            None if every_seconds is None else number("every_seconds", every_seconds, low=0.0)
        )
        self.resumed_from: Path | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        self.resumed_from = None
        if self.resume_run:
            self.resumed_from = resume_latest(trainer, self.folder)
        elif found := _newest_name(trainer, self.folder):
            raise InputError(
                f"{self.folder} already holds {found} of another run. Pass resume=True to continue it, "
                "or choose another folder."
            )
        self._run = trainer.state
        if self.resumed_from is None:
            save_in_folder(trainer, self.folder, self.keep)
        self._saved, self._time = _place(trainer), time.monotonic()

    def on_batch_end(self, trainer: Trainer) -> None:
        _, batch = _place(trainer)
        if (self.every_batches is not None and batch % self.every_batches == 0) or (
            self.every_seconds is not None and self._is_time(trainer, self.every_seconds)
        ):
            self._save(trainer)

    def _is_time(self, trainer: Trainer, seconds: float) -> bool:
        """Whether it is time on any rank: all save together."""
        own = torch.tensor([time.monotonic() - self._time], dtype=torch.float64)
        device = getattr(trainer.comm, "device", own.device)
        return bool(trainer.comm.largest(own.to(device))[0] >= seconds)

    def on_epoch_end(self, trainer: Trainer) -> None:
        if trainer.history.n_iter % self.every == 0:
            self._save(trainer)

    def on_loop_end(self, trainer: Trainer) -> None:
        """Save the last iteration, unless parameters were restored: a run resumed from those would be another run."""
        if trainer.state is self._run and _place(trainer) != self._saved:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        try:
            save_in_folder(trainer, self.folder, self.keep)
        except DataError as error:
            warnings.warn(
                f"{error} The run continues; its last checkpoint is that of iteration {self._saved[0]}.",
                CheckpointWarning,
                stacklevel=2,
            )
        else:
            self._saved = _place(trainer)
        self._time = time.monotonic()


def _place(trainer: Trainer) -> tuple[int, int]:
    """Whole iterations, and batches of the present pass of streaming mode."""
    return trainer.history.n_iter, 0 if trainer.passes is None else trainer.passes.batch


def _newest_name(trainer: Trainer, folder: Path) -> str:
    """The newest checkpoint that rank 0 finds, or ""; another rank might already see the first one of this run."""
    found = checkpoints(folder) if trainer.comm.rank == 0 else []
    return trainer.comm.texts(found[0].name if found else "")[0]


class StopOnSignal(Callback):
    """Ends the run after the present iteration (batch, in streaming mode) on SIGINT or SIGTERM.

    A second signal interrupts immediately.

    Does nothing outside the main thread, where Python cannot install signal handlers.

    Attributes
    ----------
    received : int or None
        The number of the signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_begin(self, trainer: Trainer) -> None:
        if threading.current_thread() is threading.main_thread():
            for which in (signal.SIGINT, signal.SIGTERM):
                self._before[which] = signal.signal(which, self._receive)

    def _receive(self, which: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = which

    def on_epoch_end(self, trainer: Trainer) -> None:
        if self.received is not None:
            trainer.request_stop(Status.INTERRUPTED)

    def on_batch_end(self, trainer: Trainer) -> None:
        self.on_epoch_end(trainer)

    def on_loop_end(self, trainer: Trainer) -> None:
        self._restore()

    def on_failure(self, trainer: Trainer) -> None:
        self._restore()

    def _restore(self) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)
        self._before.clear()
