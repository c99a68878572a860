"""Files and folders that are missing, damaged, unreadable, full, or not what their name says."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from chaos.bad_calls import Faulty
from chaos.bad_estimators import classified, graph
from chaos.commands import run
from chaos.forks import NOBODY, forked
from chaos.ledger import Ledger, Violation, require
from chaos.table import X, Y
from convergent import train
from dladmm import GCNClassifier, MLPClassifier, MLPRegressor, datasets, mlp
from dladmm.base.table_file import read_npz
from dladmm.callbacks import Checkpoint, CSVLogger
from dladmm.report import read_report, write_page
from dladmm.tables import read_table
from dladmm.training.checkpoint import load_model, load_training, save, save_model
from report_runs import history, make_run

Attack = tuple[str, Callable[[Path], object], str]
"""Name, what is done in a folder, and how the answer must begin or what words it must hold."""


def checkpointed(folder: Path, every: int = 1) -> None:
    train(mlp([4, 3]), X, Y, max_iter=3, callbacks=[Checkpoint(folder, every=every)])


def altered(change: Callable[[dict], None]) -> Callable[[Path], object]:
    """Load an estimator from a file made by hand: right checksum, other contents."""

    def attack(folder: Path) -> object:
        from dladmm.base.container import load

        classified().save(folder / "fit")
        tensors, meta = load(folder / "fit", "model")
        change(meta["extra"])
        save(folder / "made", "model", tensors, meta)
        return MLPClassifier.load(folder / "made")

    return attack


def wrong_estimator(folder: Path) -> None:
    classified().save(folder / "fit")
    MLPRegressor.load(folder / "fit")


def bare_network(folder: Path) -> None:
    save_model(torch.nn.Sequential(torch.nn.Linear(4, 3)), folder / "bare")
    GCNClassifier.load(folder / "bare")


def unknown_layer(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that only the weights are saved
        save_model(torch.nn.Sequential(Faulty()), folder / "f")
    load_model(folder / "f")


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    load_training(folder / "pipe")


def looped_link(folder: Path) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    load_model(folder / "loop")


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


def unreadable(folder: Path) -> Path:
    path = written(folder, b"secret")
    path.chmod(0o000)
    return path


ATTACKS: list[Attack] = [
    ("missing model", lambda f: load_model(f / "no"), "DataError: cannot read"),
    ("folder as model", lambda f: load_model(f), "is a folder or a device"),
    ("pipe as checkpoint", fifo, "is a folder or a device"),
    ("link to itself", looped_link, "Too many levels of symbolic links"),
    ("null byte", lambda f: load_model("a\0b"), "null byte"),
    ("name too long", lambda f: load_model("x" * 5000), "File name too long"),
    ("empty file", lambda f: load_model(written(f, b"")), "not a dladmm file"),
    ("a pickle", lambda f: load_model(written(f, b"\x80\x04N.")), "not a dladmm file"),
    ("another estimator", wrong_estimator, "holds MLPClassifier, not a MLPRegressor"),
    ("a bare network", bare_network, "holds a bare network, not a GCNClassifier"),
    ("a layer of its own", unknown_layer, "code that a file does not hold"),
    ("unfitted", lambda f: MLPClassifier().save(f / "f"), "is not fitted yet"),
    ("parameters gone", altered(lambda extra: extra.pop("parameters")), "DataError"),
    ("unknown parameter", altered(lambda extra: extra["parameters"].update(power=3)), "DataError"),
    ("classes gone", altered(lambda extra: extra.pop("classes")), "DataError"),
    ("classes of no type", altered(lambda extra: extra["classes"].update(dtype="nonsense")), "DataError"),
    ("classes of another length", altered(lambda extra: extra["classes"].update(values=[1])), "DataError"),
    ("features not a number", altered(lambda extra: extra.update(n_features_in="many")), "DataError"),
    ("save into no folder", lambda f: classified().save(f / "no" / "f"), "DataError: cannot write"),
    ("save onto a folder", lambda f: graph().save(f), "DataError: cannot write"),
    ("checkpoints in a file", lambda f: checkpointed(written(f, b"")), "Not a directory"),
    ("checkpoints twice", lambda f: (checkpointed(f), checkpointed(f)), "already holds"),
    ("log into no folder", lambda f: train(mlp([4, 3]), X, Y, max_iter=1, callbacks=[CSVLogger(f)]), "Error"),
    ("data set of no name", lambda f: datasets.load("nope"), "it must be one of"),
    ("data set by path", lambda f: datasets.load("../cora"), "it must be one of"),
    ("data_dir a number", lambda f: datasets.load("cora", data_dir=3), "it must be the path of a folder"),
    ("data_dir missing", lambda f: datasets.load("cora", data_dir=f / "no"), "is not a folder"),
    ("option of no data set", lambda f: datasets.load("digits", rows=3), "rows"),
    ("option out of range", lambda f: datasets.load("digits", n_test=10**9), "n_test"),
    ("negative size", lambda f: datasets.load("sbm", n_nodes=-5), "n_nodes"),
    ("csv missing", lambda f: read_table(f / "no"), "does not exist"),
    ("npz missing", lambda f: read_npz(f / "no", ()), "does not exist"),
    ("report of no folder", lambda f: read_report(f / "no"), "is not a folder"),
    ("unicode path", lambda f: checkpointed(f / "größe ☃ 数据"), "ok"),
    ("path with spaces", lambda f: checkpointed(f / " a b "), "ok"),
]

UNPRIVILEGED: list[Attack] = [
    ("unreadable model", lambda f: load_model(unreadable(f)), "Permission denied"),
    ("unreadable csv", lambda f: read_table(unreadable(f)), "Permission denied"),
    ("unreadable npz", lambda f: read_npz(unreadable(f), ()), "Permission denied"),
    ("read-only folder", lambda f: (f.chmod(0o555), checkpointed(f)), "DataError: cannot write"),
    ("read-only parent", lambda f: (f.chmod(0o555), checkpointed(f / "run")), "cannot make the folder"),
    ("page in a read-only folder", lambda f: page(f, lambda: f.chmod(0o555)), "could not be written"),
    ("command in a read-only folder", lambda f: (f.chmod(0o555), command(f)), "code 2"),
]

DISK_FULL: list[Attack] = [
    ("first checkpoint", lambda f: checkpointed(f), "DataError: cannot write"),
    ("model", lambda f: classified().save(f / "fit"), "DataError: cannot write"),
    ("page", lambda f: page(f, lambda: None), "could not be written"),
    ("command", lambda f: command(f), "code 2"),
]


def page(folder: Path, then: Callable[[], object]) -> None:
    make_run(folder / "run", history(2))
    then()
    write_page(read_report(folder), folder / "page.html")


def command(folder: Path) -> None:
    done = run(
        "train",
        "mlp",
        "--dataset",
        "digits",
        "--mode",
        "convergent",
        "--max-iter",
        1,
        "--hidden",
        "3",
        "--out",
        "run",
        cwd=folder,
    )
    require("Traceback" not in done.err, done.err)
    require(False, f"code {done.code}")


def import_everything(folder: Path) -> None:
    """What is imported on first use may be out of reach for a process without root's rights."""
    for attack in (lambda: page(folder, lambda: None), lambda: command(folder)):
        with suppress(Violation):
            attack()


def judge_files(ledger: Ledger, folder: Path) -> None:
    (folder / "first").mkdir()
    import_everything(folder / "first")
    groups: list[tuple[str, list[Attack], dict[str, object]]] = [
        ("file", ATTACKS, {}),
        ("permissions", UNPRIVILEGED, {"unprivileged": True}),
        ("disk full", DISK_FULL, {"disk_full_at": 1000}),
    ]
    for group, attacks, how in groups:
        for number, (name, attack, words) in enumerate(attacks):
            own = folder / f"{group}-{number}".replace(" ", "-")
            own.mkdir()
            os.chmod(own, 0o777)
            if os.geteuid() == 0:
                os.chown(own, NOBODY, NOBODY)
            with ledger.attempt(f"{group}: {name}"):
                answer = forked(lambda attack=attack, own=own: attack(own), **how)
                require(words in answer, f"answered {answer[:300]!r} without {words!r}")
                known = ("DataError", "InputError", "InputTypeError", "ok", "Violation")
                require(answer.startswith(known), f"answered with a stranger: {answer[:200]}")
