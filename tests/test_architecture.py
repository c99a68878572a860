"""``docs/architecture.md`` says who may import whom; the code keeps to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "dladmm"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

ROWS = [
    (row[1], re.findall(r"`([\w/]+)`", row[2]))
    for row in re.finditer(r"^\| (\d \w+|beside) \| ((?:`[\w/]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
]
LAYER = {room: name for name, rooms in ROWS for room in rooms}
HEIGHT = {room: int(name[0]) if name[0].isdigit() else 0 for room, name in LAYER.items()}


def room(parts: Sequence[str]) -> str:
    """The room of a module, ``["engine", "Engine"]``: its file or folder, or a file of a folder that the page names."""
    return named if (named := "/".join(parts[:2])) in LAYER else parts[0]


def room_of(path: Path) -> str:
    return room(path.relative_to(SOURCE).with_suffix("").parts)


FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = {room_of(path) for path in FILES}


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether inside a function; what only a type checker reads is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((f"{module}.{alias.name}", inside) for alias in node.names)
        yield from imports(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def own_rooms(path: Path) -> set[str]:
    found = set()
    for name, _ in imports(ast.parse(path.read_text(encoding="utf-8"))):
        package, *parts = name.split(".")
        if package == "dladmm" and room(parts) in ROOMS - {room_of(path)}:
            found.add(room(parts))
    return found


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
            if LAYER[there] == "beside":
                allowed = HEIGHT[here] >= 6  # doors, methods and programs
            elif LAYER[here] == "beside":
                allowed = HEIGHT[there] == 1  # the ground alone
            else:
                allowed = HEIGHT[there] <= HEIGHT[here]
            if not allowed:
                wrong.append(f"{path.name} ({LAYER[here]}) imports {there} ({LAYER[there]})")
    assert wrong == []


HEAVY = {"typer": 8, "rich": 5, "sklearn": 5, "matplotlib": 5, "torch_geometric": 5}


def test_the_mathematics_imports_no_world():
    wrong = []
    for path in FILES:
        here = room_of(path)
        for name, inside in imports(ast.parse(path.read_text(encoding="utf-8"))):
            package = name.split(".")[0]
            if package not in HEAVY or LAYER[here] == "beside":
                continue
            late = inside or package == "sklearn" or HEIGHT[here] == 8
            if HEIGHT[here] < HEAVY[package] or not late:
                wrong.append(f"{path.name} ({LAYER[here]}) imports {package}")
    assert wrong == []
