"""What an experiment's finished cells say, by data set and method."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dladmm.compare.cells import differing
from dladmm.report import Report
from dladmm.report.data import METRICS, Run, read_report
from dladmm.reproduce.plan import Cell
from dladmm.reproduce.verdicts import Mean

PAPER_METHOD = "dladmm-paper"


@dataclass(frozen=True)
class Evidence:
    """The runs that are there, of the cells that were asked for; ``memory`` in bytes where it was weighed."""

    cells: tuple[Cell, ...]
    runs: dict[str, Run]
    memory: dict[str, float]

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
        found = []
        for run in self.of(dataset, method):
            pairs = zip(run.column("iteration"), run.column("val_accuracy"), strict=True)
            found += [v for k, v in pairs if k == epoch and v is not None]
        return mean(found)

    def seconds(self, dataset: str, method: str) -> float | None:
        """Seconds an epoch: the median of the initialisations."""
        found = [s for run in self.of(dataset, method) if (s := seconds_per_epoch(run)) is not None]
        return statistics.median(found) if found else None

    @property
    def missing(self) -> int:
        return sum(cell.name not in self.runs for cell in self.cells)


def mean(values: list[float]) -> Mean | None:
    if not values:
        return None
    return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def seconds_per_epoch(run: Run) -> float | None:
    """The median over the epochs: the first ones warm caches and kernels up, and others use the machine too."""
    seconds = [s for s in run.column("seconds") if s is not None]
    steps = [after - before for before, after in pairwise(seconds)] or seconds
    return statistics.median(steps) if steps else None


def gather(folder: Path, cells: list[Cell]) -> Evidence:
    """Read the cells that are finished; on what device they were made is theirs to say."""
    runs, memory = {}, {}
    for cell in cells:
        place = folder / "cells" / cell.name
        if not (place / METRICS).exists():
            continue
        (run,) = read_report(place).runs
        if differing(_anywhere(run.settings), _anywhere(cell.settings)):
            continue
        runs[cell.name] = run
        weighed = json.loads((place / METRICS).read_text(encoding="utf-8")).get("memory_bytes")
        if weighed is not None:
            memory[cell.name] = float(weighed)
    return Evidence(tuple(cells), runs, memory)


def _anywhere(settings: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in settings.items() if key != "device"}


def report_of(evidence: Evidence, title: str) -> Report:
    """The runs as a report has them."""
    return Report(title, tuple(evidence.runs.values()))
