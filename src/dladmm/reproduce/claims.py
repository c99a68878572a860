"""What the paper says in words, held to our runs: each check gives whether it holds, and our figure in words.

A check is given the evidence, the data set and what ``paper.toml`` says beside it; None where the runs are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dladmm.report.data import Run
from dladmm.reproduce.fits import growth
from dladmm.runs.accuracy import first_reaching
from dladmm.runs.evidence import Evidence

Answer = tuple[bool, str] | None
Check = Callable[[Evidence, str, dict[str, Any]], Answer]

ROUNDING = 1e-5
"""A rise below this share of the value is rounding of float32."""

FLUCTUATING = 0.1
"""A curve that rises in this share of the epochs, or more, fluctuates."""


def _values(run: Run, column: str) -> list[float]:
    return [value for value in run.column(column) if value is not None]


def _rises(values: list[float]) -> int:
    return sum(after - before > ROUNDING * abs(before) for before, after in pairwise(values))


def _curve(evidence: Evidence, dataset: str, column: str) -> list[float]:
    run = evidence.run(dataset)
    return [] if run is None else _values(run, column)


def _ends(values: list[float]) -> str:
    return f"{values[0]:.3g} to {values[-1]:.3g}"


def falls_always(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    values = _curve(evidence, dataset, about["column"])
    if not values:
        return None
    rises = _rises(values)
    return rises == 0, f"{_ends(values)}, {rises} rises in {len(values)} epochs"


def fluctuates(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    values = _curve(evidence, dataset, about["column"])
    if not values:
        return None
    rises = _rises(values)
    return rises >= FLUCTUATING * len(values), f"{_ends(values)}, {rises} rises in {len(values)} epochs"


def falls(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    values = _curve(evidence, dataset, about["column"])
    return (values[-1] < values[0], _ends(values)) if values else None


def rises(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    values = _curve(evidence, dataset, about["column"])
    return (values[-1] > values[0], f"{_ends(values)}, highest {max(values):.3g}") if values else None


def vanishes(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    values = _curve(evidence, dataset, about["column"])
    if not values:
        return None
    at = min(about["epochs"], len(values))
    share = values[at - 1] / values[0] if values[0] else 0.0
    return share < 0.01, f"{100 * share:.2g} % of the first at epoch {at}"


def settles(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    values = _curve(evidence, dataset, about["column"])
    if not values:
        return None
    at, fall = min(about["epochs"], len(values)), values[0] - values[-1]
    share = (values[0] - values[at - 1]) / fall if fall else 1.0
    return share >= 0.95, f"{100 * share:.0f} % of the fall at epoch {at}"


def wilder(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """By the share of epochs at which the curve rises."""
    shares = {}
    for name in (dataset, *about["others"]):
        values = _curve(evidence, name, about["column"])
        if not values:
            return None
        shares[name] = _rises(values) / len(values)
    told = ", ".join(f"{name} rises in {100 * share:.0f} %" for name, share in shares.items())
    return all(shares[dataset] > shares[name] for name in about["others"]), told


def _first_epoch(evidence: Evidence, dataset: str, method: str, accuracy: float) -> float | None:
    """Infinity where the first initialisation never gets there."""
    run = evidence.run(dataset, method)
    if run is None:
        return None
    first = first_reaching(run, accuracy)
    return float("inf") if first is None else first


def _epoch(k: float) -> str:
    return "never" if k == float("inf") else f"at epoch {k:g}"


def reaches(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    k = _first_epoch(evidence, dataset, about["method"], about["accuracy"])
    return None if k is None else (k <= about["epochs"], f"{about['accuracy']:g} {_epoch(k)}")


def ends_above(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    found = evidence.accuracy(dataset, about["method"])
    return None if found is None else (found.value > about["accuracy"], str(found))


def slower(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    methods = (about["method"], *about["others"])
    first = {name: _first_epoch(evidence, dataset, name, about["accuracy"]) for name in methods}
    known = {name: k for name, k in first.items() if k is not None}
    if len(known) < len(methods):
        return None
    own = known[about["method"]]
    told = ", ".join(f"{name} {_epoch(k)}" for name, k in known.items())
    return all(known[name] > own for name in about["others"]), f"{about['accuracy']:g}: {told}"


def declines(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Best within a tenth of the paper's figure, and the end below the best."""
    run = evidence.run(dataset, about["method"])
    best, last = (None, None) if run is None else (run.best("val_accuracy"), run.last("val_accuracy"))
    if best is None or last is None:
        return None
    return abs(best - about["accuracy"]) <= 0.1 and last < best, f"best {best:.4f}, end {last:.4f}"


def ahead(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Within two percentage points of the paper's distance."""
    one, two = (evidence.accuracy(dataset, about[key]) for key in ("method", "other"))
    if one is None or two is None:
        return None
    gain = one.value - two.value
    return abs(gain - about["accuracy"]) <= 0.02, f"{100 * gain:.1f} % ({one.value:.4f}, {two.value:.4f})"


def best(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Among the methods that ``among`` names, or all."""
    every = dict.fromkeys(str(cell.settings["method"]) for cell in evidence.cells)
    methods = [name for name in every if name in about.get("among", every)]
    found = {name: m for name in methods if (m := evidence.accuracy(dataset, name)) is not None}
    if not found or len(found) < len(methods):
        return None
    winner = max(found, key=lambda name: found[name].value)
    return winner in about["methods"], f"{winner} {found[winner].value:.4f}"


def only_better(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether the methods above the paper's own are exactly those it names."""
    own = evidence.accuracy(dataset, about["method"])
    found = {name: evidence.accuracy(dataset, name) for name in about["among"]}
    known = {name: m for name, m in found.items() if m is not None}
    if own is None or len(known) < len(found):
        return None
    above = sorted(name for name, m in known.items() if m.value > own.value)
    told = ", ".join(f"{name} {known[name].value:.4f}" for name in above) or "none"
    return above == sorted(about["others"]), f"above {own.value:.4f}: {told}"


def steady(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether no method's deviation over the initialisations is above the largest in the paper's own table."""
    found = {name: evidence.accuracy(dataset, name) for name in about["among"]}
    known = {name: m for name, m in found.items() if m is not None and m.count > 1}
    if len(known) < len(found):
        return None
    widest = max(known, key=lambda name: known[name].deviation)
    return known[widest].deviation <= about["deviation"], f"largest {known[widest].deviation:.4f} ({widest})"


# Memory --------------------------------------------------------------------------------------------------------


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


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        falls_always, fluctuates, falls, rises, vanishes, settles, wilder, reaches, ends_above, slower, declines,
        ahead, best, only_better, steady, uses_most, at_most, proportional, slim,
    )
}  # fmt: skip
