"""A callback that records the communication of every iteration."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from dladmm.callbacks.base import Callback
from dladmm.compute.communicator import Traffic

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


class TrafficLog(Callback):
    """Records calls, bytes and seconds of communication of every iteration; ``str()`` is what ``--profile`` prints.

    Bytes are the sizes of the tensors passed to collective calls on one rank. The traffic on the network depends on the
    algorithm of the backend: a ring sends 2 (p - 1)/p times as much in a reduction over p ranks.

    Attributes
    ----------
    iterations : list of Traffic
        One entry per iteration.
    """

    def __init__(self) -> None:
        self.iterations: list[Traffic] = []
        self.size = 1
        self._walls: list[float] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        self.size = trainer.comm.size
        self._before, self._began = trainer.comm.traffic.copy(), time.perf_counter()

    def on_epoch_end(self, trainer: Trainer) -> None:
        now = trainer.comm.traffic.copy()
        self.iterations.append(now - self._before)
        self._walls.append(time.perf_counter() - self._began)
        self._before, self._began = now, time.perf_counter()

    @property
    def typical(self) -> Traffic:
        """The median over the iterations, of each quantity separately."""
        if not self.iterations:
            return Traffic()
        return Traffic(
            int(median(t.calls for t in self.iterations)),
            int(median(t.bytes for t in self.iterations)),
            median(t.seconds for t in self.iterations),
            int(median(t.exchanged for t in self.iterations)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The medians as a dictionary for ``metrics.json``."""
        return self.typical.to_dict(self.size)

    def __str__(self) -> str:
        if self.size == 1:
            return "communication  none: one process"
        typical = self.typical
        boundary = f" ({typical.exchanged:,} of them boundary rows)" if typical.exchanged else ""
        return (
            f"communication  {typical.calls} calls and {typical.bytes:,} bytes{boundary} per iteration on each of "
            f"{self.size} ranks, measuring included (median); {1e3 * typical.seconds:.2f} ms in them of "
            f"{1e3 * median(self._walls or [0.0]):.2f} ms"
        )
