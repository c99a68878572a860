"""Reads run folders, as :func:`dladmm.training.run_folder.write_run` writes them.

The files are untrusted: sizes are bounded, nothing is executed, and an invalid file raises an error with its name
before anything is written.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from dladmm.base.errors import InputError
from dladmm.report.measured import LARGEST_NUMBER, checked_standing, checked_tested

Column = list[float | None]

HISTORY, METRICS, CERTIFICATE = "history.csv", "metrics.json", "certificate.txt"
LARGEST_FILE = 64 * 2**20
PLACES = ("out", "data_dir", "config", "resume")
"""Settings that are paths on the user's machine; they are not shown, because pages are shared."""
SOURCES = ("dataset", "csv", "npz", "target")

METHOD_NAMES = {
    "dladmm": "dlADMM",
    "accelerated": "dlADMM (accelerated)",
    "accelerated-labels": "dlADMM (accelerated, labels alone)",
    "streaming": "dlADMM (streaming)",
    "cross-fitted": "dlADMM (cross-fitted)",
    "dladmm-paper": "dlADMM (paper's settings)",
    "dladmm-authors": "dlADMM (as the authors' code)",
    "gd": "GD",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adadelta-medium": "Adadelta (rate 0.02)",
    "adadelta-fast": "Adadelta (rate 0.1)",
    "adam": "Adam",
    "adam-same": "Adam (accelerated mode's objective)",
    "adam-kipf": "Adam (Kipf's recipe)",
    "adam-batches": "Adam (mini-batches)",
    "lbfgs": "L-BFGS",
    "muon": "Muon",
    "admm": "ADMM (Taylor et al.)",
}
"""Display names of the methods of ``dladmm compare`` and ``dladmm reproduce``."""


@dataclass(frozen=True)
class Run:
    """One recorded run, read from its folder.

    Attributes
    ----------
    name : str
        Path relative to the report's folder.
    settings : dict
    status, message : str
    columns : dict of list
        The columns of the history, all of one length; None is a gap (not measured, or not finite).
    certificate : dict or None
    words : tuple of str
        The certificate as lines of text.
    machine : dict
    standing : dict
        What the network does beside a constant answer and a linear model; empty if the run did not record it.
    tested : dict
        More measures of the test rows (confusion matrix, MAE, ...), as ``dladmm evaluate`` has them; may be empty.
    """

    name: str
    settings: dict[str, Any]
    status: str
    message: str
    columns: dict[str, Column]
    certificate: dict[str, Any] | None
    words: tuple[str, ...]
    machine: dict[str, Any]
    standing: dict[str, Any] = field(default_factory=dict)
    tested: dict[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The method's name in the settings; runs of ``dladmm train`` have only a mode."""
        mode = self.settings.get("mode")
        own = mode if mode in ("accelerated", "streaming", "cross-fitted") else "dladmm"
        return str(self.settings.get("method") or own)

    @property
    def method_name(self) -> str:
        """The method's display name; that of ``adam:batch=256`` is "Adam (batch 256)"."""
        method, *settings = self.method.split(":")
        shown = ", ".join(setting.replace("=", " ") for setting in settings)
        return METHOD_NAMES.get(method, method) + (f" ({shown})" if shown else "")

    @property
    def dataset(self) -> str:
        """The data set, else the user's file, else the folder: runs with the same value are compared."""
        named = (self.settings.get(key) for key in ("dataset", "csv", "npz"))
        return next((str(name) for name in named if name), self.name.rpartition("/")[2])

    @property
    def seed(self) -> Any:
        """The seed in the settings, or None."""
        return self.settings.get("seed", self.settings.get("random_state"))

    @property
    def iterations(self) -> int:
        """The last iteration."""
        return int(self.last("iteration") or 0)

    @property
    def seconds_per_iteration(self) -> float | None:
        """Mean seconds per iteration, None if not recorded."""
        measured = [
            (k, s) for k, s in zip(self.columns["iteration"], self.column("seconds"), strict=True) if k and s
        ]
        return measured[-1][1] / measured[-1][0] if measured else None

    @property
    def verdict(self) -> str | None:
        """``certified``, ``safeguarded``, or ``not`` one of them; None for a method without guarantees."""
        if self.certificate is None or self.certificate.get("baseline") or self.certificate.get("streaming"):
            return None
        if self.certificate.get("accelerated"):
            kept = all(self.certificate.get(name) for name in ("monotone", "bounded", "agrees"))
            kept = kept and self.certificate.get("iterations") != 0
            return "safeguarded" if kept else "not safeguarded"
        return "certified" if self.certificate.get("certified") else "not certified"

    def column(self, name: str) -> Column:
        """A column of the history; all gaps if the run did not record it."""
        return self.columns.get(name) or [None] * len(self.columns["iteration"])

    def last(self, name: str) -> float | None:
        """The last measured value of a column, or None."""
        return next((value for value in reversed(self.column(name)) if value is not None), None)

    def best(self, name: str) -> float | None:
        """The largest value of a column, or None."""
        return max((value for value in self.column(name) if value is not None), default=None)


@dataclass(frozen=True)
class Report:
    """The content of a page: the name of the folder and its runs, sorted by name."""

    title: str
    runs: tuple[Run, ...]


def read_report(folder: str | os.PathLike[str]) -> Report:
    """Read every run at or below ``folder``; raises InputError if there is none or one is damaged."""
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the folder of a run, or a folder of runs.")
    folders = _run_folders(root)
    if not folders:
        raise InputError(
            f"{root} holds no run: no folder in it has {HISTORY} and {METRICS} (dladmm train writes them)."
        )
    title = root.resolve().name or "runs"
    names = [title if path == root else path.relative_to(root).as_posix() for path in folders]
    return Report(title, tuple(_read_run(path, name) for path, name in zip(folders, names, strict=True)))


def _run_folders(root: Path) -> list[Path]:
    """Folders with a history, or with metrics but no run below (their missing history raises an error later).

    Hidden folders are skipped: runs that are being written, or whose process died while writing, are in one.
    """
    with_history, with_metrics = [], []
    for place, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if HISTORY in files:
            with_history.append(Path(place))
        elif METRICS in files:
            with_metrics.append(Path(place))
    lacking = [path for path in with_metrics if not any(run.is_relative_to(path) for run in with_history)]
    return sorted(with_history + lacking)


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename} could not be read: {error.strerror}") from error


