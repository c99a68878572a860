"""The benchmark data sets of the paper, and data sets that need no download.

>>> from dladmm import datasets
>>> datasets.load("karate")
GraphData(karate: 34 nodes, 156 directed edges, 34 features, 4 classes, 4/0/30 train/val/test)
"""

from dladmm.datasets._check import verify
from dladmm.datasets._download import fetch
from dladmm.datasets._load import load
from dladmm.datasets._registry import names
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
