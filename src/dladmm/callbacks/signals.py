"""A callback that ends a run cleanly on SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from dladmm.base.history import Status
from dladmm.callbacks.base import Callback

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


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
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

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
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
