"""The table of ``docs/streaming.md``: what each setting of streaming mode is worth, from the recorded runs."""

from __future__ import annotations

import json
from statistics import mean

from pages.records import ROOT

BEGIN, END = "<!-- table: made by docs/render.py -->", "<!-- end of table -->"


def with_table(page: str) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{_table()}\n{END}{after}"


def _table() -> str:
    record = json.loads((ROOT / "docs" / "results" / "streaming-validation.json").read_text(encoding="utf-8"))
    lines = ["| change | MNIST | Fashion-MNIST |", "| --- | --- | --- |"]
    for row in record["rows"]:
        change = ", ".join(f"{name} {value}" for name, value in row["change"].items()) or "none"
        lines.append(f"| {change} | {mean(row['mnist']):.4f} | {mean(row['fashion_mnist']):.4f} |")
    return "\n".join(lines)
