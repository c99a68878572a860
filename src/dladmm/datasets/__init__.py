"""The benchmark data sets of the paper, and data sets that need no download.

>>> from dladmm import datasets
>>> datasets.load("karate")
GraphData(karate: 34 nodes, 156 directed edges, 34 features, 4 classes, 4/0/30 train/val/test)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dladmm.datasets._check import verify
from dladmm.datasets._download import fetch
from dladmm.datasets._registry import names

if TYPE_CHECKING:
    from dladmm.datasets._load import load
    from dladmm.datasets._types import GraphData, ImageData
    from dladmm.datasets.embedded import digits, karate
    from dladmm.datasets.generated import moons, sbm, spirals

__all__ = [
    "GraphData",
    "ImageData",
    "digits",
    "fetch",
    "karate",
    "load",
    "moons",
    "names",
    "sbm",
    "spirals",
    "verify",
]

_PLACES = {
    "GraphData": "_types",
    "ImageData": "_types",
    "digits": "embedded",
    "karate": "embedded",
    "load": "_load",
    "moons": "generated",
    "sbm": "generated",
    "spirals": "generated",
}
"""What needs torch, which takes long to import and the command line's ``--help`` does without."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'dladmm.datasets' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"dladmm.datasets.{_PLACES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
