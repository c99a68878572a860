"""Files made to harm: pickles that run code, bombs, paths that leave their archive, links that leave their folder."""

from __future__ import annotations

import builtins
import gzip
import io
import os
import pickle
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from dataset_files import Bomb, coauthor_arrays, npz, planetoid_arrays, planetoid_files
from test_data_fuzz import _coauthor

from chaos.bad_commands import write_bomb
from chaos.ledger import Ledger, require
from chaos.loaders import OWN, bounded_memory
from dladmm import GCNClassifier, MLPClassifier, datasets
from dladmm.base.table_file import read_npz
from dladmm.cli.run_config import read_toml
from dladmm.datasets import unpickle
from dladmm.datasets.idx import parse_idx
from dladmm.datasets.planetoid import PARTS, parse_planetoid, parse_planetoid_npz
from dladmm.report import read_report
from dladmm.tables import read_table
from dladmm.training.checkpoint import latest, load_model, load_training

MEMORY, SECONDS = 400_000_000, 60.0


def evil_pickles() -> dict[str, bytes]:
    """One harmful object in every form that a pickle has for calling something."""
    forms = {f"protocol {protocol}": pickle.dumps(Bomb(), protocol=protocol) for protocol in range(6)}
    code = b"import builtins; builtins.dladmm_bomb = True"
    text = len(code).to_bytes(1, "little") + code
    return forms | {
        "global and reduce": b"\x80\x02c__builtin__\nexec\nU" + text + b"\x85R.",
        "inst": b"(S'" + code + b"'\ni__builtin__\nexec\n.",
        "obj": b"\x80\x02(c__builtin__\nexec\nU" + text + b"o.",
        "newobj": b"\x80\x02c__builtin__\nexec\nU" + text + b"\x85\x81.",
        "newobj_ex": b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c" + text + b"\x85}\x92.",
        "stack global": b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c" + text + b"\x85R.",
        "build": b"\x80\x02c__builtin__\nexec\nU" + text + b"\x85b.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent id": b"\x80\x02U\x01aQ.",
        "two pickles": pickle.dumps(1) + pickle.dumps(Bomb()),
        "system": b"cos\nsystem\n(S'touch dladmm_bomb'\ntR.",
        "dotted name": b"\x80\x04\x8c\x02os\x8c\x0bpath.exists\x93\x8c\x01/\x85R.",
    }


def torch_file() -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": Bomb()}, buffer)
    return buffer.getvalue()


def zipped(members: dict[str, bytes], link: bool = False) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name)
            if link:
                entry.external_attr = 0o120777 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def from_file(read: Callable[[Path], object], data: bytes, folder: Path, name: str = "file") -> object:
    (folder / name).write_bytes(data)
    return read(folder / name)


