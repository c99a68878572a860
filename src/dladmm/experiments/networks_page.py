"""The section of ``docs/results.md`` about networks that are no MLP."""

from __future__ import annotations

import json
import re
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
        "Mean of the seeds. CPU cores were shared with other work, so their times say little.",
        "",
        "| network | data | images | method | device | seeds | "
        + " | ".join(f"k={k}" for k in SHOWN)
        + " | rises | s / iteration |",
        "| --- " * (8 + len(SHOWN)) + "|",
    ]
    lines += [_row(report, name) for report in reports for name in report["methods"]]
    return ["\n".join([*lines, ""])]


def _row(report: dict[str, Any], name: str) -> str:
    method = report["methods"][name]
    runs = method["runs"]
    seconds = sum(run["seconds_per_iteration"] for run in runs) / len(runs)
    shown = [f"{method['mean'][k]:.4f}" if k in method["mean"] else "-" for k in SHOWN]
    rises = "-" if name == "adam" else str(sum(run["rises"] for run in runs))
    where = re.sub(r"cuda \(NVIDIA (.*?),.*", r"\1", method.get("device", "cpu"))
    cells = [
        NAMES[report["network"]],
        report["data"],
        report["samples"],
        name,
        where,
        len(runs),
        *shown,
        rises,
    ]
    return "| " + " | ".join([*map(str, cells), f"{seconds:.2f}"]) + " |"
