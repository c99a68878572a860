"""How a client hands messages to the process in which its silo trains, and starts it if it does not run.

Flower starts a process for every message: nothing here imports torch, which would take longer than the message.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess  # nosec B404: it starts the worker's module, with arguments of its own making
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from dladmm.base.errors import InputError

PROMPT, NOTHING = b"", b""
"""What is said to a silo that is to repeat its last message; what one says that has finished."""

STARTED: list[subprocess.Popen[bytes]] = []
START = 120.0
"""Seconds in which a worker must have opened its socket."""


def socket_of(job: str, node: int, about: Mapping[str, Any]) -> Path:
    """The socket of this node's silo in this job, in a folder that nobody else can enter.

    ``about`` is what the silo trains with: a worker that another run left behind is not taken for one of this run.
    """
    folder = Path(tempfile.gettempdir()) / f"dladmm-silos-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise InputError(f"{folder} can be entered by others; remove it.")
    said = json.dumps(dict(about), sort_keys=True, default=str).encode()
    return folder / f"{job}-{node % 10**12}-{hashlib.sha256(said).hexdigest()[:8]}"


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
