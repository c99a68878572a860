"""docs/reliability.md's table, from docs/results/chaos.json: ``python -m chaos.page``, or ``python docs/render.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from chaos.__main__ import RESULTS
from chaos.plan import LINES

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
MARKED = re.compile(r"(<!-- chaos: begin -->\n).*?(<!-- chaos: end -->)", re.DOTALL)


def rendered(results: dict[str, Any]) -> str:
    """The table in Markdown, and a sentence about when and where."""
    lines = ["| | tried | survived | lost | seconds | |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    known = [(line, results["lines"][line.name]) for line in LINES if line.name in results["lines"]]
    for line, found in known:
        notes = "; ".join(f"{name}: {shown(value)}" for name, value in found["notes"].items())
        figures = " | ".join(f"{found[key]:,}" for key in ("tried", "survived", "lost"))
        lines.append(f"| {line.title} | {figures} | {found['seconds']:,.0f} | {notes} |")
    totals = [sum(found[key] for _, found in known) for key in ("tried", "survived", "lost", "seconds")]
    lines.append("| **all** | " + " | ".join(f"**{total:,.0f}**" for total in totals) + " | |")
    machine = results["machine"]
    where = f"Python {machine['python']}, torch {machine['torch']}, {machine['cpu_count']} cores"
    how = "every part of a line in a process of its own. Seconds are by the clock, on a machine that others used too"
    return "\n".join([*lines, "", f"{where}; {how}.", ""])


def shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def with_table(page: str, results: dict[str, Any] | None = None) -> str:
    """The page with the table of these results, or of the recorded ones."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if results is None else results
    return MARKED.sub(lambda match: match[1] + rendered(results) + match[2], page)


def main() -> None:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
