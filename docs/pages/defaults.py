"""The tables of ``docs/defaults.md``, from the recorded runs on tables."""

from __future__ import annotations

import json
import re
from statistics import fmean
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table (\w+): made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
NAMES = {
    "ours": "dladmm, X as it is",
    "standardised": "scikit-learn's MLP behind StandardScaler",
    "raw": "scikit-learn's MLP, X as it is",
    "adam": "mini-batch Adam in torch, standardised, 50 epochs",
    "linear": "logistic or ridge regression, standardised",
    "boosting": "HistGradientBoosting",
    "forest": "random forest",
    "realmlp": "RealMLP, its tuned defaults",
}


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    made = {
        "classification": lambda: results_table("classification"),
        "regression": lambda: results_table("regression"),
        "depth": lambda: results_table("depth"),
        "large": large_table,
        "look_classification": lambda: results_table("classification", "tabular-look"),
        "look_regression": lambda: results_table("regression", "tabular-look"),
        "aside_classification": lambda: results_table("classification", "tabular-aside"),
        "aside_regression": lambda: results_table("regression", "tabular-aside"),
        "aside_tables": every_table,
        "realmlp": lambda: results_table("classification", "tabular-realmlp"),
        "realmlp_regression": lambda: results_table("regression", "tabular-realmlp"),
    }
    return MARKED.sub(lambda found: found[1] + made[found[2]]() + "\n" + found[3], page)


def results_table(part: str, record: str = "tabular-defaults") -> str:
    """Every method with its mean score, log loss and rank, and what ours is beside it."""
    rows = []
    classes = part != "regression"
    for entry in _record(record)[part]:
        own = entry["method"] == "ours"
        beside = "-" if own else f"{entry['wins']} / {entry['ties']} / {entry['losses']}"
        ratio = "-" if own else f"{entry['our_time_over_its']:.2f}"
        losses = [f"{entry['log_loss']:.4f}"] if classes else [f"{entry['median']:.4f}"]
        rows.append(
            (NAMES[entry["method"]], f"{entry['score']:.4f}", *losses, f"{entry['rank']:.2f}", beside, ratio)
        )
    second = "log loss" if classes else "median R^2"
    first = "accuracy" if classes else "mean R^2"
    heads = ("method", first, second, "mean rank", "ours won / tied / lost", "our time over its, median")
    return "\n".join(markdown_table(heads, rows))


def large_table() -> str:
    """Accuracy or R^2 of every method on every larger table, with the seconds of the fit."""
    runs = _record("tabular-large")["runs"]
    methods = list(dict.fromkeys(run["method"] for run in runs))
    rows = []
    for table in dict.fromkeys(run["table"] for run in runs):
        own = {run["method"]: run for run in runs if run["table"] == table}
        shown = (f"{own[m]['score']:.4f} ({own[m]['seconds']:.1f} s)" for m in methods)
        rows.append((f"{table}, {own['ours']['rows']:,} rows", *shown))
    return "\n".join(markdown_table(("table", *(NAMES[m] for m in methods)), rows))


def every_table(record: str = "tabular-aside") -> str:
    """Accuracy or R^2 on every table, mean of its folds, where ours gains least on the better network first."""
    runs = _record(record)["runs"]
    methods = ("ours", "standardised", "adam", "linear", "boosting", "forest")
    rows = []
    for name in dict.fromkeys(run["table"] for run in runs):
        own = [run for run in runs if run["table"] == name]
        means = [fmean(run["score"] for run in own if run["method"] == m) for m in methods]
        shown = (f"{mean:.4f}" if abs(mean) < 10 else f"{mean:.3g}" for mean in means)
        # scikit-learn's network does not scale y
        beside = max(means[1:3]) if own[0]["kind"] == "classification" else means[2]
        rows.append((own[0]["kind"], means[0] - beside, (name, f"{own[0]['rows']:,}", *shown)))
    heads = ("table", "rows learnt from", *(NAMES[m].removesuffix(", 50 epochs") for m in methods))
    return "\n".join(markdown_table(heads, [row for *_, row in sorted(rows)]))


def readme_rows() -> list[tuple[str, ...]]:
    """Ours on all tables beside scikit-learn's MLP and mini-batch Adam."""
    found = []
    report = _record("tabular-defaults")
    for part, score, form in (("classification", "accuracy", "{:.1%}"), ("regression", "R^2", "{:.3f}")):
        by_name = {entry["method"]: entry for entry in report[part]}
        ours, beside = by_name["ours"], by_name["standardised" if part == "classification" else "adam"]
        name = (
            "scikit-learn's MLP behind StandardScaler"
            if part == "classification"
            else "standardised mini-batch Adam"
        )
        counted = f"won {beside['wins']}, tied {beside['ties']}, lost {beside['losses']}"
        what = f"{ours['tables']} {part} tables, default estimators, mean {score}; {counted}"
        shown = form.format(ours["score"]).replace("%", " %")
        other = form.format(beside["score"]).replace("%", " %")
        found.append((what, f"**{shown}**", f"{name} {other}", "`python benchmarks/tabular.py`"))
    return found


def _record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
    return found
