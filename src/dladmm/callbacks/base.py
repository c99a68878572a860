"""Hooks into the training loop, with the names skorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from dladmm.training.trainer import Result, Trainer


class CallbackWarning(UserWarning):
    """A callback could not do its work; the training goes on."""


class Callback:
    """Base of all callbacks; override what you need. A callback may look, not touch.

    Raise ``KeyboardInterrupt`` to end the run after the iteration that just finished, or call
    ``trainer.request_stop``. In a run on several ranks every rank has its own; one that only writes what it sees says
    ``every_rank = False`` and is told on rank 0 alone.
    """

    every_rank: bool = True

    def on_train_begin(self, trainer: Trainer) -> None:
        """Before the first iteration; ``trainer.guarantee`` says what the theory promises."""

    def on_epoch_end(self, trainer: Trainer) -> None:
        """After every iteration; ``trainer.history`` has its row."""

    def on_loop_end(self, trainer: Trainer) -> None:
        """After the last iteration, before certificate and module are made: the place for ``trainer.restore``."""

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        """After the last iteration, with the result."""

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What this callback must find again in a resumed run: tensors by name, and what JSON can hold."""
        return {}, {}

    def resume(self, trainer: Trainer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Take up a snapshot; called before or after ``on_train_begin`` of the resumed run."""
