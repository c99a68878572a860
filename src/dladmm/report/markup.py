"""Builds HTML with escaping by default: only strings made by this module are markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class Safe(str):
    """A string that is already markup and is not escaped again."""

    __slots__ = ()


def el(tag: str, *children: str, **attributes: str | int | bool | None) -> Safe:
    """An HTML element. ``class_`` is class, ``aria_sort`` aria-sort; True is a bare attribute, None and False none."""
    opened = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = name.rstrip("_").replace("_", "-")
        opened.append(written if value is True else f'{written}="{html.escape(str(value))}"')
    return Safe(f"<{' '.join(opened)}>{join(children)}</{tag}>")


def join(parts: Iterable[str], between: str = "") -> Safe:
    """The parts joined, with those that are not markup escaped."""
    return Safe(between.join(part if isinstance(part, Safe) else html.escape(part) for part in parts))


FOLDED_FROM = 9
"""So many entries of a kind are folded away; a click opens them."""


def folded(count: int, kind: str, body: Safe) -> Safe:
    """The body; one of many entries is folded behind a line that opens it."""
    if count < FOLDED_FROM:
        return body
    return el("details", el("summary", f"All {count} {kind}"), body, class_="many")


def json_for_script(value: Any) -> Safe:
    """JSON that is safe inside a script element: it cannot end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Safe(text)


@dataclass(frozen=True)
class TableCell:
    """A cell of an HTML table: text, sort value (the text if None), and CSS class ``kind``."""

    text: str
    value: float | None = None
    numeric: bool = False
    kind: str | None = None


def number(value: float | None, digits: str = ".4f") -> TableCell:
    """A cell with a number, or a dash for None."""
    return TableCell("–" if value is None else format(value, digits), value, numeric=True)


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[TableCell]], *, sortable: bool = True
) -> Safe:
    """A table with a caption, whose first column holds row headers; it scrolls if it is too wide."""
    rows = list(rows)
    numeric = [any(row[i].numeric for row in rows) for i in range(len(headings))]
    head = join(
        el(
            "th",
            el("button", heading, type="button") if sortable else heading,
            scope="col",
            class_="numeric" if right else None,
        )
        for heading, right in zip(headings, numeric, strict=True)
    )
    body = join(
        el("tr", *(_cell(cell, first=i == 0) for i, cell in enumerate(row))) for row in rows
    )  # fmt: skip
    whole = el(
        "table",
        el("caption", caption),
        el("thead", el("tr", head)),
        el("tbody", body),
        class_="sortable" if sortable else None,
    )
    return el("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(cell: TableCell, first: bool) -> Safe:
    classes = " ".join(filter(None, ("numeric" if cell.numeric else "", cell.kind or "")))
    value = None if cell.value is None else repr(float(cell.value))
    attributes = {"class_": classes or None, "data_value": value, "data_numeric": cell.numeric}
    if first:
        return el("th", cell.text, scope="row", **attributes)
    return el("td", cell.text, **attributes)
