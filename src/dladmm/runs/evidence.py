"""What an experiment's finished cells say, by data set and method."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dladmm.report import Report
from dladmm.report.data import METRICS, Run, read_report
from dladmm.runs.accuracy import by_iteration
from dladmm.runs.plan import Cell
from dladmm.runs.store import CELLS, differing

PAPER_METHOD = "dladmm-paper"


@dataclass(frozen=True)
class Mean:
    """A mean with the sample deviation of what it is the mean of, and of how many."""

    value: float
    deviation: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.deviation:.4f}" if self.count > 1 else f"{self.value:.4f}"


@dataclass(frozen=True)
class Evidence:
    """The runs that are there, of the cells that were asked for, by name.

    ``memory`` is in bytes, where it was measured; ``metrics`` is what else their metrics.json say.
    """

    cells: tuple[Cell, ...]
    runs: dict[str, Run]
    memory: dict[str, float]
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, dataset: str, method: str | None = None) -> list[Run]:
        """Finished runs on a data set, of one method or of all, in the order of the cells."""
        return [
            self.runs[cell.name]
            for cell in self.cells
            if cell.name in self.runs
            and cell.dataset == dataset
            and method in (None, cell.settings["method"])
        ]

    def run(self, dataset: str, method: str = PAPER_METHOD) -> Run | None:
        """The first initialisation: the one that is drawn as a curve."""
        return next(iter(self.of(dataset, method)), None)

    def accuracy(self, dataset: str, method: str) -> Mean | None:
        """Test accuracy after the last epoch, over the initialisations."""
        values = [v for run in self.of(dataset, method) if (v := run.last("val_accuracy")) is not None]
        return mean(values)

    def highest(self, dataset: str, method: str) -> Mean | None:
        """The highest test accuracy on the way, over the initialisations: picked by the test rows themselves."""
        return mean([v for run in self.of(dataset, method) if (v := run.best("val_accuracy")) is not None])

    def accuracy_at(self, dataset: str, method: str, epoch: int) -> Mean | None:
        """Test accuracy after an epoch, of the initialisations that were measured there."""
        measured = [by_iteration(run) for run in self.of(dataset, method)]
        return mean([values[epoch] for values in measured if epoch in values])

    def seconds(self, dataset: str, method: str) -> float | None:
        """Seconds per epoch: the median of the initialisations."""
        found = [s for run in self.of(dataset, method) if (s := seconds_per_epoch(run)) is not None]
        return statistics.median(found) if found else None

    @property
    def missing(self) -> int:
        return sum(cell.name not in self.runs for cell in self.cells)


def mean(values: Sequence[float]) -> Mean | None:
    """The mean of some values; None where there are none."""
    if not values:
        return None
    return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def seconds_per_epoch(run: Run) -> float | None:
    """The median over the epochs: the first ones warm caches and kernels up, and others use the machine too."""
    seconds = [s for s in run.column("seconds") if s is not None]
    steps = [after - before for before, after in pairwise(seconds)] or seconds
    return statistics.median(steps) if steps else None


def gather(folder: Path, cells: list[Cell]) -> Evidence:
    """Read the cells that are finished, on whatever device they were made."""
    runs, memory, measured = {}, {}, {}
    for cell in cells:
        place = folder / CELLS / cell.name
        if not (place / METRICS).exists():
            continue
        (run,) = read_report(place).runs
        if differing(_anywhere(run.settings), _anywhere(cell.settings)):
            continue
        runs[cell.name] = run
        metrics = measured[cell.name] = json.loads((place / METRICS).read_text(encoding="utf-8"))
        if metrics.get("memory_bytes") is not None:
            memory[cell.name] = float(metrics["memory_bytes"])
    return Evidence(tuple(cells), runs, memory, measured)


def _anywhere(settings: dict[str, object]) -> dict[str, object]:
    return {key: "any" if key == "device" else value for key, value in settings.items()}


def report_of(evidence: Evidence, title: str) -> Report:
    """The runs as a report has them."""
    return Report(title, tuple(evidence.runs.values()))
