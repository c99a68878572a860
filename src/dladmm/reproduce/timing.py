"""Seconds per epoch by size and rho: our table, the paper's, and how both grow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from dladmm.reproduce import verdicts
from dladmm.reproduce.fits import Fit, growth
from dladmm.reproduce.verdicts import Finding
from dladmm.runs.evidence import Evidence, seconds_per_epoch
from dladmm.runs.experiment import Experiment

Grid = list[list[float | None]]

FASTER = (
    "Another machine, and cached products: backtracking is in closed form or costs no product per try "
    "(`python -m pytest tests/compute/test_products.py` counts them), where the authors' code forms them anew for "
    "every try."
)
FLAT_IN_RHO = (
    "A try of the backtracking costs no product, or there is none, so a rho that needs more tries costs hardly more: "
    "`python -m pytest tests/compute/test_products.py` counts the products of an epoch."
)
FLAT_IN_SIZE = (
    "A fixed cost per step (kernel launches on a GPU) hides the growth at these sizes; `python benchmarks/growth.py` "
    "has larger ones."
)
STEEPER = (
    "Ours is mostly products, which grow with the size (`python benchmarks/growth.py`); the paper's own table hardly "
    "grows, so a cost that does not depend on the size is most of its epoch."
)

GROWN = 1.1
"""Times longer at the largest size than at the smallest: from here on time is said to increase."""

CONSTANT = 1.25
"""Up to so many times longer it is said to stay."""


def sizes(e: Experiment, dataset: str) -> list[float]:
    values = e.grid[e.axis]
    return list(values[dataset] if isinstance(values, dict) else values)


def measured(e: Experiment, evidence: Evidence, dataset: str) -> Grid:
    """Seconds per epoch, one row per rho and one column per size; None where a cell is missing."""
    found = {}
    for cell in evidence.cells:
        if cell.dataset == dataset and cell.name in evidence.runs:
            point = (cell.options["rho"], _size(e, cell.settings, cell.hidden))
            found[point] = seconds_per_epoch(evidence.runs[cell.name])
    return [[found.get((rho, size)) for size in sizes(e, dataset)] for rho in e.grid["rho"]]


def _size(e: Experiment, settings: dict[str, Any], hidden: Sequence[int]) -> float:
    if e.axis == "neurons":
        return hidden[0]
    return float(settings["train_rows" if e.axis == "samples" else e.axis])


def complete(grid: Grid) -> list[list[float]] | None:
    rows = [[value for value in row if value is not None] for row in grid]
    return rows if all(len(row) == len(whole) for row, whole in zip(rows, grid, strict=True)) else None


def time_table(e: Experiment, evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """One line for each data set and rho; sizes differ between data sets, so the first line of each has them."""
    n = max(len(sizes(e, dataset)) for dataset in e.datasets)
    table = []
    for dataset in e.datasets:
        table.append([dataset, e.axis, *(f"{size:g}" for size in sizes(e, dataset))])
        for rho, row in zip(e.grid["rho"], measured(e, evidence, dataset), strict=True):
            table.append(["", f"rho {rho:g}", *("-" if s is None else f"{s:.4f}" for s in row)])
    return ["data set", "", *("seconds per epoch" if i == 0 else "" for i in range(n))], table


def time_findings(e: Experiment, evidence: Evidence, paper: dict[str, Any]) -> Iterator[Finding]:
    for dataset in e.datasets:
        ours = complete(measured(e, evidence, dataset))
        theirs = paper.get(dataset, {}).get("seconds")
        yield from _seconds(dataset, ours, theirs)
        yield from _exponents(e, dataset, ours, paper.get(dataset))


def _seconds(
    dataset: str, ours: list[list[float]] | None, theirs: list[list[float]] | None
) -> Iterator[Finding]:
    """The smallest and the largest of the table, and the median ratio of its cells; seconds are not judged."""
    if theirs is None:
        return
    shown = f"{theirs[0][0]:.4g} to {theirs[-1][-1]:.4g} s"
    what = f"{dataset}: seconds per epoch, from the first to the last cell"
    if ours is None:
        yield Finding(what, shown, "-", verdicts.MISSING)
        return
    mine = f"{ours[0][0]:.4g} to {ours[-1][-1]:.4g} s"
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        yield Finding(what, shown, mine, verdicts.QUICK)
        return
    ratio = statistics.median(
        t / o for mine_, paper in zip(ours, theirs, strict=True) for o, t in zip(mine_, paper, strict=True)
    )
    why = FASTER if ratio > 1 else ""
    told = f"{mine} (median cell {ratio:.3g} times as fast)"
    yield Finding(what, shown, told, verdicts.MACHINE, why)


def _exponents(
    e: Experiment, dataset: str, ours: list[list[float]] | None, paper: dict[str, Any] | None
) -> Iterator[Finding]:
    """Growth with the size, and with rho where it is varied; the paper's from its own table."""
    axes = [e.axis, *(["rho"] if len(e.grid["rho"]) > 1 else [])]
    for axis in axes:
        theirs = None if paper is None else _growth(axis, paper[axis], paper["rho"], paper["seconds"])
        what = f"{dataset}: time grows with {'edges' if axis == 'degree' else axis} to the power"
        shown = "-" if theirs is None else str(theirs)
        if ours is None:
            yield Finding(what, shown, "-", verdicts.MISSING)
            continue
        fit = _growth(axis, sizes(e, dataset), e.grid["rho"], ours)
        if theirs is None:
            yield Finding(what, shown, str(fit), "no figure of the paper")
            continue
        verdict = verdicts.exponent(theirs, fit)
        flatter = FLAT_IN_RHO if axis == "rho" else FLAT_IN_SIZE
        why = flatter if fit.exponent < theirs.exponent else STEEPER
        why = "" if verdict == verdicts.AGREES else why
        yield Finding(what, shown, str(fit), verdict, why)


