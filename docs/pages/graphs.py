"""The table of random splits in ``docs/graphs.md``, from the recorded runs of ``benchmarks/graphs.py``."""

from __future__ import annotations

import json
import re
from statistics import mean, stdev
from typing import Any

from graphs import ASKED

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table splits: made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
RECORDS = ("graphs-random-splits", "graphs-random-splits-h200")


def with_splits_table(page: str) -> str:
    """The page with its table made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{splits_table()}\n{found[2]}", page)


def splits_table() -> str:
    """Mean accuracy and deviation over splits, and seconds of a fit, of the default and of Kipf's recipe."""
    results: list[dict[str, Any]] = []
    for name in RECORDS:
        path = ROOT / "docs" / "results" / f"{name}.json"
        results += json.loads(path.read_text(encoding="utf-8"))["results"]
    rows = []
    for dataset, asked in ASKED.items():
        runs = [row for row in results if row["dataset"] == dataset]
        rows.append((dataset, *(_cell(runs, learner) for learner in ("dladmm", "kipf")), asked, len(runs)))
    heads = ("graph", "dladmm, default", "Kipf's recipe", "asked", "splits")
    return "\n".join(markdown_table(heads, [tuple(map(str, row)) for row in rows]))


def _cell(runs: list[dict[str, Any]], learner: str) -> str:
    found = [row[learner] for row in runs]
    seconds = mean(row[f"{learner}_seconds"] for row in runs)
    return f"{mean(found):.4f} +- {stdev(found):.4f} ({seconds:.1f} s)"
