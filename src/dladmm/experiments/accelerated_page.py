"""The section of ``docs/results.md`` on accelerated mode, from ``accelerated-*.json`` and ``tabular.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dladmm.experiments.sizes import render as sizes

METHODS = ("accelerated", "adam", "gd", "adagrad", "adadelta")
BARE = "accelerated, no penalty"
IMAGES = {
    "mnist": ("MNIST", {"20": 0.960, "50": 0.972, "100": 0.978, "200": 0.981}),
    "fashion_mnist": ("Fashion-MNIST", {"20": 0.870, "50": 0.880, "100": 0.887, "200": 0.890}),
}
GRAPHS = {
    "cora": ("Cora", 0.8130, 0.820),
    "pubmed": ("PubMed", 0.7631, 0.780),
    "citeseer": ("Citeseer", 0.6986, 0.705),
    "coauthor-cs": ("Coauthor CS", 0.9261, 0.928),
    "coauthor-physics": ("Coauthor Physics", 0.9376, 0.940),
}
"""The paper's best figure of any method, and what was to reach."""

COLUMNS = ("5", "10", "20", "50", "100", "200")


def render(folder: Path) -> list[str]:
    """The section's parts, those whose files are there."""
    reports = {}
    for name in (*IMAGES, *GRAPHS):
        path = folder / f"accelerated-{name}.json"
        if path.exists():
            reports[name] = json.loads(path.read_text(encoding="utf-8"))
        bare = folder / f"accelerated-{name}-no-penalty.json"
        if name in reports and bare.exists():
            found = json.loads(bare.read_text(encoding="utf-8"))["methods"]["accelerated"]
            reports[name]["methods"][BARE] = found
    parts = [_images(name, reports[name]) for name in IMAGES if name in reports]
    if any(name in reports for name in GRAPHS):
        parts.append(_graphs({name: reports[name] for name in GRAPHS if name in reports}))
    tabular = folder / "tabular.json"
    if tabular.exists():
        parts.append(_tabular(json.loads(tabular.read_text(encoding="utf-8"))))
    by_size = folder / "accelerated-sizes.json"
    if by_size.exists():
        parts.append(sizes(json.loads(by_size.read_text(encoding="utf-8"))))
    return parts


def _images(name: str, report: dict[str, Any]) -> str:
    title, asked = IMAGES[name]
    lines = [f"## {title} 784-1000-1000-10, accelerated mode from its default: test accuracy", ""]
    lines += [f"    {report['methods'][m]['command']}" for m in (*METHODS, BARE) if m in report["methods"]]
    lines += ["", *_note(report), "| method | seeds | " + " | ".join(f"k={k}" for k in COLUMNS)]
    lines[-1] += " | 0.95 first at k | train accuracy | rises | s / iteration |"
    lines += ["| --- " * (len(COLUMNS) + 6) + "|"]
    for method in (*METHODS, BARE):
        if method not in report["methods"]:
            continue
        found = report["methods"][method]
        runs = found["runs"]
        firsts = sorted({str(run["first_at_95"] or "-") for run in runs})
        cells = [
            method,
            str(len(runs)),
            *(_accuracy(found["mean"].get(k)) for k in COLUMNS),
            ", ".join(firsts),
        ]
        cells += [f"{min(run['train_accuracy'] for run in runs):.5f}", _rises(method, runs), _seconds(runs)]
        lines.append("| " + " | ".join(cells) + " |")
    targets = [f"{asked[k]:.3f}" if k in asked else "" for k in COLUMNS]
    lines.append("| to reach | | " + " | ".join(targets) + " | | | | |")
    return "\n".join([*lines, ""])


def _graphs(reports: dict[str, dict[str, Any]]) -> str:
    lines = [
        "## Graphs, accelerated mode from its default: test accuracy",
        "",
        *_commands(reports),
        "",
        "The paper's network (128 hidden units), mean of the initialisations; accelerated mode 200 iterations, the",
        "others 500 epochs at the paper's learning rates; the paper's best is the best of any method in its table.",
        "A dash: not run yet.",
        "",
        "| data set | " + " | ".join(METHODS) + " | inits | iterations | rises | paper's best | to reach |",
        "| --- " * (len(METHODS) + 6) + "|",
    ]
    for name, report in reports.items():
        title, paper, asked = GRAPHS[name]
        cells = [title]
        for method in METHODS:
            found = report["methods"].get(method)
            cells.append("-" if found is None else _spread(found, bold=method == "accelerated"))
        runs = report["methods"]["accelerated"]["runs"]
        counts = [run["iterations"] for run in runs]
        cells += [
            str(len(runs)),
            f"{min(counts)} to {max(counts)}",
            _rises("accelerated", runs),
            f"{paper:.4f}",
            f"{asked:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _tabular(report: dict[str, Any]) -> str:
    lines = [
        "## Small data sets: the default estimator beside scikit-learn's, five-fold cross-validation",
        "",
        f"    {report['command']}",
        "",
        "| data set | MLPClassifier of dladmm, X as it is | 100 X | X standardised | MLPClassifier of scikit-learn |",
        "| --- " * 5 + "|",
    ]
    for row in report["results"]:
        values = (row[key] for key in ("accelerated", "times_100", "standardised", "scikit_learn"))
        lines.append(f"| {row['data']} | " + " | ".join(f"{value:.4f}" for value in values) + " |")
    return "\n".join([*lines, ""])


def _commands(reports: dict[str, dict[str, Any]]) -> list[str]:
    pairs = [(name, found["command"]) for name, of in reports.items() for found in of["methods"].values()]
    return sorted({f"    {_any(name, command)}" for name, command in pairs})


def _any(name: str, command: str) -> str:
    """The command with NAME in the place of the data set, so that one line serves all."""
    return command.replace(name.replace("-", "_"), "NAME").replace(name, "NAME")


def _note(report: dict[str, Any]) -> list[str]:
    return [report["note"], ""] if "note" in report else []


def _accuracy(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _spread(found: dict[str, Any], *, bold: bool) -> str:
    mean = f"{found['final_mean']:.4f}"
    return f"{f'**{mean}**' if bold else mean} ± {found['final_deviation']:.4f}"


def _rises(method: str, runs: list[dict[str, Any]]) -> str:
    return str(sum(run["rises"] for run in runs)) if method in ("accelerated", BARE) else "-"


def _seconds(runs: list[dict[str, Any]]) -> str:
    known = [run["seconds_per_iteration"] for run in runs if run["seconds_per_iteration"] is not None]
    return f"{sum(known) / len(known):.3f}" if known else "-"
