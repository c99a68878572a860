"""A summary as Markdown, and as plain text for a terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dladmm.report.tables import markdown_table, print_table

FINDINGS = ("what", "paper", "ours", "verdict", "why")


def overview(summary: dict[str, Any]) -> list[str]:
    """Lines that come first: how many findings got which verdict, and for each claim its verdicts and a link."""
    table = markdown_table(["claim", "verdicts", "more"], map(_overview, summary["experiments"]))
    return [counts(summary), "", *table, ""]


def markdown(summary: dict[str, Any], level: int = 2, *, first: bool = True) -> str:
    """A section for ``docs/results.md``: overview (if it comes ``first``), tolerances, then each experiment, folded."""
    head = "#" * level
    lines = [
        f"{head} Reproduction of the paper, scale {summary['scale']}",
        "",
        f"    {summary['command']}",
        "",
    ]
    lines += [*(overview(summary) if first else ()), summary["tolerances"], ""]
    for found in summary["experiments"]:
        lines += [f"{head}# {_heading(found)}", "", f"    {found['command']}", ""]
        lines += _about(found)
        folded = []
        if found["table"]:
            folded += [*markdown_table(found["headings"], found["table"]), ""]
        rows = [[finding[key] for key in FINDINGS] for finding in found["findings"]]
        if rows:
            folded += [*markdown_table(list(FINDINGS), rows), ""]
        if folded:
            lines += ["<details>", f"<summary>{_told(found['findings']) or 'Table'}</summary>", "", *folded]
            lines += ["</details>", ""]
    return "\n".join(lines)


def _heading(found: dict[str, Any]) -> str:
    return f"{found['title']} ({found['id']})"


def _overview(found: dict[str, Any]) -> list[str]:
    """A claim of the paper, how it stands, and where to read on."""
    kept = "".join(c for c in _heading(found).lower() if c.isalnum() or c in " -_")
    said = found["caption"] or f"Not in the paper. {found['title']}"
    return [said, _told(found["findings"]) or "-", f"[{found['id']}](#{kept.replace(' ', '-')})"]


def _told(findings: list[dict[str, str]]) -> str:
    verdicts = Counter(finding["verdict"] for finding in findings)
    return ", ".join(f"{verdict} {n}" for verdict, n in sorted(verdicts.items()))


def counts(summary: dict[str, Any]) -> str:
    """How many findings got which verdict."""
    told = _told([f for found in summary["experiments"] for f in found["findings"]])
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


def show(summary: dict[str, Any], names: list[str]) -> None:
    """Tables of the experiments that were asked for, then ID / what / paper / ours / verdict of all of them."""
    chosen = [found for found in summary["experiments"] if found["id"] in names]
    for found in chosen:
        if found["table"]:
            print_table(f"{found['id']}: {found['title']}", found["headings"], found["table"])
    rows = [
        [found["id"], *(finding[key] for key in FINDINGS[:-1])]
        for found in chosen
        for finding in found["findings"]
    ]
    print_table(f"Beside the paper, scale {summary['scale']}", ["ID", *FINDINGS[:-1]], rows)
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
    print_table("Experiments", list(lines[0]), [[str(value) for value in line.values()] for line in lines])
