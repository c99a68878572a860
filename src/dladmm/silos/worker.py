"""The process in which a silo trains, beside whatever carries its messages.

Flower starts a new process for every message, but an iteration has state: so training runs here, waits for each
answer at a socket that only this user can open, and survives a client or a server that is started again.

    python -m dladmm.silos.worker SOCKET TASK SETTINGS

``TASK`` is ``module:function``; the function is called with the :class:`~dladmm.silos.Silo`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import sys
import threading
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from dladmm.base.errors import InputError
from dladmm.silos.calling import NOTHING, PROMPT
from dladmm.silos.communicator import Silo
from dladmm.silos.threads import attend

IDLE = 86_400.0
"""Seconds without a call after which a worker ends itself."""


class Line:
    """The link of the silo that trains here: a message waits here until a client fetches it and brings the answer."""

    def __init__(self) -> None:
        self._said: queue.Queue[bytes] = queue.Queue()
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._last: bytes | None = None

    def exchange(self, said: bytes) -> bytes:
        self._said.put(said)
        return self._answers.get()

    def end(self) -> None:
        self._said.put(NOTHING)

    def hear(self, answer: bytes) -> bytes:
        """Hand in an answer, or :data:`PROMPT`, and wait for what the silo says next."""
        if answer != PROMPT and self._last:
            self._last = None
            self._answers.put(answer)
        if self._last is None:
            self._last = self._said.get()
        return self._last


def load_task(name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"no function {name!r} (module:function) can be imported: {error}") from error
    return found


def work(socket: str, task: str, settings: dict[str, Any]) -> None:
    """Train, and serve the socket until the last message was fetched, or no client has called for ``idle`` seconds."""
    line = Line()
    node, idle = settings.pop("node", {}), float(settings.pop("idle", IDLE))

    def run() -> None:
        with contextlib.suppress(Exception):  # the server has been told
            silo = Silo(line, **settings)
            silo.node = node
            attend(silo, lambda silo: load_task(task)(silo))
        line.end()

    with Listener(socket, family="AF_UNIX") as listener:
        threading.Thread(target=run, daemon=True).start()
        said = b"?"
        while said != NOTHING:
            patience = threading.Timer(idle, _end_alone, [Path(socket), idle])
            patience.daemon = True
            patience.start()
            with contextlib.suppress(OSError, EOFError), listener.accept() as caller:
                patience.cancel()
                said = line.hear(caller.recv_bytes())
                caller.send_bytes(said)
            patience.cancel()
    log = Path(socket).with_suffix(".log")
    if log.exists() and not log.stat().st_size:
        log.unlink()


def _end_alone(socket: Path, idle: float) -> None:
    socket.unlink(missing_ok=True)
    print(f"nobody called for {idle:g} s: this silo has ended.", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
