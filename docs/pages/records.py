"""The records of ``docs/results`` (:mod:`dladmm.runs.record`), and what the pages take from them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dladmm.report.tables import markdown_table
from dladmm.reproduce import ORDER, experiment
from dladmm.runs.evidence import Mean, mean
from dladmm.runs.plan import Cell as PlannedCell
from dladmm.runs.plan import cells, plain
from dladmm.runs.record import shown_settings

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"

Cell = dict[str, Any]

SCREEN = 20
"""Rows of a table; a longer one is folded."""


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A file of results; empty where there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def cells_of(name: str, folder: Path = RESULTS, **settings: Any) -> list[Cell]:
    """The recorded cells of an experiment with these settings."""
    found = read(name, folder).get("cells", [])
    if name in ORDER:  # the paper's: cells with other settings than now wait to be measured again
        planned = {cell.name: plain(shown_settings(cell)) for cell in planned_cells(name)}
        found = [cell for cell in found if planned.get(cell["name"]) == cell["settings"]]
    return [cell for cell in found if settings.items() <= cell["settings"].items()]


@cache
def planned_cells(name: str) -> tuple[PlannedCell, ...]:
    """The cells of an experiment of the paper, as its settings are now."""
    return tuple(cells(experiment(name), "cpu"))


def values(cells: Iterable[Cell], key: str) -> list[Any]:
    """What the cells say under a key, those that say something."""
    return [cell[key] for cell in cells if cell.get(key) is not None]


def accuracy_at(cells: Sequence[Cell], k: int) -> float | None:
    """Mean test accuracy after k iterations."""
    found = [cell["test_accuracy"][str(k)] for cell in cells if str(k) in cell.get("test_accuracy", {})]
    return statistics.fmean(found) if found else None


def final(cells: Sequence[Cell]) -> Mean | None:
    """Mean and sample deviation of the last test accuracies."""
    found = mean(values(cells, "final"))
    return None if found is None else Mean(round(found.value, 5), found.deviation, found.count)


def seconds(cells: Sequence[Cell]) -> float | None:
    """Mean seconds per iteration; None where they were not measured."""
    found = values(cells, "seconds_per_iteration")
    return sum(found) / len(found) if found else None


def shown(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def setting(value: Any) -> str:
    """A setting as a page shows it."""
    if isinstance(value, dict):
        return " ".join(str(item) for item in value.values())
    if isinstance(value, list):
        return "-".join(str(item) for item in value)
    return str(value)


def command(name: str, only: str | None = None, device: str | None = None) -> str:
    """The command that makes the cells of an experiment of this library."""
    words = ["python benchmarks/experiments/run.py", name]
    words += [] if only is None else [f"--only '{only}'"]
    words += [] if device is None else [f"--device {device.partition(' ')[0]}"]
    return " ".join(words)


def section(
    title: str,
    commands: Sequence[str],
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    notes: Sequence[str] = (),
    after: Sequence[str] = (),
) -> str:
    """A section of a page: heading, the commands that make the table, notes, the table."""
    lines = [f"## {title}", "", *(f"    {line}" for line in dict.fromkeys(commands)), ""]
    for note in notes:
        lines += [note.strip(), ""] if note.strip() else []
    shown = list(rows)
    table = [*markdown_table(headings, shown), ""]
    if len(shown) > SCREEN:
        table = ["<details>", f"<summary>{len(shown)} rows</summary>", "", *table, "</details>", ""]
    lines += table
    for note in after:
        lines += [note, ""]
    return "\n".join(lines)
