"""The sections of the page with text and tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from dladmm.report.data import Report, Run
from dladmm.report.groups import DatasetGroup, average, differing, shown
from dladmm.report.markup import Safe, TableCell, el, join, number, table

Fact = tuple[str, str, str | None]
"""Name, value, and the CSS class of its colour."""

KINDS = {"certified": "good", "safeguarded": "good", "not certified": "warn", "not safeguarded": "bad"}
FAILED = ("DIVERGED", "NON_FINITE", "FAILED")
BEST = "Best is over all iterations, picked by its test rows: read it as an upper bound."

MACHINE_WORDS = {
    "dladmm": "dladmm",
    "python": "Python",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "system": "System",
    "cpu": "Processor",
    "cpu_count": "Processor cores",
    "threads": "Threads used",
    "device": "Device of the run",
}


def overview(report: Report, groups: Sequence[DatasetGroup]) -> Safe:
    """The most important numbers."""
    if len(report.runs) == 1:
        return _single(report.runs[0])
    methods = list(dict.fromkeys(variant.method for group in groups for variant in group.variants))
    verdicts = [run.verdict for run in report.runs if run.verdict is not None]
    facts: list[Fact] = [
        ("Runs", str(len(report.runs)), None),
        ("Methods" if len(methods) > 1 else "Method", ", ".join(methods), None),
        ("Data sets" if len(groups) > 1 else "Data set", ", ".join(group.dataset for group in groups), None),
    ]
    if verdicts:
        kept = sum(KINDS[verdict] == "good" for verdict in verdicts)
        kind = "good" if kept == len(verdicts) else "warn"
        facts.append(("Certified or safeguarded", f"{kept} of {len(verdicts)}", kind))
    failed = sum(run.status in FAILED for run in report.runs)
    if failed:
        facts.append(("Failed runs", str(failed), "bad"))
    return _facts(facts)


def _worth(run: Run) -> list[Fact]:
    """The network's own figure first, then what needs no training to speak of."""
    stands = run.standing
    if not stands:
        return []
    kind = "good" if stands.get("warning") is None else "bad"
    measure = str(stands["measure"])
    name = measure[:1].upper() + measure[1:]
    linear = stands.get("linear")
    return [
        (f"{name} on {stands['rows']}", format(stands["network"], ".4f"), kind),
        ("A linear model", "not measured" if linear is None else format(linear, ".4f"), None),
        ("A constant answer", format(stands["constant"], ".4f"), None),
    ]


def _single(run: Run) -> Safe:
    held = "Unseen" if run.method == "cross-fitted" else "Test"
    facts: list[Fact] = [
        *_worth(run),
        ("Method", run.method_name, None),
        ("Data set", run.dataset, None),
        ("Iterations", str(run.iterations), None),
    ]
    for label, value, digits in (
        (f"{held} accuracy", run.last("val_accuracy"), ".4f"),
        (f"Best {held.lower()} accuracy", run.best("val_accuracy"), ".4f"),
        ("Training accuracy", run.last("train_accuracy"), ".4f"),
        (f"{held} R^2", run.last("val_r2"), ".4f"),
        ("Training R^2", run.last("train_r2"), ".4f"),
        (f"{held} loss", None if run.best("val_accuracy") is not None else run.last("val_loss"), ".4g"),
        ("Seconds per iteration", run.seconds_per_iteration, ".3g"),
    ):
        if value is not None:
            facts.append((label, format(value, digits), None))
    if run.verdict is not None:
        facts.append(("Certificate of the optimisation", run.verdict, KINDS[run.verdict]))
    note = [run.message, BEST] if run.best("val_accuracy") is not None else [run.message]
    warned = run.standing.get("warning")
    warning = Safe("") if warned is None else el("p", warned, class_="verdict bad")
    return join([warning, _facts(facts), el("p", " ".join(filter(None, note)), class_="note")])


def _facts(facts: Sequence[Fact]) -> Safe:
    long = 16  # longer values are set in a smaller font
    pairs = (
        el(
            "div",
            el("dt", name),
            el(
                "dd",
                value,
                class_=" ".join(filter(None, (kind, "long" if len(value) > long else ""))) or None,
            ),
        )
        for name, value, kind in facts
    )
    return el("dl", *pairs, class_="facts")


