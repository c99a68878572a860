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

    def ask(self, request: Message) -> Message | None:
        """The answer to one call's message, once all others have asked too; None where no calls are made at once."""
        own = threading.current_thread()
        return own.ask(request) if isinstance(own, JoinedCall) else None

    def run(self, calls: Sequence[Callable[[], Any]], send: Callable[[Message], Message]) -> list[Any]:
        """What the calls return; ``send`` sends a message. Calls within a call ask through that one."""
        if len(calls) < 2:
            return [call() for call in calls]
        own = threading.current_thread()
        return JoinedCalls(calls, own.ask if isinstance(own, JoinedCall) else send).run()


class JoinedCall(threading.Thread):
    """One of the calls, as a thread that runs only while it may."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call, self.result, self.error = call, None, None  # type: Callable[[], Any], Any, BaseException | None
        self.request: Message | None = None
        self.answer: Message | None = None
        self.may_run, self.has_stopped = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        self.may_run.acquire()
        try:
            with torch.no_grad():
                self.result = self.call()
        except BaseException as error:  # raised again where the calls were made
            self.error = error
        self.request = None
        self.has_stopped.release()

    def ask(self, request: Message) -> Message:
        self.request = request
        self.has_stopped.release()
        self.may_run.acquire()
        if self.answer is None:
            raise Abandoned
        return self.answer

    def go_on(self) -> bool:
        """Let it run until it needs a sum or ends; whether it needs one."""
        self.may_run.release()
        self.has_stopped.acquire()
        return self.request is not None


class Abandoned(BaseException):
    """Ends a call whose sum will not come."""


class JoinedCalls:
    """Several calls, of which one runs at a time."""

    def __init__(self, calls: Sequence[Callable[[], Any]], send: Callable[[Message], Message]) -> None:
        self.calls, self._send = [JoinedCall(call) for call in calls], send

    def run(self) -> list[Any]:
        for one in self.calls:
            one.start()
        waiting = [one for one in self.calls if one.go_on()]
        try:
            while waiting and not any(one.error for one in self.calls):
                request = waiting[0].request
                for one in waiting[1:]:
                    assert request is not None
                    assert one.request is not None
                    request = request.joined(one.request)
                assert request is not None
                lengths = [len(one.request.parts) for one in waiting if one.request is not None]
                answers = self._send(request).split(lengths)
                for one, answer in zip(waiting, answers, strict=True):
                    one.answer = answer
                waiting = [one for one in waiting if one.go_on()]
        finally:
            for one in waiting:  # the server ended the run, or one of the calls failed
                one.answer = None
                one.go_on()
        for one in self.calls:
            if one.error is not None and not isinstance(one.error, Abandoned):
                raise one.error
        return [one.result for one in self.calls]
