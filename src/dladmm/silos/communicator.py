"""The library's communicator over messages: sums go up as one message, the total comes down as one.

Whatever carries bytes to a server and back is a :class:`Link`: queues between threads
(:mod:`dladmm.silos.threads`), Flower's messages (:mod:`dladmm.silos.flower`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from dladmm._version import __version__
from dladmm.base.errors import InputError
from dladmm.compute.communicator import DistributedError, Ranks
from dladmm.silos.joining import Together
from dladmm.silos.secure import Masks, key_agreement
from dladmm.silos.wire import Message, check_precision


class Link(Protocol):
    """A silo's end of a line to the server."""

    def exchange(self, said: bytes) -> bytes:
        """Say this, and wait for the answer."""


class SiloLost(DistributedError):
    """Another silo is gone, and the server goes on without it: this silo begins again among the others."""


class Stopped(DistributedError):
    """The server ended the run."""


def check_settings(
    precision: str = "exact", noise: float = 0.0, name: str = "", secure: bool = False
) -> None:
    """Raise for settings that no silo can have: before the server hears of one and waits for it."""
    if not noise >= 0:
        raise InputError(f"noise must be a number >= 0, got {noise!r}.")
    check_precision(precision)
    if secure:
        key_agreement()


class Silo(Ranks):
    """One silo among several, for ``train(..., communicator=silo)``.

    Parameters
    ----------
    link : Link
        The line to the server.
    precision : {"exact", "float32", "bfloat16"}
        How matrices travel. "exact" sends them in the dtype in which they were computed.
    noise : float
        Standard deviation of Gaussian noise that this silo adds to every matrix it sends, relative to the matrix's
        root mean square entry; 0 adds none (docs/silos.md says what it costs).
    name : str
        What errors call this silo; the server numbers those without one.
    secure : bool
        Send sums under masks that cancel in the total (:mod:`dladmm.silos.secure`), so that the server does not see
        those of this silo. Needs ``dladmm[flower]``; the same on all silos.

    Attributes
    ----------
    rank, size : int
        This silo's place, and how many there are: the server says so.
    config : dict
        What the server tells all silos at the beginning.
    traffic : Traffic
        Messages and bytes sent, and the seconds waited for answers; ``received`` are the bytes that came back.
    """

    device = torch.device("cpu")
    few_messages = True

    def __init__(
        self,
        link: Link,
        precision: str = "exact",
        noise: float = 0.0,
        name: str = "",
        secure: bool = False,
    ) -> None:
        super().__init__()
        check_settings(precision, noise, name, secure)
        self.precision, self.noise, self.name = precision, noise, name
        self.received, self._link, self._number = 0, link, 0
        self.node: dict[str, Any] = {}
        self._together = Together()
        self._wish = self._wished = 0
        self._random = torch.Generator()
        self._random.seed()
        versions = {"dladmm": __version__, "torch": torch.__version__, "numpy": np.__version__}
        said = {"versions": versions, "precision": precision, "name": name, "secure": secure}
        self.secure, self._masks = secure, cast("Masks | None", None)
        told = self._ask(Message("hello", text=json.dumps(said)))
        self._settle(told)

    def _settle(self, told: Message) -> None:
        self.place = json.loads(told.text)
        self.rank, self.size = int(self.place["rank"]), int(self.place["size"])
        self.config: dict[str, Any] = dict(self.place["config"])
        if self.secure:  # with new keys for every set of silos: a mask is used once
            try:
                self._masks = Masks(self.rank, self.size, self.texts)
            except SiloLost:
                self._settle(self._again)
            except InputError as error:
                with contextlib.suppress(Stopped):  # the server's answer
                    self.failed(error)
                raise

    @property
    def alone(self) -> bool:
        """Never: a single silo too talks to the server."""
        return False

    def total(self, *tensors: Tensor, halves: Collection[int] = ()) -> Sequence[Tensor]:
        if self.noise:
            tensors = tuple(self._blurred(tensor, i in halves) for i, tensor in enumerate(tensors))
        return self._reduced(Message.of("sum", 0, tensors, halves, self.precision), tensors)

    def largest(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._reduced(Message.of("sum", 0, tensors, largest=True), tensors)

    def _reduced(self, asked: Message, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        gathered = self._together.ask(asked)
        told = self._ask(replace(asked, number=self._number)) if gathered is None else gathered
        return told.back(tensors)

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        return self._together.run(calls, lambda asked: self._ask(replace(asked, number=self._number)))

    def largest_wish(self, own: int) -> int:
        """Told along with the next sums: what comes back is the largest wish as of the last ones."""
        self._wish = own
        return self._wished

    def texts(self, own: str) -> list[str]:
        said = self._ask(Message("texts", self._number, own))
        return [str(text) for text in json.loads(said.text)]

    def from_first(self, *tensors: Tensor) -> None:
        """Checksums first: what is the same bits everywhere already does not travel."""
        bits = [
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in tensors
        ]
        digest = hashlib.sha256(b"".join(each.tobytes() for each in bits)).digest()
        mark = int.from_bytes(digest[:7], "big")
        highest, negated = self.largest(torch.tensor([mark, -mark]))[0].tolist()
        if highest == -negated:
            return
        own = [tensor if self.rank == 0 else torch.zeros_like(tensor) for tensor in tensors]
        for tensor, first in zip(
            tensors, self._ask(Message.of("sum", self._number, own)).back(own), strict=True
        ):
            tensor.copy_(first)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        raise InputError(
            "graphs cannot be trained over silos: rows of neighbours would have to be exchanged."
        )

    def done(self, text: str = "") -> None:
        """Tell the server that this silo has finished; ``text`` reaches ``Hub.outcomes``."""
        self._ask(Message("done", self._number, text))

    def failed(self, error: BaseException) -> None:
        """Tell the server why this silo cannot go on."""
        self._ask(Message("failed", self._number, f"{type(error).__name__}: {error}"))

    def begin_again(self) -> None:
        """Take the place that the server gave this silo when another one was lost."""
        self._settle(self._again)
        self._cleared = True
        self._wish = self._wished = 0

    def _ask(self, message: Message) -> Message:
        sums = message.kind == "sum"
        if sums:
            message = message.joined(Message.of("sum", 0, [torch.tensor([self._wish])], largest=True))
        if sums and self._masks is not None:
            message = self._masks.hide(message)
        began, raw = time.perf_counter(), message.to_bytes()
        answer = self._link.exchange(raw)
        self.traffic.calls += 1
        self.traffic.bytes += len(raw)
        self.received += len(answer)
        self.traffic.seconds += time.perf_counter() - began
        told = Message.from_bytes(answer)
        if told.kind == "stop":
            raise Stopped(told.text)
        self._number = told.number + 1
        if told.kind == "again":
            self._again = told
            raise SiloLost(json.loads(told.text)["why"])
        if told.kind != message.kind:
            raise DistributedError(f"the server answered {told.kind!r} to {message.kind!r}.")
        if not sums:
            return told
        told, wishes = told.split([len(told.parts) - 1, 1])
        self._wished = int(wishes.tensors[0])
        return told

    def _blurred(self, tensor: Tensor, symmetric: bool) -> Tensor:
        if tensor.ndim < 2 or not tensor.is_floating_point():
            return tensor
        drawn = torch.randn(tensor.shape, generator=self._random, dtype=torch.float64).to(tensor)
        if symmetric:
            drawn = (drawn + drawn.T) / 2**0.5
        return tensor + drawn * (self.noise * tensor.square().mean().sqrt())
