"""Reads some rows of idx, npy and npz files, compressed or not, without loading the others.

Useful in functions ``X(rank, world)``: ``npz_rows("big.npz", "x", share(n, rank, world))``.
"""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dladmm.base.errors import DataError, InputError

Array = NDArray[Any]
RowSelection = slice | Array
"""Which rows of an array: a slice, or an array of indices."""

BLOCK = 1 << 22
"""Bytes read at once where the rows are scattered."""

MAX_DIMENSIONS = 8


class Stored(NamedTuple):
    """An array in a file that is open at the array's first byte."""

    file: IO[bytes]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    name: str


def idx_rows(path: str | os.PathLike[str], rows: RowSelection) -> Array:
    """The selected rows of an idx file of unsigned bytes (MNIST's format), gzipped or not; shape (n, ...)."""
    with _idx(Path(path)) as stored:
        return _take(stored, rows)


def npy_rows(path: str | os.PathLike[str], rows: RowSelection) -> Array:
    """The selected rows of an npy file, shape (n, ...)."""
    with _readable(Path(path)), Path(path).open("rb") as file:
        return _take(_npy(file, str(path)), rows)


def npz_rows(path: str | os.PathLike[str], name: str, rows: RowSelection) -> Array:
    """The selected rows of one array of an npz file, shape (n, ...); a compressed one is read from its beginning."""
    with _npz(Path(path), name) as stored:
        return _take(stored, rows)


def shape_of(path: str | os.PathLike[str], name: str | None = None) -> tuple[int, ...]:
    """The shape of the array in an idx or npy file, or of the array ``name`` in an npz file."""
    path = Path(path)
    if name is not None:
        with _npz(path, name) as stored:
            return stored.shape
    if path.suffix == ".npy":
        with _readable(path), path.open("rb") as file:
            return _npy(file, str(path)).shape
    with _idx(path) as stored:
        return stored.shape


def npz_names(path: str | os.PathLike[str]) -> list[str]:
    """The names of the arrays of an npz file."""
    with _readable(Path(path)), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        if isinstance(error, (DataError, InputError)):
            raise
        raise DataError(f"{path} could not be read: {error}") from error


@contextmanager
def _idx(path: Path) -> Iterator[Stored]:
    with _readable(path):
        with path.open("rb") as start_of_file:
            packed = start_of_file.read(2) == b"\x1f\x8b"
        file: IO[bytes] = gzip.open(path) if packed else path.open("rb")  # type: ignore[assignment]  # noqa: SIM115
        with file:
            start = _exactly(file, 4, str(path))
            if start[:3] != b"\0\0\x08" or not 1 <= start[3] <= MAX_DIMENSIONS:
                raise DataError(f"{path} is not an idx file of unsigned bytes.")
            sizes = _exactly(file, 4 * start[3], str(path))
            shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
            yield Stored(file, np.dtype(np.uint8), shape, str(path))


@contextmanager
def _npz(path: Path, name: str) -> Iterator[Stored]:
    with _readable(path), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            held = ", ".join(n.removesuffix(".npy") for n in archive.namelist())
            raise DataError(f"{path} lacks the array {name}; it holds {held or 'none'}.")
        with archive.open(f"{name}.npy") as file:
            yield _npy(file, f"{path}: {name}")


def _npy(file: IO[bytes], name: str) -> Stored:
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise DataError(f"{name} has the unknown npy format {version}.")
    shape, fortran, dtype = read(file)
    if dtype.hasobject or fortran or not shape:
        raise DataError(f"{name} must be an array of numbers with its rows one after the other.")
    return Stored(file, dtype, shape, name)


def _take(stored: Stored, rows: RowSelection) -> Array:
    file, dtype, shape, name = stored
    width = dtype.itemsize * math.prod(shape[1:])
    if isinstance(rows, slice):
        begin, end, step = rows.indices(shape[0])
        if step != 1:
            raise InputError(f"rows of {name} must be a plain range, got a step of {step}.")
        file.seek(begin * width, os.SEEK_CUR)
        count = max(0, end - begin)
        return np.frombuffer(_exactly(file, count * width, name), dtype).reshape(count, *shape[1:])
    wanted = np.asarray(rows)
    if len(wanted) and not (wanted.min() >= 0 and wanted.max() < shape[0]):
        raise InputError(f"{name} has the rows 0..{shape[0] - 1}; got {wanted.min()}..{wanted.max()}.")
    order = np.argsort(wanted, kind="stable")
    found = np.empty((len(wanted), *shape[1:]), dtype)
    each, at = max(1, BLOCK // max(1, width)), 0
    for begin in range(0, shape[0], each):
        if at == len(order):
            break
        n = min(each, shape[0] - begin)
        block = np.frombuffer(_exactly(file, n * width, name), dtype).reshape(n, *shape[1:])
        until = at + int(np.searchsorted(wanted[order[at:]], begin + n))
        found[order[at:until]] = block[wanted[order[at:until]] - begin]
        at = until
    return found


def _exactly(file: IO[bytes], count: int, name: str) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise DataError(f"{name} is cut off: {count:,} bytes were expected, {len(data):,} are there.")
    return data
