"""One process, or many: every sum over samples goes through a communicator.

The engine asks for nothing else. :class:`Communicator` is one process alone, whose sums are everybody's: it does
nothing. :class:`Group` is a process group of ``torch.distributed``, each rank with samples of its own. What a group
returns is the same bits on every rank, so whatever all ranks compute from it alike stays alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dladmm.base.errors import DladmmError, InputError


class DistributedError(DladmmError, RuntimeError):
    """Another rank failed, stopped or did not answer in time."""


@dataclass
class Traffic:
    """What a rank handed to collective calls: how many, how many bytes, and how long it waited in them.

    ``exchanged`` are those of the bytes that went to single ranks as boundary rows.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    exchanged: int = 0

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.calls - earlier.calls,
            self.bytes - earlier.bytes,
            self.seconds - earlier.seconds,
            self.exchanged - earlier.exchanged,
        )

    def copy(self) -> Traffic:
        return replace(self)

    def to_dict(self, ranks: int) -> dict[str, Any]:
        """The traffic of an iteration as a dictionary for ``metrics.json``."""
        return {
            "ranks": ranks,
            "calls_an_iteration": self.calls,
            "bytes_an_iteration": self.bytes,
            "boundary_bytes_an_iteration": self.exchanged,
            "seconds_an_iteration": self.seconds,
        }


class Communicator:
    """One process alone. Tensors given to :meth:`total` are given up: a group may reduce them where they lie."""

    rank: int = 0
    size: int = 1

    def __init__(self) -> None:
        self.traffic = Traffic()

    few_messages: bool = False
    """Whether a message costs more than what is in it: sums are then joined, and a Gram matrix sent to save one."""

    @property
    def alone(self) -> bool:
        return self.size == 1

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        """What these calls return, none of which needs another's result; their sums may travel together."""
        return [call() for call in calls]

    def total(self, *tensors: Tensor, halves: Collection[int] = ()) -> Sequence[Tensor]:
        """Each tensor summed over the ranks; ``halves`` are the places of symmetric ones, of which a half says all."""
        return tensors

    def largest(self, *tensors: Tensor) -> Sequence[Tensor]:
        """The largest entries over the ranks."""
        return tensors

    def largest_wish(self, own: int) -> int:
        """The largest of the ranks' numbers >= 0; over messages the answer may be one message old."""
        return own

    def texts(self, own: str) -> list[str]:
        """What every rank says, in the order of the ranks."""
        return [own]

    def from_first(self, *tensors: Tensor) -> None:
        """Rank 0's values into everybody's tensors."""

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """``rows`` are cut into ``sent[k]`` rows for each rank k; back come ``received[k]`` rows of each."""
        return rows

    @contextmanager
    def together(self) -> Iterator[None]:
        """What one rank refuses within it, all ranks refuse: no rank goes on to wait for one that is gone."""
        yield

    def all_clear(self) -> None:
        """This rank has nothing to refuse any more; raises where another one had."""

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """As :meth:`together`, up to the :meth:`all_clear` that is called within it."""
        yield


ALONE = Communicator()


class Ranks(Communicator):
    """Several ranks, whatever carries their messages: a refusal of one reaches all by :meth:`texts`."""

    _cleared = True

    @contextmanager
    def together(self) -> Iterator[None]:
        with self.refusals():
            yield
            self.all_clear()

    def all_clear(self) -> None:
        self._hear("")
        self._cleared = True

    @contextmanager
    def refusals(self) -> Iterator[None]:
        self._cleared = False
        try:
            yield
        except DistributedError:  # the others cannot be told any more, or have told it themselves
            raise
        except Exception as error:
            if not self._cleared:
                self._cleared = True
                with suppress(DistributedError):  # if others refuse too, this rank's own reason is as good
                    self._hear(f"{type(error).__name__}: {error}")
            raise

    def _hear(self, own: str) -> None:
        """Tell the others what is wrong here, if anything, and be told."""
        for rank, text in enumerate(self.texts(own)):
            if text and rank != self.rank:
                raise DistributedError(f"rank {rank} of {self.size} refused: {text}")


class Group(Ranks):
    """The ranks of a ``torch.distributed`` process group (None: the default one)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        nccl = dist.get_backend(group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def total(self, *tensors: Tensor, halves: Collection[int] = ()) -> Sequence[Tensor]:
        return self._reduced(tensors, dist.ReduceOp.SUM)

    def largest(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._reduced(tensors, dist.ReduceOp.MAX)

    def _reduced(self, tensors: Sequence[Tensor], op: dist.ReduceOp.RedOpType) -> list[Tensor]:
        """One call for all tensors of a dtype: what a call costs is mostly its latency."""
        found = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            if len(places) == 1 and tensors[places[0]].is_contiguous():
                buffer = tensors[places[0]]
            else:
                buffer = torch.cat([tensors[i].reshape(-1) for i in places])
            with self._counted("a reduction", buffer.nbytes):
                dist.all_reduce(buffer, op, group=self._group)
            if buffer is not tensors[places[0]]:
                parts = torch.split_with_sizes(buffer, [tensors[i].numel() for i in places])
                for i, part in zip(places, parts, strict=True):
                    found[i] = part.view(tensors[i].shape)
        return found

    def largest_wish(self, own: int) -> int:
        return int(self.largest(torch.tensor([own], dtype=torch.int64, device=self.device))[0])

    def texts(self, own: str) -> list[str]:
        raw = own.encode()
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(raw)
        (lengths,) = self.total(lengths)
        longest = int(lengths.max())
        letters = torch.zeros(self.size, longest, dtype=torch.uint8)
        letters[self.rank, : len(raw)] = torch.frombuffer(bytearray(raw or b" "), dtype=torch.uint8)[
            : len(raw)
        ]
        if longest:
            (letters,) = self.total(letters.to(self.device))  # one rank's bytes and zeros: no sum overflows
        pairs = zip(letters.cpu(), lengths.tolist(), strict=True)
        return [bytes(line[:n].tolist()).decode() for line, n in pairs]

    def from_first(self, *tensors: Tensor) -> None:
        first = dist.get_global_rank(self._group, 0) if self._group is not None else 0
        for tensor in tensors:
            with self._counted("a broadcast", tensor.nbytes):
                dist.broadcast(tensor, first, group=self._group)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        with self._counted("an exchange of boundary rows", rows.nbytes):
            dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=self._group)
        self.traffic.exchanged += rows.nbytes
        return out

    @contextmanager
    def _counted(self, what: str, size: int) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise DistributedError(
                f"rank {self.rank} of {self.size} waited in vain for the others in {what} of {size:,} bytes: one of "
                f"them died, stopped or did not answer in time; its own output says why. ({_first_line(error)})"
            ) from error
        self.traffic.calls += 1
        self.traffic.bytes += size
        self.traffic.seconds += time.perf_counter() - began


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def current() -> Communicator:
    """The process group that ``torch.distributed`` has been initialised with, or one process alone."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Group()
    return ALONE


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