def runs_table(runs: Sequence[Run]) -> Safe:
    """A sortable table of all runs."""
    accuracy = any(run.last("val_accuracy") is not None for run in runs)
    tested = (
        ["Final test accuracy", "Best test accuracy"] if accuracy else ["Final test R^2", "Final test loss"]
    )
    several = len({run.dataset for run in runs}) > 1
    headings = ["Run", *(["Data set"] if several else []), "Method", "Seed", "Iterations", *tested]
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
                *([TableCell(run.dataset)] if several else []),
                TableCell(run.method_name),
                TableCell("–" if seed is None else shown(seed), seed if numeric else None, numeric=numeric),
                number(run.iterations, "d"),
                *results,
                number(run.seconds_per_iteration, ".3g"),
                TableCell(run.status.replace("_", " ").lower(), kind="bad" if run.status in FAILED else None),
                TableCell(run.verdict or "–", kind=_kind(run)),
            ]
        )
    note = el("p", BEST, class_="note") if accuracy else Safe("")
    return join([table("All runs; the headings sort", headings, rows), note])


def variants_table(group: DatasetGroup) -> Safe:
    """A table with mean and standard deviation over the runs of each variant."""
    accuracy = any(run.last("val_accuracy") is not None for run in group.runs)
    column, name = ("val_accuracy", "test accuracy") if accuracy else ("val_loss", "test loss")
    if any(run.last("val_r2") is not None for run in group.runs):
        column, name = "val_r2", "test R^2"
    headings = ["Method", "Runs", f"Final {name}", "Standard deviation", "Seconds per iteration"]
    rows = []
    for variant in group.variants:
        finals = [value for run in variant.runs if (value := run.last(column)) is not None]
        times = [value for run in variant.runs if (value := run.seconds_per_iteration) is not None]
        rows.append(
            [
                TableCell(variant.label),
                number(len(variant.runs), "d"),
                number(average(finals)),
                number(statistics.stdev(finals) if len(finals) > 1 else None),
                number(average(times), ".3g"),
            ]
        )
    return table(f"Methods on {group.dataset}: means over their runs", headings, rows)


def certificates(runs: Sequence[Run]) -> Safe:
    """The certificates as text: open for one run, folded for several."""
    if len(runs) == 1 and runs[0].words:
        return _certificate(runs[0])
    with_one = [run for run in runs if run.verdict is not None]
    if not with_one:
        return el("p", "No run here has a certificate; the methods of this report give none.")
    folded = [
        el(
            "details",
            el(
                "summary",
                el("span", run.verdict or "", class_=f"badge {_kind(run)}"),
                f" {run.name}",
            ),
            _certificate(run),
        )
        for run in with_one
    ]
    without = len(runs) - len(with_one)
    note = f"{without} of {len(runs)} runs are of methods that give no certificate."
    return join([*folded, el("p", note, class_="note") if without else Safe("")])


def _certificate(run: Run) -> Safe:
    head, *rest = run.words
    verdict = el("p", "About the optimisation: " + head, class_=f"verdict {_kind(run)}")
    return el("div", verdict, el("ul", *(el("li", line) for line in rest)), class_="certificate")


def _kind(run: Run) -> str:
    """The CSS class of a verdict; empty for a method without guarantees."""
    return KINDS.get(run.verdict or "", "")


def settings_tables(runs: Sequence[Run]) -> Safe:
    """Tables of the settings that all runs share and of those that differ."""
    settings = [run.settings for run in runs]
    apart = differing(settings)
    common = [key for key in settings[0] if key not in apart]
    caption = "Settings of all runs" if len(runs) > 1 else "Settings of the run"
    rows = [[TableCell(key), TableCell(shown(settings[0][key]))] for key in common]
    parts = [table(caption, ["Setting", "Value"], rows, sortable=False)] if rows else []
    if apart:
        different = [
            [
                TableCell(run.name),
                *(TableCell(shown(run.settings[key]) if key in run.settings else "–") for key in apart),
            ]
            for run in runs
        ]
        parts.append(table("Settings in which the runs differ", ["Run", *apart], different))
    return join(parts) if parts else el("p", "The runs recorded no settings.")


def machines(runs: Sequence[Run]) -> Safe:
    """A table for each distinct machine, with the runs made on it."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(json.dumps(run.machine, sort_keys=True), []).append(run)
    parts = []
    for same in kinds.values():
        machine = same[0].machine
        whose = "" if len(kinds) == 1 else f" of {_named(same)}"
        if not machine:
            parts.append(el("p", f"The machine{whose} was not recorded."))
            continue
        rows = [
            [TableCell(MACHINE_WORDS.get(key, key)), TableCell(shown(value))]
            for key, value in machine.items()
        ]
        parts.append(table(f"The machine{whose}", ["What", "Value"], rows, sortable=False))
    return join(parts)


def _named(runs: Sequence[Run], most: int = 6) -> str:
    names = ", ".join(run.name for run in runs[:most])
    rest = f" and {len(runs) - most} more" if len(runs) > most else ""
    return f"{len(runs)} run{'s' * (len(runs) > 1)}: {names}{rest}"