def attacks(folder: Path) -> dict[str, Callable[[], object]]:
    """Each must be refused with an error of the library's own."""
    found: dict[str, Callable[[], object]] = {}
    files = planetoid_files()
    readers: dict[str, Callable[[Path], object]] = {
        "load_model": load_model, "load_training": load_training, "MLPClassifier.load": MLPClassifier.load,
        "GCNClassifier.load": GCNClassifier.load, "read_npz": lambda path: read_npz(path, ()), "read_toml": read_toml,
        "read_table": lambda path: read_table(path).known(["kind"], "target"),
    }  # fmt: skip
    for form, evil in (evil_pickles() | {"torch.save": torch_file()}).items():
        found[f"unpickle, {form}"] = lambda evil=evil: unpickle.load(evil, "f")
        for part in PARTS:
            found[f"planetoid {part}, {form}"] = lambda part=part, evil=evil: parse_planetoid(
                files | {part: evil}, "tiny"
            )
        for name, read in readers.items():
            found[f"{name}, {form}"] = lambda read=read, evil=evil: from_file(read, evil, folder)
    objects = npz({"x": np.array([Bomb()], dtype=object), "y": np.arange(2)})
    found["own npz of objects"] = lambda: from_file(lambda path: read_npz(path, ("x",)), objects, folder)
    for name in coauthor_arrays():
        if name != "class_names":  # never opened
            evil_arrays = coauthor_arrays() | {name: np.array([Bomb()], dtype=object)}
            found[f"coauthor npz, {name} of objects"] = lambda evil=evil_arrays: _coauthor(npz(evil))
    bomb = folder / "bomb.npz"
    write_bomb(bomb)
    for name, read in (
        ("planetoid npz", lambda data: parse_planetoid_npz(data, "t")),
        ("coauthor npz", _coauthor),
    ):
        found[f"{name}, bomb"] = lambda read=read: read(bomb.read_bytes())
    found["own npz, bomb"] = lambda: read_npz(bomb, ("x",))
    packed = gzip.compress(bytes(200_000_000), 1)
    found["idx, gzip bomb"] = lambda: parse_idx(packed, "f", ndim=3)
    found["idx, declared too large"] = lambda: parse_idx(bytes((0, 0, 8, 3)) + b"\xff" * 12, "f", ndim=3)
    nested = gzip.compress(packed)
    found["idx, bomb in a bomb"] = lambda: parse_idx(nested, "f", ndim=3)
    for way in ("../../evil.npy", "/etc/evil.npy", "..\\..\\evil.npy", "x.npy/../../evil.npy", "\0evil.npy"):
        archive = zipped({way: npy(np.arange(3))})
        found[f"own npz, member {way!r}"] = lambda a=archive: from_file(
            lambda p: read_npz(p, ("x", "y")), a, folder
        )
        found[f"coauthor npz, member {way!r}"] = lambda archive=archive: _coauthor(archive)
    links = zipped({"x.npy": b"/etc/passwd", "y.npy": b"/etc/passwd"}, link=True)
    found["own npz, links"] = lambda: from_file(lambda path: read_npz(path, ("x",)), links, folder)
    linked = {f"{name}.npy": b"/etc/passwd" for name in planetoid_arrays()}
    found["planetoid npz, links"] = lambda: parse_planetoid_npz(zipped(linked, link=True), "t")
    found["data set that is a link to another file"] = lambda: linked_data(folder)
    found["folder of checkpoints that are links"] = lambda: linked_checkpoint(folder)
    found["run whose metrics are a link"] = lambda: linked_run(folder)
    return found


def linked_data(folder: Path) -> object:
    place = folder / "data" / "planetoid"
    place.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        path = place / f"ind.cora.{part}"
        path.unlink(missing_ok=True)
        path.symlink_to("/etc/passwd")
    return datasets.load("cora", data_dir=folder / "data")


def linked_checkpoint(folder: Path) -> object:
    place = folder / "links"
    place.mkdir(exist_ok=True)
    path = place / "checkpoint-000001.dladmm"
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    return latest(place)


def linked_run(folder: Path) -> object:
    place = folder / "linked-run"
    place.mkdir(exist_ok=True)
    (place / "history.csv").write_text("iteration,loss\n1,2\n")
    (place / "metrics.json").unlink(missing_ok=True)
    (place / "metrics.json").symlink_to("/etc/passwd")
    return read_report(place)


def run(ledger: Ledger, count: int, seed: int) -> None:
    """Every attack once; nothing may run, nothing be written elsewhere, little memory be taken."""
    ran: list[object] = []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outside, folder = Path(name), Path(name) / "inside"
        folder.mkdir()
        every = attacks(folder)
        with mock.patch.object(os, "system", ran.append), bounded_memory(MEMORY):
            for what, attack in list(every.items())[::count]:
                with ledger.attempt(what, SECONDS):
                    try:
                        attack()
                        require(False, "was accepted")
                    except OWN:
                        pass
                    require(not hasattr(builtins, "dladmm_bomb") and not ran, "code was run")
                    require(sorted(path.name for path in outside.iterdir()) == ["inside"], "a file got out")


def run_control(ledger: Ledger, count: int, seed: int) -> None:
    """The weapons are loaded: the standard unpickler does run them."""
    for form, evil in evil_pickles().items():
        if not form.startswith("protocol"):
            continue
        with ledger.attempt(form):
            try:
                pickle.loads(evil)
                require(hasattr(builtins, "dladmm_bomb"), "nothing was run")
            finally:
                if hasattr(builtins, "dladmm_bomb"):
                    del builtins.dladmm_bomb
