"""What all ranks agree on after an iteration: the seconds it took, the bits of the parameters, whether to stop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dladmm.base.history import Status
from dladmm.blocks import Step
from dladmm.compute.communicator import Communicator
from dladmm.engine.method import Look
from dladmm.engine.problem import State

STATUSES = list(Status)


class RanksDiffered(UserWarning):
    """Warning: the same computation gave different bits on different ranks."""


class Agreement:
    """Makes seconds, parameters and stop requests the same on every rank; one process alone has no use for it."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.took = 0.0
        """The seconds of the iteration that was looked at last."""
        self._device = getattr(comm, "device", torch.device("cpu"))
        self._warned = False

    def seconds(self, own: float, params: Sequence[dict[str, Tensor]]) -> float:
        """The seconds of the slowest rank; also makes the parameters bitwise equal on all ranks, in place.

        All ranks compute the parameters from the same totals. Different processors may still round differently, so a
        fingerprint is compared; where it differs, rank 0's parameters are broadcast and a warning is issued.
        """
        mark = fingerprint(params)
        nanoseconds = int(own * 1e9)
        own_values = torch.tensor([nanoseconds, mark, ~mark], dtype=torch.int64, device=self._device)
        slowest, largest_mark, largest_complement = self.comm.largest(own_values)[0].tolist()
        if largest_mark != ~largest_complement:
            self.comm.from_first(*(p for block in params for p in block.values()))
            if not self._warned:
                self._warned = True
                warnings.warn(
                    "the ranks rounded the parameters differently (different processors or libraries); those of "
                    "rank 0 are taken from now on, at the price of one broadcast per iteration.",
                    RanksDiffered,
                    stacklevel=2,
                )
        return float(slowest) / 1e9

    def look(self, measured: Look[Tensor], began: float) -> Look[Tensor]:
        """``measured``, and the agreement on seconds since ``began`` and parameters in the same message."""

        def looked(state: State, steps: list[Step]) -> Tensor:
            agreed = partial(self.seconds, time.perf_counter() - began, state.params)
            signs, self.took = self.comm.at_once(partial(measured, state, steps), agreed)
            found: Tensor = signs
            return found

        return looked

    def status(self, own: Status | None) -> Status | None:
        """The status with which any rank was requested to stop, or None; over messages, as far as is known here."""
        largest = self.comm.largest_wish(0 if own is None else 1 + STATUSES.index(own))
        return None if largest == 0 else STATUSES[largest - 1]


def fingerprint(params: Sequence[dict[str, Tensor]]) -> int:
    """A checksum of the parameters' bits."""
    mark = 0
    for block in params:
        for p in block.values():
            bits = torch.int64 if p.element_size() == 8 else torch.int32
            own = int(p.detach().contiguous().view(bits).sum(dtype=torch.int64))
            mark = (mark * 1000003 + own) & 0x7FFFFFFFFFFFFFFF
    return mark
