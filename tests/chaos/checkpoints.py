"""Checkpoints under SIGKILL, cuts, flipped bits, full disks, two writers and older formats."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import killing
from chaos.determinism import require_equal
from chaos.forks import forked
from chaos.ledger import Ledger, require
from convergent import train
from dladmm import Callback, DataError, Result, mlp
from dladmm.callbacks import Checkpoint
from dladmm.training.checkpoint import CheckpointWarning, checkpoints, latest, load, load_training, save

CORPUS = Path(__file__).parents[1] / "corpus"
SECONDS = 120.0


def run_kills(ledger: Ledger, count: int, seed: int) -> None:
    """SIGKILL at random moments of training; what is left must load, and lead to the run that was never touched."""
    for first in range(0, count, 50):  # a run of its own for every fifty: more beginnings and ends
        kills = min(50, count - first)
        found = killing.main(kills, seed + first)
        require(found["killed"] == kills, f"{found['killed']} of {kills} processes were killed")
        ledger.tried += kills - 1
        ledger.lost += int(found["lost"])
        with ledger.attempt("the run after the kills"):
            require(found["lost"] == 0, f"{found['lost']} kills left no checkpoint")
            require(found["equal"], "the resumed run is not the run")
        ledger.count("half-written temporaries seen after kills", int(found["killed_while_writing"]))


def small_file(folder: Path) -> Path:
    """The checkpoint of a small run: what a user's folder holds."""
    rng = np.random.default_rng(0)
    train(
        mlp([3, 2]), rng.normal(size=(4, 3)), np.array([0, 1, 0, 1]), max_iter=2, callbacks=[Checkpoint(folder)]
    )  # fmt: skip
    return checkpoints(folder)[0]


def require_refused(path: Path) -> None:
    try:
        load_training(path)
    except DataError as error:
        require(path.name in str(error), f"the message does not name the file: {error}")
        return
    require(False, "damage was not noticed")


def run_cuts(ledger: Ledger, count: int, seed: int) -> None:
    """A file cut off at every byte (with ``count`` at every count-th)."""
    with tempfile.TemporaryDirectory() as name:
        path = small_file(Path(name))
        whole = path.read_bytes()
        ledger.notes["bytes of the file"] = len(whole)
        for length in range(0, len(whole), count):
            path.write_bytes(whole[:length])
            with ledger.attempt(f"cut at byte {length}"):
                require_refused(path)


def run_flips(ledger: Ledger, count: int, seed: int) -> None:
    """Random bits flipped, one to three at a time."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        path = small_file(Path(name))
        whole = path.read_bytes()
        for number in range(count):
            damaged = bytearray(whole)
            bits = rng.sample(range(8 * len(whole)), rng.choice((1, 1, 1, 2, 3)))
            for bit in bits:
                damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with ledger.attempt(f"flip {number}: bits {bits}"):
                require_refused(path)


# What else can happen to a folder ------------------------------------------------------------------------------


def a_run(folder: Path, max_iter: int = 15, **options: object) -> Result:
    rng = np.random.default_rng(1)
    y = np.arange(40) % 3
    x = rng.normal(size=(40, 5)) + np.eye(3, 5)[y]
    checkpoint = Checkpoint(folder, every=1, **options)
    return train(mlp([5, 4, 3]), x, y, max_iter=max_iter, eps_abs=0.0, eps_rel=0.0, callbacks=[checkpoint])


def fill_disk(folder: Path) -> None:
    """The disk fills up in mid-run: the run goes on, the last checkpoint before stays whole."""

    class Fill(Callback):
        def on_epoch_end(self, trainer: object) -> None:
            if trainer.history.n_iter == 3:  # type: ignore[attr-defined]
                import resource

                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

    y = np.arange(12) % 3
    x = np.random.default_rng(0).normal(size=(12, 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(mlp([4, 3]), x, y, max_iter=6, callbacks=[Checkpoint(folder, every=1), Fill()])
    require(result.history.n_iter == 6, "the run did not go on")
    require(any(issubclass(w.category, CheckpointWarning) for w in caught), "no warning was given")
    require(latest(folder) == folder / "checkpoint-000003.dladmm", f"left: {sorted(folder.iterdir())}")


def go_read_only(folder: Path) -> None:
    """The folder becomes read-only in mid-run (for a process without root's rights)."""

    class Close(Callback):
        def on_epoch_end(self, trainer: object) -> None:
            if trainer.history.n_iter == 2:  # type: ignore[attr-defined]
                folder.chmod(0o555)

    y = np.arange(12) % 3
    x = np.random.default_rng(0).normal(size=(12, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        train(mlp([4, 3]), x, y, max_iter=5, callbacks=[Checkpoint(folder, every=1), Close()])
    require(latest(folder) == folder / "checkpoint-000002.dladmm", f"left: {sorted(folder.iterdir())}")


def two_writers(folder: Path) -> None:
    """Two processes go on with one run in one folder; whoever looks meanwhile finds a whole checkpoint."""
    a_run(folder, max_iter=2)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=a_run, args=(folder,), kwargs={"resume": True}) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        require(latest(folder) is not None, "no checkpoint while two processes write")
        time.sleep(0.002)
    require([writer.exitcode for writer in writers] == [0, 0], "a writer failed")
    with tempfile.TemporaryDirectory() as name:
        require_equal(a_run(Path(name)), a_run(folder, resume=True))


def older_formats(folder: Path) -> None:
    stored = sorted(CORPUS.glob("format-*.dladmm"))
    require(stored, "no stored files of older formats")
    for path in stored:
        tensors, _ = load(path, "training")
        require(len(tensors) > 0, f"{path.name} is empty")


def newer_format(folder: Path) -> None:
    from unittest import mock

    with mock.patch("dladmm.base.container.VERSION", 99):
        save(folder / "new", "training", {"x": torch.zeros(2)}, {})
    try:
        load(folder / "new", "training")
    except DataError as error:
        require("format version 99" in str(error) and "Upgrade dladmm" in str(error), str(error))
        return
    require(False, "a file of a later format was accepted")


def damaged_newest(folder: Path) -> None:
    """The newest checkpoint is damaged: the run goes on from the one before and comes to the same end."""
    with tempfile.TemporaryDirectory() as name:
        whole = a_run(Path(name), max_iter=12)
    a_run(folder, max_iter=8)
    newest = checkpoints(folder)[0]
    newest.write_bytes(newest.read_bytes()[:-3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        require_equal(whole, a_run(folder, max_iter=12, resume=True))


CALAMITIES = {
    "disk full in mid-run": (fill_disk, {}),
    "folder read-only in mid-run": (go_read_only, {"unprivileged": True}),
    "two processes, one folder": (two_writers, {}),
    "older formats": (older_formats, {}),
    "newer format": (newer_format, {}),
    "newest damaged": (damaged_newest, {}),
}


def run_calamities(ledger: Ledger, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as first:  # what is imported on first use may be out of reach later
        a_run(Path(first), max_iter=3)
    for _ in range(count):
        for name, (calamity, how) in CALAMITIES.items():
            with ledger.attempt(name), tempfile.TemporaryDirectory() as folder:
                if os.geteuid() == 0:
                    os.chown(folder, 65534, 65534)
                answer = forked(lambda calamity=calamity, folder=folder: calamity(Path(folder)), **how)
                require(answer == "ok", answer)
