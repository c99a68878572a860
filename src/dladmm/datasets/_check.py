"""Lists which data sets are present, and verifies the checksums of their files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dladmm.datasets._bytes import sha256_of
from dladmm.datasets._checksums import File
from dladmm.datasets._locate import DataDir, find, locate, mismatch, roots
from dladmm.datasets._registry import DATASETS, Dataset, dataset

OK, MISSING, DAMAGED = "ok", "missing", "damaged"


@dataclass(frozen=True)
class FileReport:
    """The state of one file of a data set on disk."""

    dataset: str
    file: str
    state: str  #: "ok", "missing" or "damaged"
    path: str | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(name: str | None = None, *, data_dir: DataDir = None) -> list[FileReport]:
    """Recompute the checksums of the files of one data set, or of all; embedded data sets have no files.

    Parameters
    ----------
    name : str, optional
        One of `names()`; None verifies all.
    data_dir : str or path, optional
        A folder to look in before `$DLADMM_DATA` and the user's cache folder.

    Returns
    -------
    list of FileReport
    """
    folders = roots(data_dir)
    entries = DATASETS.values() if name is None else [dataset(name)]
    return [report for entry in entries for report in _verify(entry, folders)]


def _verify(entry: Dataset, folders: list[Path]) -> list[FileReport]:
    reports = [_verify_file(entry, file, folders) for file in entry.files]
    copy = _verify_file(entry, entry.copy, folders) if entry.copy else None
    if copy is None or copy.state == MISSING:
        return reports
    # the converted copy is sufficient, so other files may be missing
    return [report for report in reports if report.state != MISSING] + [copy]


def _verify_file(entry: Dataset, file: File, folders: list[Path]) -> FileReport:
    found = find(entry, file, folders)
    if found is None:
        return FileReport(entry.name, file.name, MISSING)
    problem = mismatch(found, found.path.stat().st_size, sha256_of(found.path))
    return FileReport(entry.name, file.name, DAMAGED if problem else OK, str(found.path), problem)


def overview(*, data_dir: DataDir = None) -> list[dict[str, Any]]:
    """A dictionary per data set with its description and location. Checksums are not computed."""
    folders = roots(data_dir)
    return [_row(entry, folders) for entry in DATASETS.values()]


def _row(entry: Dataset, folders: list[Path]) -> dict[str, Any]:
    found = locate(entry, folders) if not entry.embedded else None
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "bytes": entry.size,
        "files": len(entry.files),
        "licence": entry.licence,
        "statistics": entry.statistics,
        "present": entry.embedded or found is not None,
        "embedded": entry.embedded,
        "folder": str(found[0].path.parent) if found else None,
        "addresses": list(entry.addresses),
    }
