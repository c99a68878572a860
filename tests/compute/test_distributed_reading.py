"""Rows of files: each rank's own, and never more than asked for."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

from dladmm.base.errors import DataError, InputError
from dladmm.datasets.partial_reading import idx_rows, npy_rows, npz_names, npz_rows, shape_of
from dladmm.distributed import share

ARRAY = np.random.default_rng(0).integers(0, 256, (23, 4, 3)).astype(np.uint8)


def idx_bytes(array):
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "plain").write_bytes(idx_bytes(ARRAY))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx_bytes(ARRAY)))
    np.save(tmp_path / "a.npy", ARRAY.astype(np.float64))
    np.savez(tmp_path / "stored.npz", x=ARRAY, y=np.arange(23))
    np.savez_compressed(tmp_path / "deflated.npz", x=ARRAY, y=np.arange(23))
    return tmp_path


READERS = {
    "plain": lambda folder, rows: idx_rows(folder / "plain", rows),
    "packed": lambda folder, rows: idx_rows(folder / "packed.gz", rows),
    "npy": lambda folder, rows: npy_rows(folder / "a.npy", rows),
    "stored": lambda folder, rows: npz_rows(folder / "stored.npz", "x", rows),
    "deflated": lambda folder, rows: npz_rows(folder / "deflated.npz", "x", rows),
}


@pytest.mark.parametrize("kind", READERS)
def test_ranges_and_scattered_rows_are_those_of_the_array(files, kind):
    read = READERS[kind]
    for rows in (slice(None), slice(5, 9), slice(22, 23), slice(7, 7), slice(20, 99)):
        np.testing.assert_array_equal(read(files, rows), ARRAY[rows])
    for rows in (np.array([3, 0, 22, 3]), np.array([], dtype=int), np.random.default_rng(1).permutation(23)):
        np.testing.assert_array_equal(read(files, rows), ARRAY[rows])
    with pytest.raises(InputError, match=r"has the rows 0\.\.22"):
        read(files, np.array([23]))
    with pytest.raises(InputError, match="plain range"):
        read(files, slice(0, 9, 2))


@pytest.mark.parametrize("world", [1, 2, 3, 7, 30])
def test_the_shares_of_all_ranks_are_the_whole(files, world):
    shares = [share(23, rank, world) for rank in range(world)]
    sizes = [part.stop - part.start for part in shares]
    assert max(sizes) - min(sizes) <= 1
    parts = [idx_rows(files / "packed.gz", part) for part in shares]
    np.testing.assert_array_equal(np.concatenate(parts), ARRAY)


def test_shapes_and_names(files):
    assert shape_of(files / "plain") == shape_of(files / "packed.gz") == (23, 4, 3)
    assert shape_of(files / "a.npy") == (23, 4, 3)
    assert shape_of(files / "stored.npz", "y") == (23,)
    assert npz_names(files / "deflated.npz") == ["x", "y"]


def test_only_the_rows_that_are_asked_for_are_held(tmp_path):
    """A sparse file of 2 GB: a rank's rows of it take what they take."""
    path = tmp_path / "big.npy"
    n_rows = 1 << 18
    np.lib.format.open_memmap(path, "w+", np.float64, (n_rows, 1024)).flush()
    if os.stat(path).st_blocks * 512 > 1 << 28:
        pytest.skip("this file system stores holes")
    assert npy_rows(path, slice(n_rows - 3, n_rows)).shape == (3, 1024)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plain", b"\0\0\x08", "cut off"),
        ("plain", b"\0\0\x09\1\0\0\0\1.", "not an idx file of unsigned bytes"),
        ("plain", idx_bytes(ARRAY)[:-5], "cut off"),
        ("packed.gz", gzip.compress(idx_bytes(ARRAY), mtime=0)[:40], "packed.gz could not be read|cut off"),
        ("stored.npz", b"PK", "could not be read"),
        ("a.npy", b"\x93NUMPY\x09\x00", "could not be read|unknown npy format"),
    ],
)
def test_damaged_files_are_refused_in_words(files, name, content, message):
    (files / name).write_bytes(content)
    reader = {"plain": "plain", "packed.gz": "packed", "stored.npz": "stored", "a.npy": "npy"}[name]
    with pytest.raises(DataError, match=message):
        READERS[reader](files, slice(None))


def test_what_is_not_there_is_named(files):
    with pytest.raises(DataError, match="lacks the array z; it holds x, y"):
        npz_rows(files / "stored.npz", "z", slice(None))
    with pytest.raises(DataError, match="does not exist"):
        idx_rows(files / "nothing", slice(None))
    np.save(files / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match="array of numbers"):
        npy_rows(files / "objects.npy", slice(None))
