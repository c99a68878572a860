"""Which rows of the data belong to which rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.compute.communicator import Communicator


@dataclass(frozen=True, eq=False)
class Shards:
    """The rows of all ranks together: how many there are, and how many samples they count for.

    ``begin`` is the place of this rank's first row among all of them, rank after rank. ``nodes``, where given, are the
    places of its rows instead: those of a graph do not lie side by side.
    """

    comm: Communicator
    n_rows: int
    samples: float
    begin: int
    nodes: Tensor | None = None

    @classmethod
    def of(
        cls, comm: Communicator, n_own: int, rows: Tensor | None = None, nodes: Tensor | None = None
    ) -> Shards | None:
        """None for one process alone, whose rows are all there are."""
        if comm.alone:
            return None
        device = getattr(comm, "device", torch.device("cpu"))
        counts = torch.zeros(comm.size + 1, dtype=torch.float64, device=device)
        counts[comm.rank] = n_own
        counts[-1] = n_own if rows is None else rows.double().sum()
        (counts,) = comm.total(counts)
        *each, samples = counts.tolist()
        before = [int(n) for n in each]
        if sum(before) == 0:
            raise InputError("X is empty on every rank; at least one row is needed.")
        return cls(comm, sum(before), samples, sum(before[: comm.rank]), nodes)

    def repeated(self, times: int) -> Shards:
        """The same with so many rows in the place of one."""
        return replace(
            self, n_rows=times * self.n_rows, samples=times * self.samples, begin=times * self.begin
        )

    def places(self, n_own: int) -> Tensor:
        """The place of every row of this rank."""
        return torch.arange(self.begin, self.begin + n_own) if self.nodes is None else self.nodes


def share(n_rows: int, rank: int, size: int) -> slice:
    """The rows of one rank: as even as whole rows can be, the first ranks one more."""
    each, over = divmod(n_rows, size)
    begin = rank * each + min(rank, over)
    return slice(begin, begin + each + (rank < over))
