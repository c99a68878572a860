"""The section of ``docs/results.md`` with the timings of ``benchmarks/gcn.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import read

BENCHMARKS = {
    "gcn-benchmark-cpu": "2 cores, 16 and 256 hidden units",
    "gcn-benchmark-cora": "2 cores, Cora with 128 hidden units",
    "gcn-benchmark-cuda": "one NVIDIA H200",
}
HEAD = """## Graphs: time and memory of an iteration, beside an Adam epoch of the same network and run

Certified: rho = 1.5, inside the certified region; paper: its settings at rho = 1e-3, to be set beside its
table of running times; accelerated: the default of the estimators, where a refused attempt counts.
"""


def render(folder: Path) -> list[str]:
    """One table per machine; none where nothing was measured."""
    lines = [HEAD]
    for name, where in BENCHMARKS.items():
        if report := read(name, folder):
            lines += [f"    {report['command']}", "", f"On {where}:", "", *_table(report["results"]), ""]
    return ["\n".join(lines)] if len(lines) > 1 else []


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Milliseconds per iteration of each mode, over an Adam epoch's, and the paper's seconds over them."""
    modes = list(rows[0].get("modes", {"certified": None}))
    headings = ["data set", "hidden", *(f"{mode}, ms" for mode in modes), "Adam epoch, ms"]
    headings += [f"{mode} / Adam" for mode in modes]
    headings += [*(f"{mode}, times the paper's speed" for mode in modes), "memory"]
    return markdown_table(headings, [_row(row, modes) for row in rows])


def _row(row: dict[str, Any], modes: list[str]) -> list[str]:
    one = {"iteration_seconds": row["iteration_seconds"], "ratio_to_adam": row["ratio"]}
    found = [row.get("modes", {"certified": one})[mode] for mode in modes]
    cells = [row["dataset"], str(row["hidden"]), *(f"{1e3 * of['iteration_seconds']:.1f}" for of in found)]
    cells += [f"{1e3 * row['adam_epoch_seconds']:.1f}", *(f"{of['ratio_to_adam']:.2f}" for of in found)]
    cells += ["-" if (x := of.get("times_as_fast_as_the_paper")) is None else f"{x:.0f}" for of in found]
    return [*cells, "-" if row.get("memory_bytes") is None else f"{row['memory_bytes'] / 1e6:.0f} MB"]
