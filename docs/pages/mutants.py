"""The table of faults put into the code on purpose, in ``docs/reliability.md``, from ``make mutants``."""

from __future__ import annotations

import json
import re
from collections import Counter

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table faults: made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_faults_table(page: str) -> str:
    """The page with its table made anew."""
    return MARKED.sub(lambda found: found[1] + faults_table() + "\n" + found[2], page)


def faults_table() -> str:
    """How many faults of every list were tried, noticed by a test, and explained because no test can notice them."""
    record = json.loads((ROOT / "docs" / "results" / "mutants.json").read_text(encoding="utf-8"))["faults"]
    counts = Counter((each["area"], each["verdict"]) for each in record.values())
    areas = sorted({each["area"] for each in record.values()})
    rows = []
    for area in (*areas, "all"):
        own = areas if area == "all" else [area]
        caught, explained, survived = (
            sum(counts[each, verdict] for each in own) for verdict in ("caught", "explained", "survived")
        )
        rows.append((area, str(caught + explained + survived), str(caught), str(explained), str(survived)))
    return "\n".join(markdown_table(("list", "faults", "noticed", "explained", "survived"), rows))
