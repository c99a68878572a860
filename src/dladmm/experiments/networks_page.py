"""The section of ``docs/results.md`` about networks that are no MLP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHOWN = ("10", "20", "50", "100")
NAMES = {
    "cnn": "CNN (two convolutions, one hidden linear layer)",
    "elman": "Elman network, row by row",
    "gru": "GRU, row by row",
    "sign": "MLP of 400 signs; Adam trains the straight-through estimator",
}


def render(folder: Path) -> list[str]:
    """One table of all ``networks-*.json``, none where there are no such files."""
    files = sorted(folder.glob("networks-*.json"))
    if not files:
        return []
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    commands = [method["command"] for report in reports for method in report["methods"].values()]
    lines = ["## Networks that are no MLP: test accuracy", ""]
    lines += [*(f"    {command}" for command in commands), ""]
    lines += [
        "Two CPU cores shared with other work, so the times say little; mean of the seeds.",
        "",
        "| network | data | images | method | seeds | "
        + " | ".join(f"k={k}" for k in SHOWN)
        + " | rises | s / iteration |",
        "| --- " * (7 + len(SHOWN)) + "|",
    ]
    lines += [_row(report, name) for report in reports for name in report["methods"]]
    return ["\n".join([*lines, ""])]


def _row(report: dict[str, Any], name: str) -> str:
    method = report["methods"][name]
    runs = method["runs"]
    seconds = sum(run["seconds_per_iteration"] for run in runs) / len(runs)
    shown = [f"{method['mean'][k]:.4f}" if k in method["mean"] else "-" for k in SHOWN]
    rises = "-" if name == "adam" else str(sum(run["rises"] for run in runs))
    ours = "dlADMM" if report["network"] == "sign" and name == "accelerated" else name
    cells = [NAMES[report["network"]], report["data"], report["samples"], ours, len(runs), *shown, rises]
    return "| " + " | ".join([*map(str, cells), f"{seconds:.2f}"]) + " |"
