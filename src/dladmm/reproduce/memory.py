"""What the paper says of memory in words, held to what runs needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dladmm.reproduce.fits import growth
from dladmm.runs.evidence import Evidence

Answer = tuple[bool, str] | None


def _megabytes(evidence: Evidence, dataset: str) -> list[float]:
    """By rising number of neurons."""
    cells = sorted((c for c in evidence.cells if c.dataset == dataset), key=lambda c: c.hidden)
    return [evidence.memory[c.name] / 1e6 for c in cells if c.name in evidence.memory]


def uses_most(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    names = dict.fromkeys(c.dataset for c in evidence.cells)
    used = {name: found[-1] for name in names if (found := _megabytes(evidence, name))}
    if len(used) < len(names):
        return None
    most = max(used, key=lambda name: used[name])
    return most == dataset, f"{most} {used[most]:.0f} MB"


def at_most(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """The paper's figure is an amount; not to need more is what holds."""
    found = _megabytes(evidence, dataset)
    return (max(found) <= about["megabytes"], f"{max(found):.0f} MB") if found else None


def more_than(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    found = _megabytes(evidence, dataset)
    return (max(found) > about["megabytes"], f"{max(found):.0f} MB") if found else None


def proportional(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    nodes = {name: n for name, n in about["nodes"].items() if min(_megabytes(evidence, name), default=0) > 0}
    if len(nodes) < max(2, len(about["nodes"])):
        return None
    fit = growth(list(nodes.values()), [[_megabytes(evidence, name)[-1] for name in nodes]])
    return abs(fit.exponent - 1) <= 0.25, f"exponent {fit.exponent:.2f}"


def slim(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    found = _megabytes(evidence, dataset)
    if len(found) < 2 or min(found) <= 0:
        return None
    times = found[-1] / found[0]
    return times < 1.2, f"{found[0]:.0f} and {found[-1]:.0f} MB, {times:.1f} times"


MEMORY_CHECKS: dict[str, Callable[[Evidence, str, dict[str, Any]], Answer]] = {
    check.__name__: check for check in (uses_most, at_most, more_than, proportional, slim)
}
