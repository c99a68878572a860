"""Sections of ``docs/results.md``: timings of ``benchmarks/gcn.py``, memory of ``benchmarks/gcn_memory.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import read, section

BENCHMARKS = {
    "gcn-benchmark-cpu": "2 cores, 16 and 256 hidden units",
    "gcn-benchmark-cora": "2 cores, Cora with 128 hidden units",
    "gcn-benchmark-cuda": "one NVIDIA H200, before accelerated iterations were recorded",
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
    return [*(["\n".join(lines)] if len(lines) > 1 else []), *_dense_features(folder)]


DENSE_NOTE = """
The run of the paper's figure of memory (its settings, one process a cell, on a CPU) with features sparse, as this
library keeps them, and made dense: the features themselves and the peak of the process above them, which dense ones
have while they are read, whatever the neurons. The paper reports almost the same for 16 and 256 neurons on all
five. Dense features give that where they are many, not on Cora and PubMed."""


def _dense_features(folder: Path) -> list[str]:
    report = read("gcn-memory-dense", folder)
    if not report:
        return []
    found = {(r["dataset"], r["features"], r["hidden"]): r for r in report["results"]}
    rows = []
    for name in dict.fromkeys(r["dataset"] for r in report["results"]):
        row = [name]
        for features in ("sparse", "dense"):
            used = [
                sum(found[name, features, n][k] for k in ("feature_bytes", "run_bytes")) for n in (16, 256)
            ]
            row += [*(f"{n / 1e6:,.0f} MB" for n in used), f"{used[1] / used[0]:.2f}"]
        rows.append(row)
    headings = ["data set"]
    for features in ("sparse", "dense"):
        headings += [f"{features}, 16 neurons", "256 neurons", "ratio"]
    title = "Graphs: memory with sparse and with dense features"
    return [section(title, [report["command"]], headings, rows, notes=[DENSE_NOTE])]


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
