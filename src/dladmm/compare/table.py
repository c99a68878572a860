"""The table of a comparison: how good each method gets, how fast an iteration is, how soon it is good enough."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dladmm.report.data import Run
from dladmm.report.tables import print_table
from dladmm.runs.accuracy import by_iteration, first_reaching

TARGETS = {"accuracy": (0.90, 0.95, 0.97), "r2": (0.5, 0.8)}
"""Test accuracies, or R^2, whose first iteration and second are looked up, where no others are given."""

CAPTION = (
    "{measure} on the test rows{best}; k: iterations (passes with mini-batches),\n"
    "s: seconds of training, medians over seeds. {level} ...: first iteration there\n"
    "and the time until then, of the seeds that got there"
)


def measure_of(runs: Sequence[Run]) -> str:
    """What tells the methods apart: "accuracy", or "r2" where numbers are predicted."""
    return "r2" if any(run.settings.get("task") == "regression" for run in runs) else "accuracy"


def summary(runs: Sequence[Run], targets: Sequence[float] | None = None) -> dict[str, Any]:
    """One entry per method, in the order of the runs.

    ``test_accuracy`` and ``best_test_accuracy``
        mean and deviation over the seeds, of the last iterate and of each run's best; where numbers are predicted
        ``test_r2`` and ``best_test_r2``, beside ``mae`` and ``rmse`` of the network in units of the target.
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
    measure = measure_of(runs)
    levels = TARGETS[measure] if targets is None else targets
    return {
        method: _of_method([run for name, run in named if name == method], levels, measure)
        for method in methods
    }


def _of_method(runs: list[Run], targets: Sequence[float], measure: str) -> dict[str, Any]:
    column = f"val_{measure}"
    steps = [step for run in runs for step in _seconds_of_iterations(run)]
    # The history of cross-fitted copies is of rows that a copy did not see, and none of the test rows
    best = [None if run.method.startswith("cross-fitted") else run.best(column) for run in runs]
    reached = {_name(target): _reached(runs, [target] * len(runs), column) for target in targets}
    errors = {name: _mean([run.tested.get(name) for run in runs]) for name in ("mae", "rmse")}
    seconds = [last for run in runs if (last := run.last("seconds")) is not None]
    statuses = [run.status for run in runs]
    return {
        "runs": len(runs),
        f"test_{measure}": _mean([run.tested.get(measure, run.last(column)) for run in runs]),
        f"best_test_{measure}": _mean(best),
        **(errors if measure == "r2" else {}),
        "seconds_per_iteration": statistics.median(steps) if steps else None,
        "iterations": statistics.median(len(run.column("iteration")) for run in runs),
        "seconds": statistics.median(seconds) if seconds else None,
        "reached": reached | {"best": _reached(runs, best, column)},
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


def _reached(runs: list[Run], targets: Sequence[float | None], column: str) -> dict[str, Any]:
    first = [
        (k, by_iteration(run, "seconds")[k])
        for run, target in zip(runs, targets, strict=True)
        if target is not None and (k := first_reaching(run, target, column)) is not None
    ]
    return {
        "runs": len(first),
        "iteration": statistics.median([k for k, _ in first]) if first else None,
        "seconds": statistics.median([s for _, s in first]) if first else None,
    }


NO_SUCCESS = {
    "DIVERGED": "DIVERGED",
    "NON_FINITE": "NON_FINITE",
    "NO_BETTER_THAN_CONSTANT": "NO BETTER\nTHAN CONSTANT",
}
"""Statuses that stand below a method's name, in narrow words."""


def show(table: dict[str, Any], title: str) -> None:
    """The table on standard output, narrow enough for 80 columns."""
    first: dict[str, Any] = next(iter(table.values()), {"reached": []})
    measure = "r2" if "test_r2" in first else "accuracy"
    numbers = measure == "r2"
    levels = [_shown_level(name, numbers) for name in first["reached"] if name != "best"]
    rows = []
    for method, entry in table.items():
        failed = [words for status, words in NO_SUCCESS.items() if status in entry["status"]]
        seconds = entry["seconds_per_iteration"]
        rows.append(
            [
                "\n".join([*method.split(":"), *failed]),
                _shown_mean(entry[f"test_{measure}"]),
                *([_shown_mean(entry[e], ".3g") for e in ("mae", "rmse")] if numbers else []),
                *([] if numbers else [_shown_mean(entry["best_test_accuracy"])]),
                # No room beside two errors
                *([] if numbers else ["-" if seconds is None else f"{seconds:.2g}"]),
                f"k {entry['iterations']:g}"
                + ("" if entry["seconds"] is None else f"\n{_shown_time(entry['seconds'])}"),
                *(_shown_reached(found, entry["runs"]) for found in entry["reached"].values()),
            ]
        )
    name = "R^2" if numbers else "accuracy"
    headings = ["method", name, *(["MAE", "RMSE"] if numbers else ["best"])]
    headings += [*([] if numbers else ["s/iter"]), "run", *levels, "to best"]
    said = CAPTION.format(
        measure="R^2, MAE, RMSE" if numbers else "accuracy",
        best="" if numbers else " (last, best)",
        level=levels[0] if levels else "to best",
    )
    if any(method.startswith("cross-fitted") for method in table):
        said += ";\ncross-fitted: by training rows that a copy did not see"
    print_table(title, headings, rows, caption=said)


def _shown_level(name: str, numbers: bool) -> str:
    return f"≥ {float(name):g}" if numbers else f"{100 * float(name):g} %"


def _shown_mean(value: dict[str, float | None], digits: str = ".4f") -> str:
    mean, deviation = value["mean"], value["deviation"]
    if mean is None:
        return "-"
    if 100 <= abs(mean) < 1e7:  # prices, or an R^2 of a network that has gone astray
        digits = ",.0f"
    elif abs(mean) >= 100:
        digits = ".3g"
    return format(mean, digits) + ("" if deviation is None else f"\n±{format(deviation, digits)}")


def _shown_time(seconds: float) -> str:
    """Two digits in few characters."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


def _shown_reached(found: dict[str, Any], runs: int) -> str:
    if found["iteration"] is None:
        return "-"
    part = "" if found["runs"] == runs else f"\n{found['runs']} of {runs}"
    return f"k {found['iteration']:g}\n{_shown_time(found['seconds'])}{part}"
