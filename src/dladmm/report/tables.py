"""Tables of text, as Markdown and on a terminal: the one writer for summaries, comparisons and the pages of docs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

WIDTH = 150
"""Columns of a table in a file or a pipe."""


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table."""
    lines = ["| " + " | ".join(headings) + " |", "| --- " * len(headings) + "|"]
    return lines + ["| " + " | ".join(_escaped(str(cell)) for cell in row) + " |" for row in rows]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None
) -> None:
    """On standard output, with rich where it is installed. A table with a caption has right-aligned, narrow columns."""
    if find_spec("rich") is None:
        _print_plain(title, headings, rows)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if caption is None:
        table = Table(title=title, box=box.SIMPLE, title_justify="left")
        for heading in headings:
            table.add_column(heading, overflow="fold", no_wrap=heading in ("ID", "id", "verdict"))
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
    else:
        table = Table(title=title, caption=caption, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left", no_wrap=True)
        console = Console()
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_plain(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [list(headings), *([cell.replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(title)
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()
