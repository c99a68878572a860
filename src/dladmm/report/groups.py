"""Groups runs by data set, then by method and settings, so that only seeds are averaged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dladmm.report.data import Run

Point = tuple[float, float | None, float | None]
"""Iteration, seconds, value."""

REPLICATE_SETTINGS = ("seed", "random_state", "device", "threads")
"""Settings in which runs of one variant may differ."""

MOST_NAMED = 3
"""Settings listed in a label; with more, the run's name is shown instead."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in seed or device, and the label of their curves."""

    label: str
    method: str
    runs: tuple[Run, ...]

    def mean(self, column: str) -> list[Point]:
        """The mean over the runs, with a gap where not all of them were measured.

        Averaging only the runs that continue would make the mean jump when one stops.
        """
        tables = [{k: (s, v) for k, s, v in points(run, column)} for run in self.runs]
        missing = (None, None)
        iterations = sorted(set().union(*tables))
        return [
            (
                k,
                average(table.get(k, missing)[0] for table in tables),
                average(table.get(k, missing)[1] for table in tables),
            )
            for k in iterations
        ]


@dataclass(frozen=True)
class DatasetGroup:
    """All runs on one data set."""

    dataset: str
    variants: tuple[Variant, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for variant in self.variants for run in variant.runs)


def group_runs(runs: Iterable[Run]) -> list[DatasetGroup]:
    """Groups sorted by data set; in each the methods sorted by name, dlADMM's variants first."""
    ordered = sorted(runs, key=_order)
    groups = []
    for dataset, members in groupby(ordered, key=lambda run: run.dataset):
        variants: list[Variant] = []
        for method, same in groupby(members, key=lambda run: run.method_name):
            variants += _variants(method, list(same))
        groups.append(DatasetGroup(dataset, tuple(variants)))
    return groups


def _order(run: Run) -> tuple[str | bool, ...]:
    method = run.method_name
    return run.dataset.lower(), run.dataset, not method.startswith("dlADMM"), method.lower(), method


def points(run: Run, column: str) -> list[Point]:
    """Iteration, seconds and value of every row of a run's history."""
    rows = zip(run.columns["iteration"], run.column("seconds"), run.column(column), strict=True)
    return [(k, s, v) for k, s, v in rows if k is not None]


def average(values: Iterable[float | None]) -> float | None:
    """The mean, or None if a value is missing."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(numbers) else None


def shown(value: Any) -> str:
    """A setting as text."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value) or "none"
    if isinstance(value, dict):
        named = [str(value["name"])] if "name" in value else []
        return " ".join(named + [f"{key} {shown(item)}" for key, item in value.items() if key != "name"])
    return f"{value:g}" if isinstance(value, float) else str(value)


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """The names of settings that differ between runs, or that some lack, in order of appearance."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({_comparable(one, key) for one in settings}) > 1]


def _comparable(settings: dict[str, Any], key: str) -> str:
    return json.dumps(settings[key], sort_keys=True) if key in settings else ""


def _variants(method: str, runs: list[Run]) -> list[Variant]:
    """The variants of one method: runs with equal settings, labelled by the settings that differ."""
    keys = [key for key in differing([run.settings for run in runs]) if key not in REPLICATE_SETTINGS]
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault("\n".join(_comparable(run.settings, key) for key in keys), []).append(run)
    variants = []
    for same in parts.values():
        settings = same[0].settings
        named = [f"{key} {shown(settings.get(key))}" for key in keys]
        details = named if len(keys) <= MOST_NAMED else [same[0].name]
        variants.append(Variant(", ".join([method, *details]), method, tuple(same)))
    return variants
