"""The table of ``docs/tables.md``, from the recorded runs of ``benchmarks/monotone.py``."""

from __future__ import annotations

import json
import re

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(
    r"(<!-- table monotone: made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL
)


def with_monotone_table(page: str) -> str:
    """The page with its table made anew."""
    return MARKED.sub(lambda found: found[1] + monotone_table() + "\n" + found[2], page)


def monotone_table() -> str:
    """Scores, and violations in brackets, of four methods on every table."""
    record = json.loads((ROOT / "docs" / "results" / "monotone.json").read_text(encoding="utf-8"))
    methods = list(record["tables"][0]["methods"])
    rows = []
    for table in record["tables"]:
        found = (table["methods"][method] for method in methods)
        cells = [f"{each['score']:.3f} ({each['violations']:,})" for each in found]
        rows.append((table["table"], f"{table['asked']} of {table['features']}", table["kind"], *cells))
    return "\n".join(markdown_table(("table", "constrained features", "score", *methods), rows))
