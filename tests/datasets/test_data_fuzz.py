"""Damaged files of every format: either they are read, or DataError names the file. Nothing else may happen.

DLADMM_FUZZ sets the number of mutations a format (300 unless told, 4,800 in all).
"""

from __future__ import annotations

import gzip
import io
import os
import random
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from dataset_files import coauthor_arrays, idx, image_files, npz, planetoid_arrays, planetoid_files

from dladmm.base.errors import DataError
from dladmm.datasets.coauthor import parse_coauthor
from dladmm.datasets.idx import parse_idx, parse_images
from dladmm.datasets.planetoid import parse_planetoid, parse_planetoid_npz

MUTATIONS = int(os.environ.get("DLADMM_FUZZ", "300"))
MOST_MEMORY = 64e6  #: the honest files need less than 2 MB
MOST_SECONDS = 10.0

PLANETOID = planetoid_files()
IMAGES = image_files(packed=False)
IMAGE = idx(np.arange(48).reshape(3, 4, 4))


def _coauthor(data: bytes) -> object:
    return parse_coauthor(data, "tiny", labels_per_class=1, n_test=None)


def _planetoid_part(part: str) -> Callable[[bytes], object]:
    return lambda data: parse_planetoid(PLANETOID | {part: data}, "tiny")


# format: a valid file, and what reads it
FORMATS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "idx images": (IMAGE, lambda data: parse_idx(data, "tiny", ndim=3)),
    "idx images, gzip": (gzip.compress(IMAGE), lambda data: parse_idx(data, "tiny", ndim=3)),
    "idx labels": (
        IMAGES["train-labels-idx1-ubyte"],
        lambda data: parse_images(IMAGES | {"train-labels-idx1-ubyte": data}, "tiny", full=True),
    ),
    **{f"planetoid {part}": (PLANETOID[part], _planetoid_part(part)) for part in PLANETOID},
    "planetoid npz": (npz(planetoid_arrays(), packed=True), lambda data: parse_planetoid_npz(data, "tiny")),
    "coauthor npz": (npz(coauthor_arrays()), _coauthor),
    "coauthor npz, packed": (npz(coauthor_arrays(), packed=True), _coauthor),
    "planetoid npz, contents": (npz(planetoid_arrays()), lambda data: parse_planetoid_npz(data, "tiny")),
    "coauthor npz, contents": (npz(coauthor_arrays()), _coauthor),
}
REPACKED = ("planetoid npz, contents", "coauthor npz, contents")

# Numbers that declare too much, or something negative, in either byte order
EXTREMES = [b"\xff" * n for n in (1, 2, 4, 8)] + [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    bytes(4),
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to three small changes; the first bytes, which hold the headers, are hit more often."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        size = len(data)
        at = rng.randrange(max(1, min(size, 64) if rng.random() < 0.4 else size))
        if rng.random() < 0.1:  # the end holds the directory of a zip file
            at = max(0, size - 1 - rng.randrange(80))
        piece = rng.choice(EXTREMES)
        match rng.randrange(7):
            case 0:  # flip a bit
                data = (
                    data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if size else data
                )
            case 1:  # set a byte
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 2:  # overwrite a number
                data = data[:at] + piece + data[at + len(piece) :]
            case 3:  # truncate
                data = data[:at]
            case 4:  # append, or insert
                data = data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
            case 5:  # drop a few bytes
                data = data[:at] + data[at + rng.randrange(1, 9) :]
            case _:  # repeat a piece
                data = data[:at] + data[at : at + rng.randrange(1, 200)] * 2 + data[at:]
    return data


def repacked(data: bytes, rng: random.Random) -> bytes:
    """An npz file with one changed member and right checksums, so that the change gets past them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    header = rng.choice((0, 128))  # 128 bytes of npy header: leave them alone every other time
    members[name] = members[name][:header] + mutate(members[name][header:], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for each, contents in members.items():
            archive.writestr(each, contents)
    return buffer.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_only_data_errors_come_out(name):
    good, parse = FORMATS[name]
    parse(good)
    rng = random.Random(name)
    messages = []
    tracemalloc.start()
    try:
        for number in range(MUTATIONS):
            bad = repacked(good, rng) if name in REPACKED else mutate(good, rng)
            tracemalloc.reset_peak()
            begin = time.perf_counter()
            try:
                parse(bad)
            except DataError as error:
                messages.append(str(error))
            except Exception as error:
                raise AssertionError(f"mutation {number} of {name} raised {error!r}") from error
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY, f"mutation {number} of {name} is greedy"
            assert time.perf_counter() - begin < MOST_SECONDS, f"mutation {number} of {name} hangs"
    finally:
        tracemalloc.stop()
    assert all("tiny" in message or "-idx1-ubyte" in message for message in messages), "a file is not named"
    assert len(messages) > MUTATIONS / 10, "hardly a mutation was noticed: the test does not test"


def test_every_truncation_is_refused():
    for name, (good, parse) in FORMATS.items():
        for cut in range(0, len(good), max(1, len(good) // 60)):
            if name == "planetoid test.index" and good[:cut].split() == good.split():
                continue
            with pytest.raises(DataError):
                parse(good[:cut])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="address space limits are enforced on Linux only")
def test_bombs_fit_into_a_small_process():
    """A process that may take only 300 MB beyond its imports survives files that declare terabytes."""
    code = """
import gzip, resource, struct
import numpy as np
from dladmm.datasets import idx, npz, unpickle, planetoid, coauthor
from dladmm.base.errors import DataError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)
many = struct.pack("<i", 2**31 - 1)
zeros = bytes(1 << 20)
bomb = b"".join(gzip.compress(zeros, 1) for _ in range(4)) + gzip.compress(idx.MAX_IMAGE_BYTES * b"\\0", 1)
cases = [
    (idx.parse_idx, (bytes((0, 0, 8, 3)) + b"\\xff" * 12, "f"), {"ndim": 3}),
    (idx.parse_idx, (bomb, "f"), {"ndim": 3}),
    (idx.parse_idx, (gzip.compress(bytes(100_000_000), 1), "f"), {"ndim": 3}),
    (unpickle.load, (b"\\x80\\x02T" + many, "f"), {}),
    (unpickle.load, (b"\\x80\\x02Nr\\xff\\xff\\xff\\xff\\x96" + b"\\xff" * 8, "f"), {}),
    (unpickle.load, (b"\\x80\\x02" + b"}" * 3_000_000, "f"), {}),
    (unpickle.load, (b"\\x80\\x02cnumpy\\nndarray\\n(J" + many + b"J" + many + b"t\\x85R.", "f"), {}),
    (planetoid._test_index, (b"9" * 10_000_000, "f"), {}),
]
for function, arguments, options in cases:
    try:
        function(*arguments, **options)
    except DataError:
        continue
    raise SystemExit(f"{function} accepted {arguments[0][:20]}")
print("survived")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "survived\n", done.stderr