def _growth(axis: str, along: Sequence[float], rho: Sequence[float], seconds: list[list[float]]) -> Fit:
    if axis == "rho":
        return growth(rho, [list(column) for column in zip(*seconds, strict=True)])
    return growth(along, seconds)


# What the paper says of its times in words ------------------------------------------------------------------------


def _times_longer(evidence: Evidence, dataset: str, about: dict[str, Any]) -> tuple[float, str] | None:
    """The largest size (or rho) over the smallest, the median of the series; of one rho where ``rho`` names it."""
    found: dict[tuple[float, float], float] = {}
    for cell in (cell for cell in evidence.cells if cell.dataset == dataset):
        seconds = seconds_per_epoch(evidence.runs[cell.name]) if cell.name in evidence.runs else None
        if seconds is None:
            return None
        size = cell.hidden[0] if cell.rows is None else cell.rows
        along, beside = cell.options["rho"], size
        if about["axis"] != "rho":
            along, beside = beside, along
        if beside == about.get("rho", beside):
            found[along, beside] = seconds
    if not found:
        return None
    least, most = (pick(along for along, _ in found) for pick in (min, max))
    ratios = [found[most, beside] / found[least, beside] for along, beside in found if along == least]
    times = statistics.median(ratios)
    return times, f"{times:.2f} times from {least:g} to {most:g}"


def longer(evidence: Evidence, dataset: str, about: dict[str, Any]) -> tuple[bool, str] | None:
    """Whether an epoch takes longer at the largest size."""
    found = _times_longer(evidence, dataset, about)
    return None if found is None else (found[0] >= GROWN, found[1])


def constant(evidence: Evidence, dataset: str, about: dict[str, Any]) -> tuple[bool, str] | None:
    """Whether an epoch takes about as long at all sizes."""
    found = _times_longer(evidence, dataset, about)
    return None if found is None else (1 / CONSTANT <= found[0] <= CONSTANT, found[1])


TIME_CHECKS = {"longer": longer, "constant": constant}
