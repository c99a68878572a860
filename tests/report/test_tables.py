"""The one writer of tables of text."""

from __future__ import annotations

import pytest

from dladmm.report import tables
from dladmm.report.tables import markdown_table, print_table


def test_markdown_keeps_a_row_on_one_line():
    lines = markdown_table(["a", "b"], [["x|y", 1], ["two\nlines", None]])
    assert lines == ["| a | b |", "| --- | --- |", "| x\\|y | 1 |", "| two lines | None |"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("caption", [None, "what it means"])
def test_a_terminal_shows_every_cell(installed, caption, capsys, monkeypatch):
    if not installed:
        monkeypatch.setattr(tables, "find_spec", lambda name: None)
    print_table("The title", ["method", "accuracy"], [["adam", "0.9\n±0.1"], ["[gd]", "-"]], caption=caption)
    shown = capsys.readouterr().out
    for words in ("The title", "method", "adam", "0.9", "±0.1", "[gd]"):
        assert words in shown
    assert ("what it means" in shown) == (installed and caption is not None)
