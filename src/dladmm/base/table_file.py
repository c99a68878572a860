"""Reads a user's own npz file without executing anything; checks what a file is before it is opened."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError

Array = NDArray[Any]

SMALL_ARCHIVE, MOST_UNPACKED = 2**30, 100
"""An npz or gzip file may hold a gigabyte, or a hundred times its own size, whichever is more."""


def regular_file(path: Path) -> os.stat_result:
    """The file's facts; raises DataError for what is no file with an end: folders, pipes, devices."""
    try:
        facts = os.stat(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} could not be read: {reason}.") from error
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(f"{path} is a folder, a pipe or a device, not a file; save it to a file first.")
    return facts


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
        regular_file(path)
        _check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
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
