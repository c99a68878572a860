"""``docs/theory.md`` maps the paper to the code: nothing left out, every name there, docstrings with numbers."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
KINDS = "Problem|Equation|Algorithm|Assumption|Property|Lemma|Theorem"
ROWS = re.findall(rf"^\| ((?:{KINDS})s? [^|]*) \| [^|]* \| (`[^|]*`) \|$", PAGE, re.MULTILINE)
COUNTS = {
    "Problem": 6,
    "Equation": 24,
    "Algorithm": 7,
    "Assumption": 2,
    "Property": 3,
    "Lemma": 6,
    "Theorem": 3,
}
WORDS = {"Equation": r"(?:equations?|eqs?\.)", "Property": r"(?:property|properties)"}


def numbers(cell: str) -> tuple[str, list[int]]:
    found = re.match(rf"({KINDS})s? ([\d, ]+)", cell)
    assert found is not None, cell
    return found[1], [int(n) for n in re.findall(r"\d+", found[2])]


def look_up(name: str) -> tuple[Any, str]:
    """The object that a name on the page stands for, and its docstrings: its own, its class's, its module's."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module("dladmm." + ".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        found: Any = module
        said = [inspect.getdoc(module) or ""]
        for part in parts[cut:]:
            found = getattr(found, part)
            said.append(inspect.getdoc(found) or "")
        return found, "\n".join(said)
    raise AssertionError(f"docs/theory.md names {name}, which is not there")


def carries(text: str, kind: str, number: int) -> bool:
    word = WORDS.get(kind, rf"{kind}s?")
    listed = r"(?:\(?\d+\)?(?: \(\w+\))?(?:, | and | to |, and |, or its majoriser's, )+(?:eqs?\. )?)*"
    return re.search(rf"(?i)\b{word}\s+{listed}\(?{number}\b", " ".join(text.split())) is not None


def test_the_map_leaves_nothing_out():
    seen = {kind: set() for kind in COUNTS}
    for cell, _ in ROWS:
        for kind, listed in re.findall(rf"({KINDS})s? ([\d, ]+)", cell):
            seen[kind] |= {int(n) for n in re.findall(r"\d+", listed)}
    for kind, count in COUNTS.items():
        assert seen[kind] == set(range(1, count + 1)), kind


@pytest.mark.parametrize(("cell", "code"), ROWS, ids=[cell for cell, _ in ROWS])
def test_code_carries_the_papers_numbers(cell, code):
    kind, wanted = numbers(cell)
    texts = {name: look_up(name)[1] for name in re.findall(r"`([^`]+)`", code)}
    for number in wanted:
        assert any(carries(text, kind, number) for text in texts.values()), (
            f"no docstring says {kind} {number}"
        )
    for name, text in texts.items():
        assert any(carries(text, kind, number) for number in wanted), f"{name} says nothing of {cell}"


def test_every_name_of_code_on_the_page_exists():
    """Also those outside the table, such as ``Engine.forces``: written with their class, looked up in the modules."""
    for name in re.findall(r"`(graph\.\w+|engine\.\w+(?:\.\w+)*|state\.\w+(?:\.\w+)*)`", PAGE):
        look_up(name)
