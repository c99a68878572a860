"""``docs/architecture.md`` says who may import whom; the code keeps to it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dladmm"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = [
    (row[1], re.findall(r"`(\w+)`", row[2]))
    for row in re.finditer(r"^\| (\d \w+|beside) \| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
]
LAYER = {room: name for name, rooms in ROWS for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))
DOORS = 6


def room(name: str) -> str:
    """The folder (or the single file) of a module: ``engine`` of ``dladmm.engine.sweep.Engine``."""
    return [*name.split("."), ""][1]


def room_of(path: Path) -> str:
    return room(".".join(["dladmm", *path.relative_to(SOURCE).with_suffix("").parts]))


ROOMS = {room_of(path) for path in FILES}


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether inside a function; what only a type checker reads is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", inside) for alias in node.names)
        yield from imports(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def all_imports(path: Path) -> list[tuple[str, bool]]:
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


def own_rooms(path: Path) -> set[str]:
    found = {room(name) for name, _ in all_imports(path) if name.startswith("dladmm.")}
    return (found & ROOMS) - {room_of(path)}


def height(name: str) -> int:
    return int(LAYER[name][0]) if LAYER[name] != "beside" else DOORS


def test_the_page_names_every_room_once():
    named = [room for _, rooms in ROWS for room in rooms]
    assert len(named) == len(set(named))
    assert ROOMS - set(named) == set(), "docs/architecture.md does not say where these rooms are"
    assert set(named) - ROOMS == set(), "docs/architecture.md names rooms that are gone"


def test_imports_go_down():
    wrong = []
    for path in FILES:
        here = room_of(path)
        for there in own_rooms(path):
            # Rooms beside the others import the ground alone; doors and above import them
            beside = LAYER.get(here) == "beside"
            if height(there) > (1 if beside and LAYER.get(there) != "beside" else height(here)):
                wrong.append(f"{here} ({height(here)}) imports {there} ({height(there)})")
    assert wrong == []


HEAVY = {"typer": 8, "rich": 5, "sklearn": 5, "matplotlib": 5, "torch_geometric": 5}


def test_the_mathematics_imports_no_world():
    wrong = []
    for path in FILES:
        here = room_of(path)
        for name, inside in all_imports(path):
            package = name.split(".")[0]
            if package not in HEAVY or LAYER.get(here) == "beside":
                continue
            late = inside or package == "sklearn" or height(here) == 8
            if height(here) < HEAVY[package] or not late:
                wrong.append(f"{here} ({height(here)}) imports {package}")
    assert wrong == []


def test_no_comment_stands_behind_a_bracket_that_the_formatter_moved():
    """A line too long for its comment is split into brackets, and the comment is left behind the last of them."""
    torn = re.compile(r"^\s*[\])}]+[^#'\"]*# (?!fmt|noqa|type|nosec)")
    found = [
        f"{path}:{i}"
        for path in [*FILES, *Path(__file__).parents[1].rglob("*.py")]
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if torn.match(line)
    ]
    assert found == []


def test_the_verifier_stands_alone():
    names = {name.split(".")[0] for name, _ in all_imports(SOURCE / "verify.py")}
    assert names - set(sys.stdlib_module_names) == {"numpy"}
