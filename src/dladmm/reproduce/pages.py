"""A summary as Markdown, and as plain text for a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import find_spec
from typing import Any

WIDTH = 150
"""Columns of the tables in a file or a pipe."""

FINDINGS = ("what", "paper", "ours", "verdict", "why")


def markdown(summary: dict[str, Any], level: int = 2) -> str:
    """A section for ``docs/results.md``: counts, tolerances, then each experiment with its command above its tables."""
    head = "#" * level
    lines = [
        f"{head} Reproduction of the paper, scale {summary['scale']}",
        "",
        f"    {summary['command']}",
        "",
    ]
    lines += [counts(summary), "", summary["tolerances"], ""]
    for found in summary["experiments"]:
        lines += [f"{head}# {found['title']} ({found['id']})", "", f"    {found['command']}", ""]
        lines += _about(found)
        if found["table"]:
            lines += [*_table(found["headings"], found["table"]), ""]
        rows = [[finding[key] for key in FINDINGS] for finding in found["findings"]]
        if rows:
            lines += [*_table(list(FINDINGS), rows), ""]
    return "\n".join(lines)


def counts(summary: dict[str, Any]) -> str:
    """How many findings got which verdict."""
    verdicts = Counter(f["verdict"] for found in summary["experiments"] for f in found["findings"])
    told = ", ".join(f"{verdict} {n}" for verdict, n in sorted(verdicts.items()))
    return f"Findings beside the paper's figures: {told or 'none'}."


def _about(found: dict[str, Any]) -> list[str]:
    caption = (
        f"The paper's `{found['paper']}`: {found['caption']}"
        if found["paper"]
        else "Not a table of the paper."
    )
    settings = f" Settings: {found['settings']}." if found["settings"] else ""
    machine = f" Machine: {found['machine']}." if found["machine"] else ""
    undone = f" **{found['missing']} cells are missing.**" if found["missing"] else ""
    return [f"{caption}{settings}{machine}{undone}", ""]


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "| --- " * len(headings) + "|"]
    return lines + ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def show(summary: dict[str, Any], names: list[str]) -> None:
    """Tables of the experiments that were asked for, then ID / what / paper / ours / verdict of all of them."""
    chosen = [found for found in summary["experiments"] if found["id"] in names]
    for found in chosen:
        if found["table"]:
            _print(f"{found['id']}: {found['title']}", found["headings"], found["table"])
    rows = [
        [found["id"], *(finding[key] for key in FINDINGS[:-1])]
        for found in chosen
        for finding in found["findings"]
    ]
    _print(f"Beside the paper, scale {summary['scale']}", ["ID", *FINDINGS[:-1]], rows)
    reasons = [
        (finding["what"], finding["why"])
        for found in chosen
        for finding in found["findings"]
        if finding["why"]
    ]
    for why in dict.fromkeys(why for _, why in reasons):
        print(f"- {', '.join(what for what, given in reasons if given == why)}:\n    {why}")
    print(counts({"experiments": chosen}))


def show_list(lines: list[dict[str, Any]]) -> None:
    """IDs with the paper's labels and the number of cells."""
    _print("Experiments", list(lines[0]), [[str(value) for value in line.values()] for line in lines])


def _print(title: str, headings: list[str], rows: list[list[str]]) -> None:
    """With rich where it is installed, else in columns."""
    if find_spec("rich") is not None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, box=box.SIMPLE, title_justify="left")
        for heading in headings:
            table.add_column(heading, overflow="fold", no_wrap=heading in ("ID", "id", "verdict"))
        for row in rows:
            table.add_row(*map(Text, row))
        Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    print(title)
    for row in [headings, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
