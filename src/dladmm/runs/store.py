"""The store: a finished cell is a run folder of its own, ``cells/NAME``.

A folder of a cell's name is always a whole cell: it is written under another name and renamed. ``settings`` in its
metrics.json are everything that makes the run what it is; a folder with other settings is another experiment's cell.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError, InputError
from dladmm.training.result import Result
from dladmm.training.run_folder import describe, write_run

LATER: dict[str, tuple[str, ...]] = {"ramps": ("sign", "step", "quantised")}
"""Settings that came after cells had been made, and the activations whose runs they change."""

EXECUTION = ("compile",)
"""Settings that change how long a run takes and nothing else; they tell cells apart that are timed on a device."""

CELLS, PARTIAL = "cells", "partial"
MEASURED = "MEASURED"
"""The status of a cell that has no iterations: another program's estimator, say."""


def finished(folder: Path, wanted: dict[str, Any], hint: str = "choose another --out") -> bool:
    """Whether the cell is there. One with other settings is an error."""
    path = folder / "metrics.json"
    if not path.exists():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["settings"]
        others = differing(found, wanted)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is not the metrics of a run: {error!r}") from error
    if others:
        raise InputError(f"{folder} holds a run with other settings ({', '.join(others)}); {hint}.")
    return True


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The settings in which a finished cell is another than the wanted one."""

    def came_later(key: str) -> bool:
        """Whether the cell lacks this setting because it is older, and would be the same with it."""
        return key in LATER and key not in found and found.get("activation") not in LATER[key]

    timed = "device" in wanted
    keys = {key for key in (*found, *wanted) if timed or key not in EXECUTION}
    return sorted(key for key in keys if found.get(key) != wanted.get(key) and not came_later(key))


def save(
    result: Result, folder: Path, settings: dict[str, Any], *, curves: bool = True, **measured: Any
) -> None:
    """Store a run; ``measured`` goes into metrics.json beside the rest."""
    with _whole(folder) as partial:
        write_run(result, partial, settings, curves=curves, **measured)


def save_accuracy(accuracy: float, seconds: float, folder: Path, settings: dict[str, Any]) -> None:
    """Store what has no iterations as a run of one: its test accuracy and how long it took."""
    metrics = {
        "status": MEASURED,
        "message": "",
        "iterations": 1,
        "settings": settings,
        "last": {"val_accuracy": accuracy},
        "machine": describe("cpu"),
    }
    with _whole(folder) as partial:
        partial.mkdir(parents=True)
        history = f"iteration,seconds,val_accuracy\n1,{seconds!r},{accuracy!r}\n"
        (partial / "history.csv").write_text(history, encoding="utf-8")
        (partial / "metrics.json").write_text(
            json.dumps(metrics, indent=2, allow_nan=False), encoding="utf-8"
        )


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, renamed to ``folder`` when all is written."""
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        yield partial
        os.replace(partial, folder)
    except OSError as error:
        raise DataError(f"{folder} cannot hold the run: {error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, with the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write((text.rstrip() + "\n").encode())
    except OSError as error:
        raise DataError(f"{path} could not be written: {error}") from error
