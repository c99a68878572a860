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
import subprocess  # nosec B404: it starts this module again, with arguments of its own making
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from dladmm.base.errors import InputError
from dladmm.silos.communicator import Silo
from dladmm.silos.threads import attend

PROMPT, NOTHING = b"", b""
"""What is said to a silo that is to repeat its last message; what one says that has finished."""

STARTED: list[subprocess.Popen[bytes]] = []
START = 120.0
"""Seconds in which a worker must have opened its socket."""


class Line:
    """The link of the silo that trains here: what it says waits until somebody comes with the answer."""

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
    """Train, and serve the socket until the last message has been fetched."""
    line = Line()
    node = settings.pop("node", {})

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
            with contextlib.suppress(OSError, EOFError), listener.accept() as caller:
                said = line.hear(caller.recv_bytes())
                caller.send_bytes(said)


def socket_of(job: str, node: int) -> Path:
    """The socket of this node's silo in this job: in a folder that nobody else can enter."""
    folder = Path(tempfile.gettempdir()) / f"dladmm-silos-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise InputError(f"{folder} can be entered by others; remove it.")
    return folder / f"{job}-{node % 10**12}"


def call_worker(socket: Path, answer: bytes, task: str, settings: dict[str, Any]) -> bytes:
    """Hand the silo behind this socket an answer, and return what it says next; it is started if it does not run."""
    caller = _connected(socket)
    if caller is None:
        socket.unlink(missing_ok=True)
        _start(socket, task, settings)
        until = time.monotonic() + START
        while (caller := _connected(socket)) is None:
            if time.monotonic() > until:
                raise InputError(f"the worker of {task} did not open {socket} in {START:g} s.")
            time.sleep(0.05)
        answer = PROMPT  # it was meant for a worker that is gone
    with caller:
        caller.send_bytes(answer)
        return caller.recv_bytes()


def _connected(socket: Path) -> Connection[Any, Any] | None:
    try:
        return Client(str(socket), family="AF_UNIX")
    except OSError:
        return None


def _start(socket: Path, task: str, settings: dict[str, Any]) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    with open(socket.with_suffix(".log"), "ab") as log:
        started = subprocess.Popen(  # nosec B603: no shell; task and settings come from this client's own code
            [sys.executable, "-m", "dladmm.silos.worker", str(socket), task, json.dumps(settings)],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    STARTED.append(started)  # it outlives this process: nobody waits for it


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