def _read_run(folder: Path, name: str) -> Run:
    columns = _columns(folder / HISTORY)
    metrics = _json_object(folder / METRICS)

    def part(key: str, kind: type, default: Any) -> Any:
        value = metrics.get(key)
        value = default if value is None else value
        if not isinstance(value, kind):
            raise InputError(f"{folder / METRICS}: {key!r} is missing or not {_KINDS[kind]}.")
        return value

    certificate = part("certificate", dict, {}) or None
    words = _text(folder / CERTIFICATE).split("\n") if certificate else []
    if certificate and not any(map(str.strip, words)):
        raise InputError(f"{folder / CERTIFICATE} is empty, but {METRICS} mentions a certificate.")
    return Run(
        name=name,
        settings=_without_places(part("settings", dict, None)),
        status=part("status", str, None),
        message=part("message", str, ""),
        columns=columns,
        certificate=certificate,
        words=tuple(line.strip() for line in words if line.strip()),
        machine=part("machine", dict, {}),
        standing=checked_standing(part("standing", dict, {}), folder / METRICS),
        tested=checked_tested(part("tested", dict, {}), folder / METRICS),
    )


_KINDS: dict[type, str] = {dict: "an object", str: "a text"}


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without paths, and without the input sources that were not used."""
    unused = [key for key in SOURCES if key in settings and settings[key] is None]
    kept = {key: value for key, value in settings.items() if key not in (*PLACES, *unused)}
    for key in ("dataset", "csv", "npz"):
        if isinstance(kept.get(key), str):
            kept[key] = PureWindowsPath(kept[key]).name or kept[key]  # splits at both kinds of slash
    return kept


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise InputError(f"{path} is missing; a run folder holds {HISTORY}, {METRICS} and {CERTIFICATE}.")
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                f"{path} is larger than {LARGEST_FILE // 2**20} MB, the most a file of a run may have."
            )
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} could not be read as UTF-8 text: {error}") from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # besides bad JSON: a number of thousands of digits
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


def _columns(path: Path) -> dict[str, Column]:
    try:
        lines = list(csv.reader(io.StringIO(_text(path), newline="")))
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}") from error
    header = lines[0] if lines else []
    if "iteration" not in header or len(set(header)) < len(header):
        raise InputError(
            f"{path} needs a header of distinct names, 'iteration' among them; got {header!r:.80}."
        )
    columns: dict[str, Column] = {name: [] for name in header}
    for number, fields in enumerate(lines[1:], start=2):
        if not fields:
            continue
        if len(fields) != len(header):
            raise InputError(f"{path}, row {number}: {len(fields)} fields, but the header has {len(header)}.")
        for name, text in zip(header, fields, strict=True):
            columns[name].append(_number(text, path, number, name))
    previous = -math.inf
    for place, value in enumerate(columns["iteration"]):
        if value is None or value <= previous:
            raise InputError(
                f"{path}, data row {place + 1}: iterations must rise, got {value} after {previous}."
            )
        previous = value
    return columns


def _number(text: str, path: Path, row: int, column: str) -> float | None:
    if text.strip() in ("", "None"):
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"{path}, row {row}, column {column!r}: {text!r:.40} is not a number.") from error
    return value if abs(value) <= LARGEST_NUMBER else None  # NaN compares false
