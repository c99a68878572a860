"""What the trainer does between the batches of a streaming run: callbacks, and stopping in the middle of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from dladmm.callbacks import Callback
from dladmm.engine.streaming import Streaming

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


class Passes:
    """The passes of a streaming run, and where it stands in them.

    Attributes
    ----------
    finished, batch : int
        Whole passes, and batches of the present one.
    total : int
        Passes that are planned.
    """

    def __init__(self, trainer: Trainer, method: Streaming) -> None:
        self._trainer, self._method = trainer, method

    @property
    def finished(self) -> int:
        return self._method.finished_passes

    @property
    def batch(self) -> int:
        return self._method.done_in_pass

    @property
    def total(self) -> int:
        return self._method.passes

    @property
    def batches(self) -> int | None:
        """Batches of a pass, where that is known already."""
        return self._method.batches_in_pass or None

    def begin(self) -> None:
        """Let the method ask after every batch whether to go on, if a callback has ``on_batch_end``."""
        after_batches = [
            c for c in self._trainer.callbacks if type(c).on_batch_end is not Callback.on_batch_end
        ]
        self._method.after_batch = self._after_batch if after_batches else None

    def _after_batch(self) -> bool:
        """Call ``on_batch_end``; whether no rank has requested a stop."""
        trainer = self._trainer
        for callback in trainer.told():
            callback.on_batch_end(trainer)
        return trainer.agreed_request() is None

    def network(self) -> list[dict[str, Tensor]]:
        """A copy of the parameters that are handed out as the run stands now."""
        return [{name: p.clone() for name, p in block.items()} for block in self._method.network()]
