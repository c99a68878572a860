"""The tables of ``docs/streaming.md`` and the README's rows of streaming mode, from the recorded runs."""

from __future__ import annotations

import json
import re
from statistics import mean
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table (\w+): made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
COMMAND = "python benchmarks/time_to_accuracy.py --device cuda"


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    tables = {
        "settings": settings_table,
        "levels": levels_table,
        "levels_cpu": lambda: levels_table("time-to-accuracy-cpu"),
        "accuracies": accuracies_table,
        "steps": steps_table,
    }
    return MARKED.sub(lambda found: found[1] + tables[found[2]]() + "\n" + found[3], page)


def settings_table() -> str:
    """What each constant is worth, one change at a time."""
    rows = [
        (
            ", ".join(f"{name} {value}" for name, value in row["change"].items()) or "none",
            f"{mean(row['mnist']):.4f}",
            f"{mean(row['fashion_mnist']):.4f}",
        )
        for row in record_of("streaming-validation")["rows"]
    ]
    return "\n".join(markdown_table(("change", "MNIST", "Fashion-MNIST"), rows))


def levels_table(record: str = "time-to-accuracy-h200") -> str:
    """Seconds to a level of test accuracy."""
    rows = [
        (
            _title(row),
            f"{100 * row['level']:g} %",
            row["name"],
            _number(row["seconds"], 3),
            _number(row["seconds_to_best"], 2),
            f"{row['seeds_that_reached_it']} of {row['seeds']}",
            _number(row["fresh"], 1),
        )
        for row in record_of(record)["levels"]
    ]
    heads = (
        "data",
        "level",
        "method",
        "seconds",
        "over the quickest other",
        "seeds that reached it",
        "seconds from the start of the process",
    )
    return "\n".join(markdown_table(heads, rows))


def accuracies_table() -> str:
    """Accuracy after all passes, and what they took."""
    rows = [
        (
            _title(r),
            r["name"],
            f"{r['mean']:.4f}",
            f"{r['least']:.4f}",
            f"{r['seconds']:.2f}",
            str(r["seeds"]),
        )
        for r in record_of("time-to-accuracy-h200")["accuracies"]
    ]
    return "\n".join(markdown_table(("data", "method", "mean", "lowest", "seconds", "seeds"), rows))


def steps_table() -> str:
    """Milliseconds of one step."""
    steps = record_of("time-to-accuracy-h200")["steps"]
    rows = [(name, f"{steps[name]:.3f}") for name in steps if not name.startswith("ratio")]
    return "\n".join(markdown_table(("step", "milliseconds"), rows))


def _title(row: dict[str, Any]) -> str:
    """The data set, and the network where it is not the one of the text."""
    network = {"mlp": "", "cnn": ", CNN", "deep": ", 8 hidden layers of 256"}[row["network"]]
    return f"{TITLES[row['data']]}{network}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def readme_rows() -> list[tuple[str, ...]]:
    """Streaming mode after ten passes beside the best opponent after as many or fewer."""
    found = []
    accuracies = record_of("time-to-accuracy-h200")["accuracies"]
    for data, title in TITLES.items():
        own = [row for row in accuracies if row["data"] == data and row["network"] == "mlp"]
        ours = next(row for row in own if row["name"] == "streaming, 10 passes")
        best = {
            name: max((row for row in own if row["name"].startswith(name)), key=lambda row: row["mean"])
            for name in ("adam", "muon")
        }
        beside = ", ".join(
            f"{name.title()} at its best {100 * row['mean']:.1f} % in {row['seconds']:.1f} s"
            for name, row in best.items()
        )
        took = f"10 passes in {ours['seconds']:.1f} s from the first step, one H200"
        what = f"{title}, 784-1000-1000-10, streaming mode, {took}"
        found.append((what, f"**{100 * ours['mean']:.1f} %**", beside, f"`{COMMAND}`"))
    return found


def record_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
    return found
