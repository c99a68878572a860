"""The table of a comparison: how good each method gets, how fast an iteration is, how soon it is good enough."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dladmm.report.data import Run
from dladmm.report.tables import print_table
from dladmm.runs.accuracy import by_iteration, first_reaching

TARGETS = (0.90, 0.95, 0.97)
"""Test accuracies whose first iteration and second are looked up, where no others are given."""

CAPTION = (
    "k: iterations (passes with mini-batches), s: seconds of training; medians over seeds.\n"
    "90 % ...: first iteration there and seconds until then, of the seeds that got there"
)


def summary(runs: Sequence[Run], targets: Sequence[float] = TARGETS) -> dict[str, Any]:
    """One entry per method, in the order of the runs.

    ``test_accuracy`` and ``best_test_accuracy``
        mean and deviation over the seeds, of the last iterate and of each run's best.
    ``seconds_per_iteration``
        median over all iterations of all seeds; measuring is not part of it.
    ``iterations`` and ``seconds``
        of whole runs, medians over the seeds.
    ``reached``
        by target ("0.90", ...) and for each run's own best ("best"): how many ``runs`` reached it, and the medians over
        those of the first ``iteration`` and of the ``seconds`` of training until then; None where no run did.
    ``status``
        how often a run ended how.
    """
    named = [(str(run.settings["method"]), run) for run in runs]
    methods = dict.fromkeys(name for name, _ in named)
    return {method: _of_method([run for name, run in named if name == method], targets) for method in methods}


def _of_method(runs: list[Run], targets: Sequence[float]) -> dict[str, Any]:
    steps = [step for run in runs for step in _seconds_of_iterations(run)]
    best = [run.best("val_accuracy") for run in runs]
    reached = {_name(target): _reached(runs, [target] * len(runs)) for target in targets}
    seconds = [last for run in runs if (last := run.last("seconds")) is not None]
    statuses = [run.status for run in runs]
    return {
        "runs": len(runs),
        "test_accuracy": _mean([run.last("val_accuracy") for run in runs]),
        "best_test_accuracy": _mean(best),
        "seconds_per_iteration": statistics.median(steps) if steps else None,
        "iterations": statistics.median(len(run.column("iteration")) for run in runs),
        "seconds": statistics.median(seconds) if seconds else None,
        "reached": reached | {"best": _reached(runs, best)},
        "status": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
    }


def _name(target: float) -> str:
    """0.90, 0.983: two digits at least."""
    return max(f"{target:.2f}", f"{target:g}", key=len)


def _seconds_of_iterations(run: Run) -> list[float]:
    seconds = [0.0, *(s for s in run.column("seconds") if s is not None)]
    return [after - before for before, after in pairwise(seconds)]


def _mean(values: list[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known) if known else None, "deviation": deviation}


def _reached(runs: list[Run], targets: Sequence[float | None]) -> dict[str, Any]:
    first = [
        (k, by_iteration(run, "seconds")[k])
        for run, target in zip(runs, targets, strict=True)
        if target is not None and (k := first_reaching(run, target)) is not None
    ]
    return {
        "runs": len(first),
        "iteration": statistics.median([k for k, _ in first]) if first else None,
        "seconds": statistics.median([s for _, s in first]) if first else None,
    }


def show(table: dict[str, Any], title: str) -> None:
    """The table on standard output, narrow enough for 80 columns."""
    names = next(iter(table.values()))["reached"] if table else []
    targets = [f"{100 * float(name):g} %" for name in names if name != "best"]
    rows = []
    for method, entry in table.items():
        failed = [status for status in ("DIVERGED", "NON_FINITE") if status in entry["status"]]
        seconds = entry["seconds_per_iteration"]
        rows.append(
            [
                "\n".join([*method.split(":"), *failed]),
                _shown_mean(entry["test_accuracy"]),
                _shown_mean(entry["best_test_accuracy"]),
                "-" if seconds is None else f"{seconds:.2g}",
                f"k {entry['iterations']:g}"
                + ("" if entry["seconds"] is None else f"\n{entry['seconds']:.2g} s"),
                *(_shown_reached(found, entry["runs"]) for found in entry["reached"].values()),
            ]
        )
    headings = ["method", "accuracy", "best", "s/iter", "run", *targets, "to best"]
    print_table(title, headings, rows, caption=CAPTION)


def _shown_mean(value: dict[str, float | None]) -> str:
    if value["mean"] is None:
        return "-"
    return f"{value['mean']:.4f}" + ("" if value["deviation"] is None else f"\n±{value['deviation']:.4f}")


def _shown_reached(found: dict[str, Any], runs: int) -> str:
    if found["iteration"] is None:
        return "-"
    part = "" if found["runs"] == runs else f"\n{found['runs']} of {runs}"
    return f"k {found['iteration']:g}\n{found['seconds']:.2g} s{part}"
