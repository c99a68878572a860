"""Reads a user's own table, CSV with a header or npz, without executing anything."""

from __future__ import annotations

import csv
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError, InputError

Array = NDArray[Any]

SMALL_ARCHIVE, MOST_UNPACKED = 2**30, 100
"""An npz file may hold a gigabyte, or a hundred times its own size, whichever is more."""


@dataclass(frozen=True)
class Table:
    """Features ``x`` (rows, columns), their names, and the target column ``y`` (rows,) as text, or None."""

    x: Array
    features: list[str]
    y: Array | None


def read_csv(path: Path, target: str | None, features: list[str] | None = None) -> Table:
    """Read a CSV file with a header; all columns but ``target`` must be numeric. ``features`` selects columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} could not be read as CSV (UTF-8, comma separated): {error}") from error
    if len(lines) < 2:
        raise DataError(f"{path} holds no data: a header line and at least one row are needed.")
    header, rows = lines[0], [line for line in lines[1:] if line]
    if target is not None and target not in header:
        raise InputError(f"target {target!r} is not a column of {path}; its columns are {', '.join(header)}.")
    wanted = [name for name in header if name != target] if features is None else features
    missing = [name for name in wanted if name not in header]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}, which the network was trained with.")
    places = [header.index(name) for name in wanted]
    x = np.empty((len(rows), len(wanted)))
    for i, row in enumerate(rows):
        if len(row) != len(header):
            raise DataError(f"{path}, row {i + 2}: {len(row)} fields, but the header has {len(header)}.")
        for j, place in enumerate(places):
            x[i, j] = _number(row[place], path, i + 2, wanted[j])
    y = None if target is None else np.array([row[header.index(target)] for row in rows])
    return Table(x, wanted, y)


def _number(text: str, path: Path, row: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{path}, row {row}, column {column!r}: {text!r} is not a finite number.")
    return value


def _check_archive(path: Path) -> None:
    """Reject an archive that declares far more bytes than its own size (a zip bomb), before unpacking it."""
    with zipfile.ZipFile(path) as archive:
        declared = sum(member.file_size for member in archive.infolist())
    allowed = max(SMALL_ARCHIVE, MOST_UNPACKED * path.stat().st_size)
    if declared > allowed:
        raise DataError(
            f"{path} declares {declared:,} bytes unpacked, more than the {allowed:,} that a file of its size may hold; "
            "save it with numpy.savez instead of savez_compressed."
        )


def read_npz(path: Path, needed: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of an npz file by name; those in ``needed`` must exist. Pickled arrays are rejected."""
    try:
        _check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
        raise DataError(f"{path} could not be read as npz without pickles: {error}") from error
    # numpy returns a member that is not an array as bytes
    others = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if others:
        raise DataError(
            f"{path} holds {', '.join(others)}, which is no array; it is not an npz file of numbers."
        )
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(
            f"{path} lacks the arrays {', '.join(missing)}; it holds {', '.join(arrays) or 'none'}."
        )
    return arrays
