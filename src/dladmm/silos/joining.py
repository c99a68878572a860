"""Sums of calls that do not need each other's results, in one message.

The calls run as threads of which one runs at a time. Each stops where it needs a sum; when all that are left have
stopped, what they ask for travels as one message, in the order of the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dladmm.silos.wire import Message


class Together:
    """The calls that are being made at once, if any are."""

    def ask(self, asked: Message) -> Message | None:
        """The answer to one call's message, once all others have asked too; None where no calls are made at once."""
        own = threading.current_thread()
        return own.ask(asked) if isinstance(own, Turn) else None

    def run(self, calls: Sequence[Callable[[], Any]], send: Callable[[Message], Message]) -> list[Any]:
        """What the calls return; ``send`` sends a message. Calls within a call ask through that one."""
        if len(calls) < 2:
            return [call() for call in calls]
        own = threading.current_thread()
        return Turns(calls, own.ask if isinstance(own, Turn) else send).run()


class Turn(threading.Thread):
    """One of the calls. It runs only while it has its turn."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call, self.result, self.error = call, None, None  # type: Callable[[], Any], Any, BaseException | None
        self.asked: Message | None = None
        self.told: Message | None = None
        self.mine, self.theirs = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        self.mine.acquire()
        try:
            with torch.no_grad():
                self.result = self.call()
        except BaseException as error:  # raised again where the calls were made
            self.error = error
        self.asked = None
        self.theirs.release()

    def ask(self, asked: Message) -> Message:
        self.asked = asked
        self.theirs.release()
        self.mine.acquire()
        if self.told is None:
            raise Abandoned
        return self.told

    def go_on(self) -> bool:
        """Let it run until it needs a sum or ends; whether it needs one."""
        self.mine.release()
        self.theirs.acquire()
        return self.asked is not None


class Abandoned(BaseException):
    """Ends a call whose sum will not come."""


class Turns:
    """Several calls, by turns."""

    def __init__(self, calls: Sequence[Callable[[], Any]], send: Callable[[Message], Message]) -> None:
        self.turns, self._send = [Turn(call) for call in calls], send

    def run(self) -> list[Any]:
        for turn in self.turns:
            turn.start()
        waiting = [turn for turn in self.turns if turn.go_on()]
        try:
            while waiting and not any(turn.error for turn in self.turns):
                asked = waiting[0].asked
                for turn in waiting[1:]:
                    assert asked is not None
                    assert turn.asked is not None
                    asked = asked.joined(turn.asked)
                assert asked is not None
                lengths = [len(turn.asked.parts) for turn in waiting if turn.asked is not None]
                answers = self._send(asked).split(lengths)
                for turn, told in zip(waiting, answers, strict=True):
                    turn.told = told
                waiting = [turn for turn in waiting if turn.go_on()]
        finally:
            for turn in waiting:  # the server ended the run, or one of the calls failed
                turn.told = None
                turn.go_on()
        for turn in self.turns:
            if turn.error is not None and not isinstance(turn.error, Abandoned):
                raise turn.error
        return [turn.result for turn in self.turns]
