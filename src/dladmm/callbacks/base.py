"""The base class of all callbacks: hooks into the training loop, named as in skorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from dladmm.training.result import Result
    from dladmm.training.trainer import Trainer


class CallbackWarning(UserWarning):
    """Warning: a callback failed; training continues without it."""


class Callback:
    """Base class of all callbacks; override the hooks you need.

    Callbacks observe a run and do not change its iterate; the exception is ``trainer.restore``, called from
    :meth:`on_loop_end` (as :class:`EarlyStopping` does). To end the run after the present iteration call
    ``trainer.request_stop`` or raise ``KeyboardInterrupt``.

    Attributes
    ----------
    every_rank : bool, default True
        Whether the hooks are called on every rank of a distributed run; False calls them on rank 0 only, for callbacks
        that write output.
    """

    every_rank: bool = True

    def on_train_begin(self, trainer: Trainer) -> None:
        """Called before the first iteration; ``trainer.guarantee`` says what the theory guarantees."""

    def on_batch_end(self, trainer: Trainer) -> None:
        """Called after every batch of streaming mode; ``trainer.passes`` says where the run stands.

        ``trainer.request_stop`` ends the run there, in the middle of the pass. Nothing is asked after batches where no
        callback overrides this.
        """

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Called after every iteration (pass, in streaming mode), when ``trainer.history`` has its row."""

    def on_loop_end(self, trainer: Trainer) -> None:
        """Called after the last iteration, before certificate and module are made; may call ``trainer.restore``."""

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        """Called at the end, with the result."""

    def on_failure(self, trainer: Trainer) -> None:
        """Called when an exception ends the run, before it is raised: undo what lasts beyond the run; do not raise."""

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state to restore in a resumed run: tensors by name, and values that JSON can represent."""
        return {}, {}

    def resume(self, trainer: Trainer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Restore a snapshot; called before or after ``on_train_begin`` of the resumed run."""
