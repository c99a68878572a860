"""The server's half: one message of every silo in, one answer to each out. It never sees a row and runs no algorithm.

Sums are made in float64, in the order of the silos, and everybody is told the same bits. What is wrong with a message
is said of the silo that sent it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from dladmm._version import __version__
from dladmm.base.errors import InputError
from dladmm.compute.communicator import DistributedError, Traffic
from dladmm.silos.memory import Memory, Standing
from dladmm.silos.secure import unmasked_total
from dladmm.silos.wire import Message, MessageError, Part

POLICIES = ("stop", "wait", "go-on")
LOG = logging.getLogger("dladmm.silos")


class SiloError(DistributedError):
    """A silo is gone or sent what it should not have; ``silo`` is its number."""

    def __init__(self, text: str, silo: int) -> None:
        super().__init__(text)
        self.silo = silo


class Transport(Protocol):
    """The server's ends of the lines to all silos, which are numbered from 0."""

    def send(self, answers: Mapping[int, bytes]) -> None:
        """Hand each silo its answer."""

    def gather(self, awaited: Iterable[int], patience: float) -> dict[int, bytes]:
        """What these silos say next; those that have said nothing after so many seconds are left out."""


class Hub:
    """Adds up what silos send.

    Parameters
    ----------
    size : int
        How many silos there are.
    on_silo_lost : {"stop", "wait", "go-on"}
        What to do when a silo does not answer: end the run on all, ask it again until it does, or begin again without
        it from the parameters reached so far. A silo whose messages are wrong is left out by "go-on", and ends the
        run otherwise.
    config : dict
        Told to all silos at the beginning; anything that JSON can hold.
    memory : path, optional
        A file in which the last answers are kept, so that a server that was killed can go on where it stood.

    Attributes
    ----------
    silos : list of int
        Those that take part, in the order of their rows.
    outcomes : dict
        What silos said when they had finished.
    lost : dict
        Why silos were left out.
    traffic : Traffic
        Rounds (``calls``) and bytes received from and sent to all silos together.
    """

    def __init__(
        self,
        size: int,
        *,
        on_silo_lost: str = "stop",
        config: Mapping[str, Any] | None = None,
        memory: str | Path | None = None,
    ) -> None:
        if size < 1:
            raise InputError(f"there must be at least one silo, got {size}.")
        if on_silo_lost not in POLICIES:
            raise InputError(f"on_silo_lost must be one of {', '.join(POLICIES)}, got {on_silo_lost!r}.")
        self.on_silo_lost, self.config = on_silo_lost, dict(config or {})
        self.silos = list(range(size))
        self.names: dict[int, str] = {}
        self.outcomes: dict[int, str] = {}
        self.lost: dict[int, str] = {}
        self.traffic = Traffic()
        self._memory = Memory(memory)
        known = self._memory.read()
        if known is not None:
            self.silos, self.lost, self.names = known.silos, known.lost, known.names

    # A run ---------------------------------------------------------------------------------------------------------

    def serve(self, transport: Transport, patience: float = 300.0) -> dict[int, str]:
        """Answer the silos until all have finished; what each of them said at its end."""
        while self.silos:
            said = self._in_step(transport, self.silos, patience)
            while missing := [k for k in self.silos if k not in said]:
                if self.on_silo_lost != "wait":
                    break
                LOG.warning("%s not answering; waiting", self._many(missing))
                said |= self._in_step(transport, missing, patience)
            try:
                answers = self.answer(said)
            except SiloError as error:
                transport.send(self._last_words(said, str(error)))
                raise
            self._memory.keep(Standing(self.silos, self.lost, self.names), answers)
            transport.send(answers)
        self._memory.forget()
        return self.outcomes

    def _in_step(self, transport: Transport, awaited: Iterable[int], patience: float) -> dict[int, bytes]:
        """What these silos say next. One that repeats what was answered did not get the answer: its client or the
        server was started again meanwhile. It is told once more."""
        said = transport.gather(awaited, patience)
        behind = self._memory.answers_to(said)
        if not behind:
            return said
        transport.send(behind)
        return {k: raw for k, raw in said.items() if k not in behind} | transport.gather(behind, patience)

    def answer(self, said: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers to one message of each silo; those of ``silos`` without one are lost."""
        self.traffic.calls += 1
        self.traffic.bytes += sum(map(len, said.values()))
        faults = {k: "does not answer" for k in self.silos if k not in said}
        messages: dict[int, Message] = {}
        for k in self.silos:
            if k in said:
                try:
                    messages[k] = Message.from_bytes(said[k])
                except MessageError as error:
                    faults[k] = f"sent something else than a message: {error}"
        fresh = [k for k, message in messages.items() if message.kind == "hello"]
        if not faults and 0 < len(fresh) < len(messages) and self.on_silo_lost != "stop":
            return self._counted(self._with_newcomers(fresh, messages))
        faults |= self._faults(messages)
        answers = self._without(faults, messages, said) if faults else self._joined(messages)
        return self._counted(answers)

    def _counted(self, answers: Mapping[int, Message]) -> dict[int, bytes]:
        found = {k: message.to_bytes() for k, message in answers.items()}
        self.traffic.bytes += sum(map(len, found.values()))
        return found

    # What may be wrong with a message ------------------------------------------------------------------------------

    def _faults(self, messages: Mapping[int, Message]) -> dict[int, str]:
        failed = {k: m.text for k, m in messages.items() if m.kind == "failed"}
        causes = {k: text for k, text in failed.items() if not text.startswith(DistributedError.__name__)}
        if failed or not messages:  # those who only heard of another's failure are not named
            return {k: f"failed: {text}" for k, text in (causes or failed).items()}
        marks = {k: (m.kind, m.number, m.parts) for k, m in messages.items()}
        usual, _ = Counter(marks.values()).most_common(1)[0]
        found = {k: _difference(mark, usual) for k, mark in marks.items() if mark != usual}
        if usual[0] == "hello":
            found |= self._strangers({k: m for k, m in messages.items() if k not in found})
        if usual[0] == "sum" and not found:
            broken = {k: "sent NaN or infinity" for k, m in messages.items() if not m.finite()}
            # A step that was too long breaks all of them, and is refused by all
            if len(broken) < len(messages):
                found |= broken
        return found

    def _strangers(self, messages: Mapping[int, Message]) -> dict[int, str]:
        """Silos whose versions are not those of the others; the names of all."""
        versions = {}
        for k, message in messages.items():
            says = json.loads(message.text)
            self.names[k] = str(says["name"])
            versions[k] = json.dumps([says["versions"], says["precision"], says.get("secure", False)])
        usual = Counter(versions.values()).most_common(1)[0][0]
        return {
            k: f"has {own}, where the others have {usual} (versions, precision and masks of messages)"
            for k, own in versions.items()
            if own != usual
        }

    def _without(
        self, faults: Mapping[int, str], messages: Mapping[int, Message], said: Iterable[int]
    ) -> dict[int, Message]:
        """Answers that tell the others to begin again without those at fault; an error if that was not asked for."""
        why = "; ".join(f"{self.name(k)} {text}" for k, text in faults.items())
        rest = [k for k in self.silos if k not in faults]
        if self.on_silo_lost != "go-on" or not rest:
            raise SiloError(why.rstrip(".") + ".", min(faults))
        LOG.warning("%s: going on without", why)
        self.lost |= faults
        self.silos = rest
        out = [k for k in said if k in faults]
        answers = {k: Message("stop", 0, f"left out: {self.name(k)} {faults[k]}.") for k in out}
        number = max(messages[k].number for k in rest)
        return answers | {k: Message("again", number, self._place(k, why)) for k in rest}

    def _with_newcomers(self, fresh: list[int], messages: Mapping[int, Message]) -> dict[int, Message]:
        """Silos that lost what they had done begin anew: so do all, from the parameters that the others have."""
        self._strangers({k: messages[k] for k in fresh})
        # Newcomers last: the first silo's parameters are taken
        self.silos = [k for k in self.silos if k not in fresh] + fresh
        why = f"{self._many(fresh)} began anew"
        LOG.warning("%s: all begin again from the parameters reached so far", why)
        number = max(message.number for message in messages.values())
        kinds = {k: "hello" if k in fresh else "again" for k in messages}
        return {k: Message(kind, number, self._place(k, why)) for k, kind in kinds.items()}

    # Answers -------------------------------------------------------------------------------------------------------

    def _joined(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        first = messages[self.silos[0]]
        if first.kind == "hello":
            return {k: Message("hello", first.number, self._place(k)) for k in self.silos}
        if first.kind == "done":
            self.outcomes |= {k: m.text for k, m in messages.items()}
            self.silos = []
            return {k: Message("done", m.number) for k, m in messages.items()}
        if first.kind == "texts":
            told = json.dumps([messages[k].text for k in self.silos])
            return dict.fromkeys(messages, Message("texts", first.number, told))
        if first.kind != "sum":
            raise SiloError(f"{self.name(self.silos[0])} asks for {first.kind!r}.", self.silos[0])
        columns = zip(*(messages[k].tensors for k in self.silos), strict=True)
        pairs = zip(first.parts, columns, strict=True)
        totals = [_reduced(part, column) for part, column in pairs]
        if first.text:  # zeros stand for numbers that cannot be masked: all silos refuse the step
            totals = [
                t if part.largest else t * torch.nan for t, part in zip(totals, first.parts, strict=True)
            ]
        return dict.fromkeys(messages, first.like(totals))

    def _place(self, k: int, why: str = "") -> str:
        place = {"rank": self.silos.index(k), "size": len(self.silos), "config": self.config, "why": why}
        return json.dumps(place | {"lost": len(self.lost), "server": __version__})

    def _last_words(self, said: Mapping[int, bytes], why: str) -> dict[int, bytes]:
        return {k: Message("stop", 0, f"the run was ended: {why}").to_bytes() for k in said}

    def name(self, k: int) -> str:
        return f"silo {k} ({self.names[k]})" if self.names.get(k) else f"silo {k}"

    def _many(self, silos: Iterable[int]) -> str:
        return ", ".join(map(self.name, silos))


def _reduced(part: Part, column: Sequence[torch.Tensor]) -> torch.Tensor:
    if part.largest:
        return torch.stack(list(column)).amax(0)
    return unmasked_total(column, part) if part.masked else _added(column)


def _added(column: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum, in float64 or whole numbers, in the order given."""
    parts = list(column)
    wide = torch.float64 if parts[0].is_floating_point() else parts[0].dtype
    total = parts[0].to(wide).clone()
    for part in parts[1:]:
        total += part.to(wide)
    return total


def _difference(mark: tuple[Any, ...], usual: tuple[Any, ...]) -> str:
    """What one silo's message has that those of the others have not."""
    if mark[0] == "hello":
        return "began anew while the others were training"
    if mark[:2] != usual[:2]:
        return f"asks for {mark[0]!r} (message {mark[1]}), where the others ask for {usual[0]!r} ({usual[1]})"
    shapes = [[list(part.shape) for part in each[2]] for each in (mark, usual)]
    if shapes[0] != shapes[1]:
        return f"sent tensors of other shapes: {shapes[0]}, where the others have {shapes[1]}"
    return "sent tensors of another dtype or precision"
