"""Time of an iteration by the width of the layers, beside Taylor's ADMM: the paper's O(n^2) against O(n^3)."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dladmm.reproduce import verdicts
from dladmm.reproduce.fits import Fit
from dladmm.reproduce.verdicts import Finding
from pages.records import read

RECORDS = ("performance-width-cpu", "performance-width-cuda")
CLAIMS = {"quadratic": ("dlADMM", 2.0), "taylor": ("ADMM (Taylor et al.)", 3.0)}
"""What is timed, and the power of the width that the paper gives it."""

WHY = {
    verdicts.DIFFERS: "Products with the samples, O(N n^2), and passes over n^2 weights are part of an iteration "
    "beside the solves, O(n^3); N is in the settings. Larger `--widths` of "
    "`python benchmarks/growth.py --axes width --mlp-modes quadratic taylor` come nearer (at the top).",
    verdicts.UNSEEN: "The growth shows at the largest widths only (at the top): below, something else "
    "than the products is most of the time, as "
    "`python benchmarks/growth.py --axes width --mlp-modes quadratic taylor` shows.",
}


def outcome(folder: Path) -> dict[str, Any] | None:
    """An outcome as ``dladmm reproduce`` has them; None where nothing was measured."""
    found = [(name, report) for name in RECORDS if (report := read(name, folder))]
    if not found:
        return None
    table, findings = [], []
    for name, report in found:
        table += _rows(where_of(name), report)
        findings += _findings(where_of(name), report)
    widths = max((len(report["settings"]["widths"]) for _, report in found), default=0)
    return {
        "id": "mlp-width",
        "title": "MLP: seconds per iteration by width, beside the ADMM of Taylor et al.",
        "paper": "Conclusion",
        "caption": "The time complexity is successfully reduced from O(n^3) to O(n^2).",
        "command": "; ".join(report["command"] for _, report in found),
        "settings": "; ".join(
            f"{where_of(name)}: two hidden layers, {report['settings']['width_samples']:,} samples"
            for name, report in found
        ),
        "machine": "; ".join(report["machine"]["device"] for _, report in found),
        "headings": [
            "machine",
            "method",
            *("seconds per iteration" if i == 0 else "" for i in range(widths)),
        ],
        "table": table,
        "findings": [asdict(finding) for finding in findings],
        "missing": 0,
    }


def where_of(name: str) -> str:
    return "GPU" if name.endswith("cuda") else "CPU"


def _rows(where: str, report: dict[str, Any]) -> list[list[str]]:
    widths = report["settings"]["widths"]
    rows = [[where, "width", *(f"{width:,}" for width in widths)]]
    for mode, (title, _) in CLAIMS.items():
        seconds = {row["size"]: row["seconds"] for row in report["rows"] if row["mode"] == mode}
        rows.append(["", title, *(f"{seconds[width]:.4f}" for width in widths)])
    return rows


def _findings(where: str, report: dict[str, Any]) -> list[Finding]:
    fits = {of["mode"]: Fit(of["exponent"], of["top"], of["r2"], of["error"]) for of in report["exponents"]}
    found = []
    for mode, (title, power) in CLAIMS.items():
        verdict = verdicts.exponent(Fit(power, power, 1.0), fits[mode])
        what = f"{where}: time of {title} grows with the width to the power"
        found.append(Finding(what, f"{power:g}", str(fits[mode]), verdict, WHY.get(verdict, "")))
    ours, theirs = fits["quadratic"], fits["taylor"]
    # Of all widths and at the top: what hides the growth of both may differ between them
    apart = min(theirs.exponent - ours.exponent, theirs.top - ours.top)
    holds = apart > 2 * math.hypot(ours.error, theirs.error)
    found.append(
        Finding(
            f"{where}: dlADMM beside Taylor's ADMM",
            "dlADMM grows more slowly",
            f"exponents {ours.exponent:.2f} and {theirs.exponent:.2f}, at the top {ours.top:.2f} and {theirs.top:.2f}",
            verdicts.AGREES if holds else verdicts.UNSEEN,
            "" if holds else "The exponents are not two standard errors apart.",
        )
    )
    return found
