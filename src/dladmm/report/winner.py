"""Who did best on a data set, by how much, and who was there first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from dladmm.report.data import Run
from dladmm.report.groups import DatasetGroup, Variant

FAILED = ("DIVERGED", "NON_FINITE", "FAILED")

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
"""Accuracies, or R^2, whose time is looked up."""


@dataclass(frozen=True)
class Measure:
    """What methods are judged by: a column of the history, and the same figure of the finished network if recorded."""

    column: str
    tested: str
    name: str
    rising: bool = True

    def final(self, run: Run) -> float | None:
        """Of the network that was handed out; the last of the history where only that is known."""
        found: float | None = run.tested.get(self.tested)
        return run.last(self.column) if found is None else found

    def shown(self, value: float | None) -> str:
        """A figure as text."""
        return "–" if value is None else format(value, ".4f" if self.rising else ".4g")


MEASURES = (
    Measure("val_accuracy", "accuracy", "accuracy"),
    Measure("val_r2", "r2", "R^2"),
    Measure("val_loss", "", "loss", rising=False),
)


def measure_of(runs: Iterable[Run]) -> Measure | None:
    """Accuracy, else R^2, else loss: the first that a run has measured."""
    known = list(runs)
    return next((m for m in MEASURES if any(m.final(run) is not None for run in known)), None)


@dataclass(frozen=True)
class Place:
    """A variant with its mean final figure, the deviation over its runs (None for one), and mean seconds of a run."""

    variant: Variant
    figure: float
    deviation: float | None
    seconds: float | None


def ranked(group: DatasetGroup, measure: Measure) -> list[Place]:
    """The variants, best first; those with a failed run or without a figure are left out."""
    places = []
    for variant in group.variants:
        finals = [measure.final(run) for run in variant.runs if run.status not in FAILED]
        figures = [value for value in finals if value is not None]
        if len(figures) < len(variant.runs):
            continue
        deviation = statistics.stdev(figures) if len(figures) > 1 else None
        places.append(Place(variant, math.fsum(figures) / len(figures), deviation, seconds_of(variant)))
    sign = -1 if measure.rising else 1

    def order(place: Place) -> tuple[float, float]:
        as_shown = float(measure.shown(place.figure))  # the quicker of two that read the same comes first
        return sign * as_shown, math.inf if place.seconds is None else place.seconds

    return sorted(places, key=order)


def seconds_of(variant: Variant) -> float | None:
    """Mean seconds of whole runs; None if a run did not record them."""
    seconds = [run.last("seconds") for run in variant.runs]
    known = [value for value in seconds if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(seconds) else None


def seconds_to(variant: Variant, column: str, level: float) -> float | None:
    """Median over the runs of the seconds until a column first was not below the level; None unless all got there."""
    found = [_first(run, column, level) for run in variant.runs]
    known = [value for value in found if value is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


def _first(run: Run, column: str, level: float) -> float | None:
    if run.status in FAILED:
        return None
    pairs = zip(run.column("seconds"), run.column(column), strict=True)
    return next((s for s, value in pairs if value is not None and value >= level), None)


def levels_of(group: DatasetGroup, measure: Measure) -> list[float]:
    """At most two levels worth telling: the highest that half of the variants reach, and that two of them do."""
    if not measure.rising:
        return []
    reached = {
        level: sum(seconds_to(variant, measure.column, level) is not None for variant in group.variants)
        for level in LEVELS
    }
    n = len(group.variants)
    found = [
        max((level for level, count in reached.items() if count >= enough), default=None)
        for enough in ((n + 1) // 2, min(2, n))
    ]
    return sorted({level for level in found if level is not None})


def level_name(level: float, measure: Measure) -> str:
    """95 %, or R^2 0.95."""
    return f"{100 * level:g} %" if measure.name == "accuracy" else f"{measure.name} {level:g}"
