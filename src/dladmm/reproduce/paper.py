"""``paper.toml``: what the paper itself reports."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def figures() -> dict[str, dict[str, Any]]:
    """The paper's figures by the label of its table or figure."""
    return tomllib.loads((files("dladmm.reproduce") / "paper.toml").read_text(encoding="utf-8"))


def nodes() -> dict[str, int]:
    """Nodes of the paper's graphs."""
    graphs = figures()["tab:gcn dataset"]
    return {name: part["nodes"] for name, part in graphs.items() if isinstance(part, dict)}
