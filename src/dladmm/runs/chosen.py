"""``chosen.toml``: settings of convergent mode by data set."""

from __future__ import annotations

import copy
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def chosen_settings(dataset: str) -> dict[str, Any]:
    """The settings of convergent mode for a data set, with ``hidden`` and ``max_iter``; empty where none are known."""
    return copy.deepcopy(_tables().get(dataset.lower().replace("-", "_"), {}))


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("dladmm.runs") / "chosen.toml").read_text(encoding="utf-8"))
