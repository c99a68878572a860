"""The tables of figures: all runs, and the methods of a data set. The figure that matters stands beside the name."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dladmm.report.data import Run
from dladmm.report.groups import DatasetGroup, average, shown
from dladmm.report.judged import amount
from dladmm.report.markup import Safe, TableCell, el, folded, join, number, table
from dladmm.report.sections import BEST, KINDS
from dladmm.report.winner import FAILED, level_name, levels_of, measure_of, ranked, seconds_of, seconds_to

BAD = (*FAILED, "NO_BETTER_THAN_CONSTANT")
"""Statuses of runs whose network is of no use."""


def runs_table(runs: Sequence[Run]) -> Safe:
    """A sortable table of all runs, folded where they are many."""
    accuracy = any(run.last("val_accuracy") is not None for run in runs)
    tested = (
        ["Final test accuracy", "Best test accuracy"] if accuracy else ["Final test R^2", "Final test loss"]
    )
    several = len({run.dataset for run in runs}) > 1
    headings = ["Run", *tested, *(["Data set"] if several else []), "Method", "Seed", "Iterations"]
    headings += ["Seconds per iteration", "Status", "Certificate"]
    rows = []
    for run in runs:
        seed = run.seed
        numeric = type(seed) is int and abs(seed) < 2**64
        results = (
            [number(run.last("val_accuracy")), number(run.best("val_accuracy"))]
            if accuracy
            else [number(run.last("val_r2")), number(run.last("val_loss"), ".4g")]
        )
        rows.append(
            [
                TableCell(run.name),
                *results,
                *([TableCell(run.dataset)] if several else []),
                TableCell(run.method_name),
                TableCell("–" if seed is None else shown(seed), seed if numeric else None, numeric=numeric),
                number(run.iterations, "d"),
                number(run.seconds_per_iteration, ".3g"),
                TableCell(run.status.replace("_", " ").lower(), kind="bad" if run.status in BAD else None),
                TableCell(run.verdict or "–", kind=KINDS.get(run.verdict or "", "")),
            ]
        )
    note = el("p", BEST, class_="note") if accuracy else Safe("")
    return folded(len(runs), "runs", join([table("All runs; the headings sort", headings, rows), note]))


def variants_table(group: DatasetGroup) -> Safe:
    """A table with the mean over the runs of each variant, how much they differ, and when they were good enough."""
    measure = measure_of(group.runs)
    levels = [] if measure is None else levels_of(group, measure)
    repeated = any(len(variant.runs) > 1 for variant in group.variants)
    errors = [name for name in ("MAE", "RMSE") if any(name.lower() in run.tested for run in group.runs)]
    headings = ["Method", *([] if measure is None else [f"Final test {measure.name}"])]
    headings += [*(["Standard deviation"] if repeated else []), *errors]
    headings += [f"Seconds to {level_name(level, measure)}" for level in levels if measure is not None]
    headings += ["Seconds of training", "Seconds per iteration", "Runs"]
    rows = []
    best_first = [] if measure is None else [place.variant for place in ranked(group, measure)]
    for variant in [*best_first, *(v for v in group.variants if v not in best_first)]:
        row = [TableCell(variant.label)]
        if measure is not None:
            finals = [value for run in variant.runs if (value := measure.final(run)) is not None]
            row.append(number(average(finals), ".4f" if measure.rising else ".4g"))
            if repeated:
                row.append(number(statistics.stdev(finals) if len(finals) > 1 else None))
            for name in errors:
                found = average(run.tested.get(name.lower()) for run in variant.runs)
                row.append(TableCell(amount(found), found, numeric=True))
            row += [number(seconds_to(variant, measure.column, level), ".3g") for level in levels]
        times = [value for run in variant.runs if (value := run.seconds_per_iteration) is not None]
        row += [number(seconds_of(variant), ".3g"), number(average(times), ".3g")]
        rows.append([*row, number(len(variant.runs), "d")])
    return table(f"Methods on {group.dataset}: means over their runs", headings, rows)
