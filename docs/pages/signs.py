"""The tables of ``docs/signs.md``, from the recorded runs of ``benchmarks/signs.py``."""

from __future__ import annotations

import json
import re
from statistics import mean
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table (\w+): made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
NORMALISED = {"none": "no", "plain": "yes, without gain and shift", "affine": "yes"}
NETWORKS = {"real": "real W", "binary": "W of +1 / -1", "levels": "4-level units, 2-bit W"}


def with_sign_tables(page: str) -> str:
    """The page with its tables made anew."""
    tables = {
        "signs": lambda: methods_table("signs-h200"),
        "signs_digits": lambda: methods_table("signs-digits-cpu"),
        "signs_settings": settings_table,
        "signs_steps": steps_table,
    }
    return MARKED.sub(lambda found: found[1] + tables[found[2]]() + "\n" + found[3], page)


def methods_table(name: str) -> str:
    """Accuracy on the test images of every row and method."""
    rows = [
        (
            line["title"],
            line["method"]
            + (f", rate {line['setting'][0]:g}, batch {line['setting'][1]}" if line["setting"] else ""),
            f"{line['mean']:.4f}",
            f"{line['lowest']:.4f}",
            f"{line['seconds']:.{1 if line['seconds'] >= 1 else 2}f}",
            f"{line['passes']}",
            f"{line['seeds']}",
        )
        for line in _record(name)["summary"]
    ]
    heads = ("network", "method", "mean", "lowest", "seconds", "passes", "seeds")
    return "\n".join(markdown_table(heads, rows))


def sign_rows() -> list[tuple[str, ...]]:
    """The README's rows: ours beside the straight-through estimator as people use it."""
    found = []
    for name, where in (("signs-h200", "one H200"), ("signs-digits-cpu", "CPU")):
        lines = {(line["row"], line["method"]): line for line in _record(name)["summary"]}
        for row in dict.fromkeys(row for row, _ in lines if row in IN_README):
            ours, theirs = lines[row, "ours"], lines[row, "straight-through"]
            smoothed = lines.get((row, "straight-through, smoothed"))
            what = f"{ours['title']}, {ours['passes']} passes, {ours['seeds']} seeds, {where}"
            best = max((theirs, smoothed or theirs), key=lambda line: line["mean"])
            ahead = ours["mean"] > best["mean"]
            beside = (
                f"straight-through estimator, batch normalisation, best of 6 settings: {_percent(theirs)}"
            )
            if smoothed:
                beside += f", with smoothed labels {'' if ahead else '**'}{_percent(smoothed)}{'' if ahead else '**'}"
                beside += f" ({smoothed['seeds']} seed{'s' * (smoothed['seeds'] > 1)})"
            found.append(
                (what, f"**{_percent(ours)}**" if ahead else _percent(ours), beside, f"`{COMMAND[name]}`")
            )
    return found


IN_README = ("real", "binary", "digits")
COMMAND = {
    "signs-h200": "python benchmarks/signs.py --device cuda --workers 5",
    "signs-digits-cpu": "python benchmarks/signs.py --rows digits",
}


def _percent(line: Any) -> str:
    return f"{100 * line['mean']:.2f} %"


def settings_table() -> str:
    """What was chosen, on held-out images."""
    rows = [
        (
            NETWORKS[line["network"]],
            NORMALISED[line["normalised"]],
            f"{line['batch']}",
            f"{line['window']:g}",
            f"{mean(line['accuracy']):.4f}",
        )
        for line in _record("signs-validation")["rows"]
    ]
    heads = ("network", "batches normalised inside", "batch", "window, in root mean squares of z", "accuracy")
    return "\n".join(markdown_table(heads, rows))


def steps_table() -> str:
    """Lengths of steps and labels, on held-out images of small parts of the training data."""
    rows = [
        (
            f"{line['data']}, {line['rows']:,} rows, {line['network']}",
            line["method"],
            f"{mean(line['accuracy']):.4f}",
            f"{len(line['accuracy'])}",
        )
        for line in _record("signs-steps")["rows"]
    ]
    return "\n".join(markdown_table(("network", "method", "accuracy", "seeds"), rows))


def _record(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
