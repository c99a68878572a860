"""docs/reliability.md says what docs/results/chaos.json says, and that every line was run at its full size."""

from __future__ import annotations

import json

from chaos.__main__ import RESULTS, table, together
from chaos.page import PAGE, rendered, with_table
from chaos.plan import LINES


def test_the_page_shows_the_recorded_figures():
    page, results = PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8"))
    assert with_table(page, results) == page
    assert rendered(results) in page


def test_every_line_was_run_at_full_size_and_nothing_was_lost():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["lines"]
    for line in LINES:
        assert results[line.name]["size"] == line.full, line.name
        assert results[line.name]["lost"] == 0, line.name
        assert results[line.name]["tried"] > 0, line.name


def test_the_table_adds_up():
    figures = {"tried": 3, "survived": 2, "lost": 1}
    shown = table({"lines": {LINES[0].name: figures, LINES[1].name: figures}}).splitlines()
    assert shown[0].split() == ["tried", "survived", "lost"]
    assert shown[-1].split() == ["all", "6", "4", "2"]


def test_parts_of_a_line_add_up():
    part = {"name": "x", "tried": 3, "survived": 2, "lost": 1, "seconds": 1.0, "size": 3, "seed": 0}
    notes = ({"refused": 2, "slowest in milliseconds": 5.0}, {"refused": 3, "slowest in milliseconds": 4.0})
    whole = together(LINES[0], [part | {"notes": each, "faults": ["f"]} for each in notes])
    assert (whole["tried"], whole["lost"], whole["size"], whole["faults"]) == (6, 2, 6, ["f", "f"])
    assert whole["notes"] == {"refused": 5, "slowest in milliseconds": 5.0}
