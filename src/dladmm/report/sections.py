"""The sections of the page with text and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dladmm.report.data import Report, Run
from dladmm.report.groups import DatasetGroup, Variant, differing, shown
from dladmm.report.judged import amount
from dladmm.report.markup import Safe, TableCell, el, folded, join, table
from dladmm.report.winner import FAILED, Measure, level_name, levels_of, measure_of, ranked, seconds_to

Fact = tuple[str, str, str | None]
"""Name, value, and the CSS class of its colour."""

KINDS = {"certified": "good", "safeguarded": "good", "not certified": "warn", "not safeguarded": "bad"}
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
    """The most important numbers: of several runs first who did best."""
    if len(report.runs) == 1:
        return _single(report.runs[0], groups[0])
    cards = [card for group in groups if (card := _winner(group)) is not None]
    first = el("div", *cards, class_="winners") if cards else Safe("")
    return join([first, _counts(report, groups)])


def _winner(group: DatasetGroup) -> Safe | None:
    """A card with the method that did best on a data set, its figure, who came next, and who was there first."""
    measure = measure_of(group.runs)
    places = [] if measure is None else ranked(group, measure)
    if measure is None or not places:
        return None
    best, *others = places
    rows = best.variant.runs[0].tested.get("n_rows")
    where = f"{group.dataset}, {rows:,} test rows" if rows else group.dataset
    several = len(best.variant.runs)
    over = "" if best.deviation is None else f" ± {measure.shown(best.deviation)} over {several} runs"
    sentences = []
    if best.variant.runs[0].tested.get("mae") is not None and several == 1:
        tested = best.variant.runs[0].tested
        sentences.append(
            f"MAE {amount(tested['mae'])}, RMSE {amount(tested['rmse'])} in units of the target."
        )
    alike = [place for place in others if measure.shown(place.figure) == measure.shown(best.figure)]
    if alike:
        sentences.append(f"As good, and slower: {', '.join(place.variant.label for place in alike)}.")
    elif others:
        sentences.append(f"Next: {others[0].variant.label}, {measure.shown(others[0].figure)}.")
        spread = max(place.deviation or 0.0 for place in (best, others[0]))
        if abs(best.figure - others[0].figure) < spread:
            sentences.append("The two differ by less than the deviation over runs.")
    sentences += _soonest(group, measure)
    name = "Best" if others else "Method"
    return el(
        "div",
        el("p", f"{name} on {where}", class_="label"),
        el("p", best.variant.label, class_="name"),
        el("p", f"Test {measure.name} {measure.shown(best.figure)}{over}", class_="figure"),
        el("p", " ".join(sentences), class_="note") if sentences else Safe(""),
        class_="winner",
    )


def _soonest(group: DatasetGroup, measure: Measure) -> list[str]:
    """Which method was first at the highest level that two of them reach."""
    levels = levels_of(group, measure)
    if not levels or len(group.variants) < 2:
        return []
    times = [(s, v) for v in group.variants if (s := seconds_to(v, measure.column, levels[-1])) is not None]
    seconds, first = min(times, key=lambda pair: pair[0])
    return [f"Soonest to {level_name(levels[-1], measure)}: {first.label}, after {seconds:.2g} s."]


def _counts(report: Report, groups: Sequence[DatasetGroup]) -> Safe:
    methods = list(dict.fromkeys(variant.method for group in groups for variant in group.variants))
    verdicts = [run.verdict for run in report.runs if run.verdict is not None]
    facts: list[Fact] = [
        ("Runs", str(len(report.runs)), None),
        ("Methods" if len(methods) > 1 else "Method", _few(methods), None),
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


def _few(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names) if len(names) <= most else str(len(names))


def _worth(run: Run) -> list[Fact]:
    """The network's own figure first, then what needs no training to speak of."""
    stands = run.standing
    if stands.get("network") is None:
        return []
    kind = "good" if stands.get("warning") is None else "bad"
    measure = str(stands["measure"])
    name = measure[:1].upper() + measure[1:]
    linear = stands.get("linear")
    beside: list[Fact] = [("A constant answer", format(stands["constant"], ".4f"), None)]
    if linear is not None or stands.get("unseen", True):  # on rows that were learnt from it is not asked for
        said = "not measured" if linear is None else format(linear, ".4f")
        beside.insert(0, ("A linear model", said, None))
    return [(f"{name} on {stands['rows']}", format(stands["network"], ".4f"), kind), *beside]


def _single(run: Run, group: DatasetGroup) -> Safe:
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
        *_errors(run),
        *_time_to_a_level(group, group.variants[0]),
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


def _errors(run: Run) -> list[tuple[str, float | None, str]]:
    """Errors in units of the target, of a regression."""
    found = ((name, run.tested.get(name.lower())) for name in ("MAE", "RMSE"))
    return [(f"Test {name}", value, ",.0f" if (value or 0) >= 1000 else ".4g") for name, value in found]


def _time_to_a_level(group: DatasetGroup, variant: Variant) -> list[tuple[str, float | None, str]]:
    measure = measure_of(group.runs)
    levels = [] if measure is None else levels_of(group, measure)
    if measure is None or not levels:
        return []
    seconds = seconds_to(variant, measure.column, levels[-1])
    return [(f"Seconds to {level_name(levels[-1], measure)}", seconds, ".3g")]


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


def certificates(runs: Sequence[Run]) -> Safe:
    """The certificates as text: open for one run, folded for several."""
    if len(runs) == 1 and runs[0].words:
        return _certificate(runs[0])
    with_one = [run for run in runs if run.verdict is not None]
    if not with_one:
        return el("p", "No run here has a certificate; the methods of this report give none.")
    each_one = [
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
    shown_note = el("p", note, class_="note") if without else Safe("")
    return join([folded(len(with_one), "certificates", join(each_one)), shown_note])


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
        apart_table = table("Settings in which the runs differ", ["Run", *apart], different)
        parts.append(folded(len(runs), "runs with the settings in which they differ", apart_table))
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
