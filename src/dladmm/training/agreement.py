"""What all ranks of a run must hold alike, agreed on once per iteration."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from dladmm.base.status import Status
from dladmm.compute.communicator import Communicator

STATUSES = list(Status)


class RanksDiffered(UserWarning):
    """The same computation gave different bits on different ranks."""


class Agreement:
    """Seconds, parameters and the wish to stop: the same on every rank."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._device = getattr(comm, "device", torch.device("cpu"))
        self._warned = False

    def seconds(self, own: float, params: Sequence[dict[str, Tensor]]) -> float:
        """Those of the slowest rank; and parameters of the same bits, which they are unless machines differ.

        All ranks compute the parameters alike from the same totals. Processors of different kinds may still round
        differently, so a fingerprint is compared, and where it differs rank 0's parameters are taken.
        """
        if self.comm.alone:
            return own
        mark = fingerprint(params)
        nanoseconds = int(own * 1e9)
        said = torch.tensor([nanoseconds, mark, ~mark], dtype=torch.int64, device=self._device)
        slowest, highest, negated = self.comm.largest(said)[0].tolist()
        if highest != ~negated:
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

    def status(self, own: Status | None) -> Status | None:
        """What any rank was asked to stop with."""
        if self.comm.alone:
            return own
        code = 0 if own is None else 1 + STATUSES.index(own)
        said = torch.tensor([code], dtype=torch.int64, device=self._device)
        found = int(self.comm.largest(said)[0])
        return None if found == 0 else STATUSES[found - 1]


def fingerprint(params: Sequence[dict[str, Tensor]]) -> int:
    """A number that any change of a bit of the parameters changes."""
    mark = 0
    for block in params:
        for p in block.values():
            whole = torch.int64 if p.element_size() == 8 else torch.int32
            own = int(p.detach().contiguous().view(whole).sum(dtype=torch.int64))
            mark = (mark * 1000003 + own) & 0x7FFFFFFFFFFFFFFF
    return mark
