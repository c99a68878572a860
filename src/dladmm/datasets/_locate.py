"""Finds the files of a data set and reads them with their checksums.

Folders, in this order: an explicit `data_dir`, `$DLADMM_DATA`, the user's cache folder. In each, a file may be in the
data set's own folder (`mnist/`), in the folder other libraries use (`MNIST/raw/`), or directly in the folder.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dladmm.base.errors import DataError, InputError
from dladmm.datasets._bytes import read_bounded, sha256_of
from dladmm.datasets._checksums import File
from dladmm.datasets._registry import DATASETS, Dataset

ENVIRONMENT = "DLADMM_DATA"
DataDir = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Found:
    """A file on disk, with its expected size and sha256."""

    file: File
    path: Path
    size: int
    sha256: str


def cache_folder() -> Path:
    """The user's cache folder for this library on this platform."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "dladmm" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/dladmm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dladmm"


def roots(data_dir: DataDir = None, *, must_exist: bool = True) -> list[Path]:
    """The folders to search, in order; downloads go to the first."""
    folders: list[Path] = []
    if data_dir is not None:
        if not isinstance(data_dir, (str, os.PathLike)) or not os.fspath(data_dir):
            raise InputError(f"data_dir is {data_dir!r}; it must be the path of a folder, or None")
        explicit = Path(data_dir).expanduser()
        if must_exist and not explicit.is_dir():
            raise InputError(
                f"data_dir is {str(explicit)!r}, which is not a folder; create it, or leave data_dir out"
            )
        folders.append(explicit)
    if os.environ.get(ENVIRONMENT):
        folders.append(Path(os.environ[ENVIRONMENT]).expanduser())
    folders.append(cache_folder())
    return folders


def locate(dataset: Dataset, folders: list[Path]) -> list[Found] | None:
    """All files of a data set, or its converted copy, from as few folders as possible; None if incomplete."""
    for count in range(1, len(folders) + 1):
        near = folders[:count]
        found = [find(dataset, file, near) for file in dataset.files]
        if all(found):
            return [item for item in found if item]
        copy = find(dataset, dataset.copy, near) if dataset.copy else None
        if copy:
            return [copy]
    return None


def find(dataset: Dataset, file: File, folders: list[Path]) -> Found | None:
    """The first folder that has the file, packed or unpacked; None if none has."""
    for root in folders:
        for folder in (*dataset.folders, ""):
            for found in _forms(file, root / folder):
                if found.path.is_file() and not (folder == "" and _belongs_elsewhere(dataset, found)):
                    return found
    return None


def _forms(file: File, folder: Path) -> Iterator[Found]:
    yield Found(file, folder / file.name, file.size, file.sha256)
    if file.unpacked is not None:
        yield Found(file, folder / file.unpacked_name, *file.unpacked)


def _belongs_elsewhere(dataset: Dataset, found: Found) -> bool:
    """Whether a file outside its data set's folder is another data set's: MNIST and Fashion-MNIST share file names."""
    others = {
        sha
        for other in DATASETS.values()
        for file in other.files
        if other.name != dataset.name and file.name == found.file.name
        for sha in (file.sha256, file.unpacked[1] if file.unpacked else "")
    }
    return bool(others) and sha256_of(found.path) in others


def missing(dataset: Dataset, folders: list[Path]) -> list[str]:
    """The names of the files that are in none of the folders."""
    return [file.name for file in dataset.files if find(dataset, file, folders) is None]


def read(dataset: Dataset, folders: list[Path], *, verify: bool) -> dict[str, bytes]:
    """The contents of every file, by published name without `.gz`; or of the converted copy alone."""
    found = locate(dataset, folders)
    if found is None:
        raise DataError(_missing_message(dataset, folders))
    return {item.file.unpacked_name: _read_one(item, verify=verify) for item in found}


def _read_one(found: Found, *, verify: bool) -> bytes:
    data = read_bounded(found.path, found.size if verify else 2 * found.size)
    if verify:
        problem = mismatch(found, len(data), hashlib.sha256(data).hexdigest())
        if problem:
            raise DataError(
                f"{found.path}: {problem}; delete it and fetch it again, or load with verify=False"
            )
    return data


def mismatch(found: Found, size: int, sha256: str) -> str:
    """A description of how size or checksum differ from the published file's, or an empty string."""
    if size != found.size:
        return f"it has {size:,} bytes where the published file has {found.size:,}"
    if sha256 != found.sha256:
        return f"its sha256 is {sha256[:16]}... where the published file has {found.sha256[:16]}..."
    return ""


def _missing_message(dataset: Dataset, folders: list[Path]) -> str:
    absent = missing(dataset, folders)
    target = folders[0] / dataset.folders[0]
    return (
        f"{dataset.name}: {len(absent)} of {len(dataset.files)} files missing: {', '.join(absent)}; "
        f"looked in {', '.join(str(folder) for folder in folders)}.\n"
        f"Put them into {target}, or fetch them from {' or '.join(dataset.addresses)} with "
        f"`dladmm datasets fetch {dataset.name}` or load({dataset.name!r}, download=True)."
    )
