"""Silos over Flower (``pip install dladmm[flower]``): a server app and a client app that carry the library's messages.

Neither runs an algorithm: the client app hands messages to the process in which ``dladmm.train`` runs
(:mod:`dladmm.silos.worker`), the server app adds up what arrives (:class:`dladmm.silos.Hub`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app import Message as Parcel
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dladmm.base.errors import InputError
from dladmm.silos.calling import PROMPT, call_worker, socket_of

if TYPE_CHECKING:
    from dladmm.silos.hub import Hub

LOG = logging.getLogger("dladmm.silos")
RECORD = "dladmm"
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Seconds between two looks for answers."""

SETTINGS: dict[str, Any] = {
    "silos": 2,
    "on-silo-lost": "stop",
    "patience": 300.0,
    "memory": "",
    "job": "dladmm",
    "precision": "exact",
    "noise": 0.0,
    "secure": False,
    "idle": 86_400.0,
}
"""What ``[tool.flwr.app.config]`` or ``flwr run --run-config`` may set, and what holds otherwise."""

OF_THE_SERVER = ("on-silo-lost", "patience", "memory", "idle")
"""Settings with which a server may be started again for silos that are in the middle of a run."""


def client_app(task: str) -> ClientApp:
    """The client app of a silo.

    Parameters
    ----------
    task : str
        ``module:function`` of this app; called in the silo's own process with the :class:`dladmm.silos.Silo`, whose
        ``node`` is the node's configuration and ``config`` the run's.
    """
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(parcel: Parcel, context: Context) -> Parcel:
        config = SETTINGS | dict(context.run_config)
        settings = {"precision": config["precision"], "noise": float(config["noise"])}
        settings |= {"secure": bool(config["secure"]), "idle": float(config["idle"])}
        settings |= {"name": str(context.node_config.get("name", "")), "node": dict(context.node_config)}
        about = {name: value for name, value in config.items() if name not in OF_THE_SERVER}
        socket = socket_of(str(config["job"]), own_number(context), about | {"task": task})
        said = call_worker(socket, unpacked(parcel), task, settings)
        return Parcel(packed(said), reply_to=parcel)

    return app


def server_app(told: Callable[[Hub], None] | None = None) -> ServerApp:
    """The server app: waits for the silos, answers them until all have finished, and calls ``told(hub)``.

    The run's configuration sets it: ``silos`` (how many to wait for), ``on-silo-lost``, ``patience`` (seconds),
    ``memory`` (a file from which a server that was killed goes on), ``job`` (workers of another job are others),
    ``precision``, ``noise`` and ``secure`` of what silos send, ``idle`` (seconds after which a silo's process that
    nobody calls ends). All of it is handed on to the silos as ``silo.config``.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        from dladmm.silos.hub import Hub  # imports torch, which a client app does without

        config = SETTINGS | dict(context.run_config)
        lines = Parcels(grid, _nodes(grid, int(config["silos"]), float(config["patience"])))
        hub = Hub(
            int(config["silos"]),
            on_silo_lost=str(config["on-silo-lost"]),
            config=config,
            memory=str(config["memory"]) or None,
        )
        try:
            hub.serve(lines, float(config["patience"]))
        finally:
            lines.close()
        LOG.info("%d rounds, %s bytes in all", hub.traffic.calls, f"{hub.traffic.bytes:,}")
        if told is not None:
            told(hub)

    return app


class Parcels:
    """Flower's grid as the hub's transport: an answer is a message to a node, and what the silo says next its reply."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self.grid, self.nodes = grid, nodes
        self._open: dict[str, int] = {}

    def send(self, answers: Mapping[int, bytes]) -> None:
        parcels = [
            Parcel(packed(raw), dst_node_id=self.nodes[k], message_type="train") for k, raw in answers.items()
        ]
        for k, parcel_id in zip(answers, self.grid.push_messages(parcels), strict=True):
            self._open[parcel_id] = k

    def gather(self, awaited: Iterable[int], patience: float) -> dict[int, bytes]:
        awaited = set(awaited)
        until, pause, found = time.monotonic() + patience, FIRST_PAUSE, {}  # type: float, float, dict[int, bytes]
        while awaited - set(found) and time.monotonic() < until:
            self._prompt(awaited - set(found) - set(self._open.values()))
            for parcel in self.grid.pull_messages([i for i, k in self._open.items() if k in awaited]):
                k = self._open.pop(parcel.metadata.reply_to_message_id)
                if parcel.has_error():
                    LOG.warning("silo %d: %s", k, parcel.error.reason)
                    awaited.discard(k)
                else:
                    found[k] = unpacked(parcel)
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.2 * pause)
        return found

    def _prompt(self, silos: set[int]) -> None:
        """Ask these for their last message. A node that was started again may have another number: a new node takes
        the place of one that is gone, and while there is none nothing is sent."""
        if not silos:
            return
        here = set(self.grid.get_node_ids())
        strangers = sorted(here - set(self.nodes))
        for k in sorted(silos):
            if self.nodes[k] not in here and strangers:
                self.nodes[k] = strangers.pop(0)
        self.send(dict.fromkeys((k for k in sorted(silos) if self.nodes[k] in here), PROMPT))

    def close(self, patience: float = 30.0) -> None:
        """Let last answers be fetched."""
        self.gather(set(self._open.values()), patience)


def own_number(context: Context) -> int:
    """A number that a node keeps when it is started again: that of its configuration, if it has one."""
    if not context.node_config:
        return context.node_id
    said = json.dumps(dict(context.node_config), sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.sha256(said).digest()[:8], "big")


def packed(raw: bytes) -> RecordDict:
    return RecordDict({RECORD: ArrayRecord([np.frombuffer(raw, dtype=np.uint8)])})


def unpacked(parcel: Parcel) -> bytes:
    (array,) = parcel.content.array_records[RECORD].to_numpy_ndarrays()
    return bytes(array.tobytes())


def _nodes(grid: Grid, size: int, patience: float) -> list[int]:
    """The nodes, once there are so many; sorted, so that they have the same places after a restart."""
    until = time.monotonic() + patience
    while len(nodes := sorted(grid.get_node_ids())) < size:
        if time.monotonic() > until:
            raise InputError(f"waited {patience:g} s for {size} silos; {len(nodes)} came.")
        time.sleep(0.2)
    if len(nodes) > size:
        raise InputError(
            f"there are {len(nodes)} nodes for {size} silos; set silos in the run's configuration."
        )
    return nodes
