"""How long cells will take: a rough count of products before, corrected by what finished cells took."""

from __future__ import annotations

import time
from functools import cache
from itertools import pairwise

import torch

from dladmm.datasets._registry import DATASETS
from dladmm.runs.plan import Cell

PRODUCTS = {"dladmm": 8.0, "accelerated": 24.0, "admm": 12.0}
"""Products with each weight matrix per epoch; for a gradient method three, and as many to measure it."""

OVERHEAD = {"cpu": 0.004, "cuda": 0.02}
"""Seconds per epoch of dlADMM that no product explains: bookkeeping, kernel launches."""

SHARE = {"dladmm": 1.0, "accelerated": 3.0, "admm": 1.0}
"""How much of that a method has; a gradient method a quarter."""

START = 0.3
"""Seconds a cell takes besides: writing, drawing initial weights."""


class Clock:
    """An estimate for a list of cells; the seconds that finished cells took scale it."""

    def __init__(self, todo: list[Cell], device: str) -> None:
        rate, overhead = _rate(device), OVERHEAD["cuda" if "cuda" in device else "cpu"]
        self._left = {
            cell.name: START
            + cell.max_iter
            * (
                SHARE.get(cell.trainer, 0.25) * overhead
                + PRODUCTS.get(cell.trainer, 5.0) * _product(cell) / rate
            )
            for cell in todo
        }
        self._guessed = self._took = 0.0

    def tell(self, cell: Cell, seconds: float) -> None:
        self._guessed += self._left.pop(cell.name)
        self._took += seconds

    @property
    def seconds(self) -> float:
        return sum(self._left.values()) * (self._took / self._guessed if self._guessed else 1.0)

    def estimate(self) -> str:
        return words(self.seconds)


def words(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _product(cell: Cell) -> float:
    """Floating point operations of a forward pass; of sparse ones such as take equally long."""
    if cell.network == "gcn":
        return 200.0 * _nodes(cell.dataset) * cell.hidden[0]
    rows = cell.rows or 60_000
    return 2.0 * rows * sum(a * b for a, b in pairwise([784, *cell.hidden, 10]))


def _nodes(dataset: str) -> int:
    known = DATASETS.get(dataset.replace("-", "_"))
    return 20_000 if known is None else known.statistics.get("nodes", 20_000)


@cache
def _rate(device: str) -> float:
    """Operations per second of one float32 product, measured."""
    n = 4096 if "cuda" in device else 512
    x = torch.ones(n, n, device=device)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        float((x @ x)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - began)
    return 2 * n**3 / best
