"""Hooks into the training loop, with the names skorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dladmm.trainer import Result, Trainer


class Callback:
    """Base of all callbacks; override what you need. A callback may look, not touch.

    Raise ``KeyboardInterrupt`` to end the run after the iteration that just finished.
    """

    def on_train_begin(self, trainer: Trainer) -> None:
        """Before the first iteration; ``trainer.guarantee`` says what the theory promises."""

    def on_epoch_end(self, trainer: Trainer) -> None:
        """After every iteration; ``trainer.history`` has its row."""

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        """After the last iteration, with the result."""
