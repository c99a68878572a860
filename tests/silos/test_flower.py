"""The Flower apps: real messages of Flower between its apps, and a silo's own process behind each."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

flwr = pytest.importorskip("flwr", reason="flwr is not installed (dladmm[flower])")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flwr.app import Context, Error, RecordDict  # noqa: E402
from flwr.app import Message as Parcel  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from dladmm import load_model, mlp, train  # noqa: E402
from dladmm.silos import SiloError, calling, worker  # noqa: E402
from dladmm.silos.flower import Parcels, client_app, own_number, packed, server_app, unpacked  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "silos"
pytestmark = pytest.mark.filterwarnings("ignore:Stopped after max_iter", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """What Flower's runtime tells a process before it calls an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class LocalGrid(Grid):
    """Flower's grid without its server: a message to a node is handed to that node's client app, in a thread."""

    def __init__(self, app, n_nodes, config):
        self.app, self.run_config, self.replies = app, config, {}
        self.contexts = {
            100 + k: Context(0, 100 + k, {"partition-id": k, "name": f"ward {k}"}, RecordDict(), config)
            for k in range(n_nodes)
        }
        self.broken = set()

    @property
    def run(self):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"message {len(self.replies)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.replies[ids[-1]] = None
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        return ids

    def _answer(self, message):
        context = self.contexts[message.metadata.dst_node_id]
        if message.metadata.dst_node_id in self.broken:
            reply = Parcel(Error(code=1, reason="the node is on fire"), reply_to=message)
        else:
            reply = self.app(message, context)
        self.replies[message.metadata.message_id] = reply

    def pull_messages(self, message_ids):
        found = [self.replies[i] for i in message_ids if self.replies[i] is not None]
        for parcel in found:
            self.replies[parcel.metadata.reply_to_message_id] = None
        return found


def configured(tmp_path, job, **more):
    return {
        "silos": 10,
        "max-iter": 2,
        "precision": "exact",
        "out": str(tmp_path),
        "job": job,
        "patience": 60.0,
        "secure": True,
    } | more


@pytest.fixture
def quick_start(monkeypatch):
    """Workers are forked from a process that has imported everything: all but the first, which starts as users' do."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dladmm.silos.worker", "dladmm.silos.training", "sklearn.datasets"])
    start, started = calling._start, []

    def forked(socket, task, settings):
        started.append(socket)
        if len(started) == 1:
            start(socket, task, settings)
        else:
            context.Process(target=forked_worker, args=(str(EXAMPLE), str(socket), task, settings)).start()

    monkeypatch.setattr(calling, "_start", forked)
    yield started
    for process in calling.STARTED:
        process.wait(60)


def forked_worker(path, socket, task, settings):
    sys.path.insert(0, path)
    worker.work(socket, task, settings)


@pytest.mark.slow  # ten processes, one of them started from nothing
def test_the_example_on_ten_processes(tmp_path, quick_start):
    from digits_silos import client, task

    config = configured(tmp_path, f"ten-{os.getpid()}")
    grid, hubs = LocalGrid(client.app, 10, config), []
    server_app(hubs.append)(grid, Context(0, 0, {}, RecordDict(), config))
    assert len(quick_start) == len(hubs[0].outcomes) == 10
    assert hubs[0].names[3] == "ward 3"
    X, y, X_test, y_test = (np.concatenate(parts) for parts in zip(*map(task.rows, range(10)), strict=True))
    settings = {"mode": "accelerated", "sweep": "backward", "dropout": 0.0, "dtype": "float64", "max_iter": 2}
    pooled = train(mlp([64, 30, 10]), X, y, validation=(X_test, y_test), **settings)
    found = [load_model(tmp_path / f"silo-{k}.npz") for k in (0, 9)]
    for own in found:
        with torch.no_grad():
            rows = torch.tensor(X_test)
            torch.testing.assert_close(own.module(rows), pooled.module(rows), rtol=1e-8, atol=1e-8)
    assert float((tmp_path / "accuracy.txt").read_text()) == pytest.approx(
        pooled.history.last("val_accuracy"), abs=1e-4
    )


def test_a_node_that_fails_is_named(tmp_path, quick_start):
    grid = LocalGrid(client_app("no_module:none"), 2, configured(tmp_path, f"two-{os.getpid()}", silos=2))
    grid.broken = set(grid.contexts)
    with pytest.raises(SiloError, match="silo 0 does not answer; silo 1 does not answer"):
        server_app()(grid, Context(0, 0, {}, RecordDict(), grid.run_config))
    assert quick_start == []


def test_a_client_that_is_started_for_every_message_imports_no_torch():
    code = "import sys, digits_silos.client; print('torch' in sys.modules)"
    paths = os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env=os.environ | {"PYTHONPATH": paths})  # fmt: skip
    assert ended.stdout.strip() == "False"


def test_a_worker_that_another_run_left_behind_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(calling.tempfile, "gettempdir", lambda: str(tmp_path))
    asked = {"max-iter": 20, "job": "digits"}
    one, same, other = (
        calling.socket_of("digits", 7, about) for about in (asked, dict(asked), asked | {"max-iter": 3})
    )
    assert one == same != other
    assert one != calling.socket_of("digits", 8, asked)


def test_a_worker_that_nobody_calls_ends(tmp_path):
    socket = tmp_path / "socket"
    command = [sys.executable, "-m", "dladmm.silos.worker", str(socket), "no:task", '{"idle": 0.2}']
    paths = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": paths}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert ended.returncode == 1
    assert "nobody called for 0.2 s" in ended.stderr
    assert not socket.exists()


def test_a_node_that_was_started_again_under_another_number_is_found():
    grid = LocalGrid(lambda m, c: Parcel(packed(str(c.node_id).encode()), reply_to=m), 2, {})
    lines, gone = Parcels(grid, [100, 101]), grid.contexts.pop(101)
    assert lines.gather({0, 1}, 0.3) == {0: b"100"}
    assert len(grid.replies) == 1  # nothing was sent to a node that is not there
    grid.contexts[207] = Context(0, 207, gone.node_config, RecordDict(), {})
    assert lines.gather({1}, 30) == {1: b"207"}
    assert lines.nodes == [100, 207]
    # Its worker is that of its configuration, or of its number where it has none
    assert own_number(gone) == own_number(grid.contexts[207]) != own_number(grid.contexts[100])
    assert own_number(Context(0, 5, {}, RecordDict(), {})) == 5


def test_bytes_travel_as_they_are():
    raw = bytes(range(256))
    assert unpacked(Parcel(packed(raw), dst_node_id=1, message_type="train")) == raw
    assert unpacked(Parcel(packed(b""), dst_node_id=1, message_type="train")) == b""
