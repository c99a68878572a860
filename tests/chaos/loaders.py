"""Mutated files of every format the library reads: read, or refused with the library's own error, in little memory."""

from __future__ import annotations

import hashlib
import json
import random
import re
import resource
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from dataset_files import npz
from test_data_fuzz import FORMATS as DATA_FORMATS
from test_data_fuzz import PLANETOID, mutate, repacked
from torch import nn

from chaos.checkpoints import small_file
from chaos.ledger import Ledger, require
from dladmm import DataError, InputError, InputTypeError
from dladmm.base.table_file import read_npz
from dladmm.cli.run_config import _checked, read_toml
from dladmm.report import read_report
from dladmm.tables import read_table
from dladmm.training.checkpoint import load_model, load_training, save_model
from report_runs import make_run

MOST_MEMORY = 300_000_000
"""Address space a reader may take beyond what the process has."""
MOST_SECONDS = 5.0
OWN = (DataError, InputError, InputTypeError)

Reader = Callable[[bytes], object]
Change = Callable[[bytes, random.Random], bytes]


def from_file(folder: Path, name: str, read: Callable[[Path], object]) -> Reader:
    def reader(data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return reader


def rechecked(data: bytes, rng: random.Random) -> bytes:
    """A container with one number, letter or bit of its header changed, and the checksum that goes with it."""
    length = struct.unpack("<Q", data[:8])[0]
    header, body = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.2 and body:
        body = mutate(body, rng)
    else:
        kept = re.sub(rb'("sha256":")[0-9a-f]{64}', rb"\g<1>" + b"0" * 64, header)
        header = mutate(kept, rng)
    made = struct.pack("<Q", len(header)) + header + body
    blank = b'"sha256":"' + b"0" * 64
    return made.replace(blank, b'"sha256":"' + hashlib.sha256(made).hexdigest().encode(), 1)


def respelled(data: bytes, rng: random.Random) -> bytes:
    """Valid JSON with one value replaced by another kind: what gets past the parser."""
    value = json.loads(data)
    place, key = value, rng.choice(sorted(value))
    while isinstance(place[key], dict) and place[key] and rng.random() < 0.7:
        place, key = place[key], rng.choice(sorted(place[key]))
    place[key] = rng.choice([None, True, -1, 1e308, 10**40, "", "<b>", [], {}, [[]], {"a": 1}])
    return json.dumps(value).encode()


def reread_run(data: bytes, folder: Path, file: str) -> object:
    (folder / "run" / file).write_bytes(data)
    return read_report(folder)


def formats(folder: Path) -> dict[str, list[tuple[bytes, Reader, Change]]]:
    """By format, the valid files beside what reads them and what changes them; mutations take turns among them."""
    found: dict[str, list[tuple[bytes, Reader, Change]]] = {
        "idx": [(*DATA_FORMATS[name], mutate) for name in ("idx images", "idx labels")],
        "idx, gzip": [(*DATA_FORMATS["idx images, gzip"], mutate)],
        "planetoid": [(*DATA_FORMATS[f"planetoid {part}"], mutate) for part in PLANETOID],
        "planetoid npz": [
            (*DATA_FORMATS["planetoid npz"], mutate), (*DATA_FORMATS["planetoid npz, contents"], repacked),
        ],
        "coauthor npz": [
            (*DATA_FORMATS["coauthor npz"], mutate), (*DATA_FORMATS["coauthor npz, packed"], mutate),
            (*DATA_FORMATS["coauthor npz, contents"], repacked),
        ],
    }  # fmt: skip
    own = npz({"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6) % 2})
    packed = npz({"x": np.arange(12.0).reshape(6, 2), "y": np.array(list("ababab"))}, packed=True)
    reads_npz = from_file(folder, "own.npz", lambda path: read_npz(path, ("x", "y")))
    found["own npz"] = [(own, reads_npz, mutate), (packed, reads_npz, mutate), (own, reads_npz, repacked)]
    table = b"a,b,kind\n" + b"".join(b"%d.5,%d,%s\n" % (k, -k, b"xy"[k % 2 : k % 2 + 1]) for k in range(8))
    found["own csv"] = [
        (table, from_file(folder, "own.csv", lambda path: read_table(path).known(["kind"], "target")), mutate)
    ]
    toml = b'dataset = "digits"\nhidden = [12, 3]\nmax_iter = 9\nrho = 1.5\nseed = 4\nout = "runs/x"\n'
    found["settings (toml)"] = [
        (toml, from_file(folder, "run.toml", lambda path: _checked(read_toml(path))), mutate)
    ]
    checkpoint = small_file(folder / "checkpoints").read_bytes()
    reads_checkpoint = from_file(folder, "c.dladmm", load_training)
    found["checkpoint"] = [(checkpoint, reads_checkpoint, mutate)]
    found["checkpoint, right checksum"] = [(checkpoint, reads_checkpoint, rechecked)]
    from chaos.bad_estimators import classified
    from dladmm import MLPClassifier

    classified().save(folder / "fit")
    model = (folder / "fit").read_bytes()
    network = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    save_model(network, folder / "network")
    images = (folder / "network").read_bytes()
    found["model, right checksum"] = [
        (model, from_file(folder, "m.dladmm", load_model), rechecked),
        (model, from_file(folder, "e.dladmm", MLPClassifier.load), rechecked),
        (images, from_file(folder, "n.dladmm", load_model), rechecked),
    ]
    run = make_run(folder / "report" / "run")
    changes: list[tuple[str, Change]] = [
        ("history.csv", mutate), ("metrics.json", mutate), ("metrics.json", respelled), ("certificate.txt", mutate),
    ]  # fmt: skip
    found["run folder"] = []
    for file, change in changes:
        good = (run / file).read_bytes()

        def read(data: bytes, file: str = file, good: bytes = good) -> object:
            try:
                return reread_run(data, folder / "report", file)
            finally:
                (run / file).write_bytes(good)

        found["run folder"].append((good, read, change))
    return found


@contextmanager
def bounded_memory(extra: int) -> Iterator[None]:
    """The process may take only so much more address space; more is a MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def run(ledger: Ledger, count: int, seed: int, name: str) -> None:
    """``count`` mutations of one format."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        files = formats(Path(folder))[name]
        for good, read, _ in files:
            read(good)
        rng = random.Random(f"{name} {seed}")
        slowest = 0.0
        with bounded_memory(MOST_MEMORY):
            for number in range(count):
                good, read, change = files[number % len(files)]
                data = change(good, rng)
                began = time.process_time()
                with ledger.attempt(f"{name}, mutation {number} of seed {seed}"):
                    try:
                        read(data)
                        ledger.count("still valid")
                        require(name != "checkpoint" or data == good, "damage was not noticed")
                    except OWN:
                        ledger.count("refused")
                    slowest = max(slowest, time.process_time() - began)
                    require(time.process_time() - began < MOST_SECONDS, "took too long")
        ledger.notes["slowest in milliseconds"] = round(1000 * slowest, 1)
    require(ledger.notes.get("refused", 0) > count / 20, "hardly a mutation was noticed: nothing was tested")
