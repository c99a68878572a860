"""Silos as threads of one process: the same messages as over a network, through queues. For trials and tests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dladmm.silos.communicator import Silo, Stopped, check_settings
from dladmm.silos.hub import Hub
from dladmm.silos.wire import Message

Task = Callable[[Silo], Any]


class Queues:
    """The lines of all silos: a transport for the hub, and a link for every silo."""

    def __init__(self, size: int) -> None:
        self.up: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(size)]
        self.down: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(size)]
        self._unanswered: dict[int, bytes] = {}

    def send(self, answers: Mapping[int, bytes]) -> None:
        for k, raw in answers.items():
            self._unanswered.pop(k, None)
            self.down[k].put(raw)

    def gather(self, awaited: Iterable[int], patience: float) -> dict[int, bytes]:
        until, found = time.monotonic() + patience, {}
        for k in awaited:
            try:
                if k not in self._unanswered:
                    self._unanswered[k] = self.up[k].get(timeout=max(0.0, until - time.monotonic()))
                found[k] = self._unanswered[k]
            except queue.Empty:
                continue
        return found

    def end(self) -> None:
        """End silos that still wait for an answer: a thread that never ends keeps its memory."""
        for line in self.down:
            line.put(Message("stop", 0, "the server is gone.").to_bytes())

    def link(self, k: int) -> QueueLink:
        return QueueLink(self, k)


class QueueLink:
    """A silo's end."""

    def __init__(self, queues: Queues, k: int) -> None:
        self._queues, self._k = queues, k

    def exchange(self, said: bytes) -> bytes:
        self._queues.up[self._k].put(said)
        return self._queues.down[self._k].get()


def attend(silo: Silo, task: Task) -> Any:
    """Run ``task(silo)`` and tell the server how it ended."""
    try:
        found = task(silo)
    except Stopped:  # the server knows
        raise
    except Exception as error:
        silo.failed(error)
        raise
    silo.done()
    return found


def run_silos(
    tasks: list[Task], *, hub: Hub | None = None, patience: float = 300.0, **settings: Any
) -> list[Any]:
    """Run every task as a silo of its own, in threads, around a hub here; what each returned.

    Parameters
    ----------
    tasks : list of functions
        ``task(silo)`` of each silo, for instance a call of :func:`dladmm.silos.train_silo`.
    hub : Hub, optional
        The server; without one a new one that stops when a silo is lost.
    patience : float
        Seconds to wait for a silo.
    **settings
        Of every :class:`Silo`: ``precision``, ``noise``, ``secure``.

    Raises
    ------
    InputError
        If a silo cannot have these settings.
    SiloError
        If a silo failed, sent what it should not, or did not answer, and the hub was not asked to go on without it.
    """
    check_settings(**settings)
    server = Hub(len(tasks)) if hub is None else hub
    lines = Queues(len(tasks))
    found: list[Any] = [None] * len(tasks)

    def work(k: int) -> None:
        try:
            silo = Silo(lines.link(k), **settings)
            found[k] = attend(silo, tasks[k])
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(tasks))]
    for thread in threads:
        thread.start()
    try:
        server.serve(lines, patience)
    finally:
        lines.end()
    for thread in threads:
        thread.join(patience)
    return found
