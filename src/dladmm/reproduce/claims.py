"""What the paper says in words, held to our runs: each check gives whether it holds, and our figure in words.

A check is given the evidence, the data set and what ``paper.toml`` says beside it; None where the runs are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from dladmm.report.data import METHOD_NAMES, Run
from dladmm.reproduce import verdicts
from dladmm.reproduce.memory import MEMORY_CHECKS
from dladmm.reproduce.timing import TIME_CHECKS
from dladmm.runs.accuracy import first_reaching
from dladmm.runs.evidence import Evidence, Mean, mean

Answer = tuple[bool, str] | None
Check = Callable[[Evidence, str, dict[str, Any]], Answer]

ROUNDING = 1e-5
"""A rise below this share of the value is rounding of float32."""

FLUCTUATING = 0.1
"""A curve that rises in this share of the epochs, or more, fluctuates."""


def _named(method: str) -> str:
    return METHOD_NAMES.get(method, method)


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
    if fall < 0:
        return False, f"{_ends(values)}: it rises"
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
    told = ", ".join(f"{_named(name)} {_epoch(k)}" for name, k in known.items())
    return all(known[name] > own for name in about["others"]), f"{about['accuracy']:g}: {told}"


def declines(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Best within a tenth of the paper's figure, and the end below the best."""
    run = evidence.run(dataset, about["method"])
    best, last = (None, None) if run is None else (run.best("val_accuracy"), run.last("val_accuracy"))
    if best is None or last is None:
        return None
    return abs(best - about["accuracy"]) <= 0.1 and last < best, f"best {best:.4f}, end {last:.4f}"


def ahead(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Ahead, and within two percentage points of the paper's distance, or within those that ``within`` says."""
    one, two = (evidence.accuracy(dataset, about[key]) for key in ("method", "other"))
    if one is None or two is None:
        return None
    gain = one.value - two.value
    holds = gain > 0 and abs(gain - about["accuracy"]) <= about.get("within", 0.02)
    return holds, f"{100 * gain:.1f} % ({one.value:.4f}, {two.value:.4f})"


def ahead_of_all(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """The same against the best of the methods that ``among`` names."""
    known = _accuracies(evidence, dataset, about["among"])
    if known is None:
        return None
    return ahead(evidence, dataset, about | {"other": max(known, key=lambda name: known[name])})


def worst(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether a method is below all that ``among`` names besides."""
    known = _accuracies(evidence, dataset, about["among"])
    if known is None:
        return None
    last = min(known, key=lambda name: known[name])
    return last == about["method"], f"lowest {_named(last)} {known[last]:.4f}"


def second(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether exactly one of those that ``among`` names is above a method."""
    known = _accuracies(evidence, dataset, about["among"])
    if known is None:
        return None
    order = sorted(known, key=lambda name: known[name], reverse=True)
    return order[1] == about["method"], ", ".join(f"{_named(name)} {known[name]:.4f}" for name in order[:3])


def all_above(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether all that ``among`` names end above an accuracy."""
    known = _accuracies(evidence, dataset, about["among"])
    if known is None:
        return None
    last = min(known, key=lambda name: known[name])
    return known[last] > about["accuracy"], f"lowest {_named(last)} {known[last]:.4f}"


def competes(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether a method is within one percentage point of the best that ``among`` names."""
    known = _accuracies(evidence, dataset, about["among"])
    if known is None:
        return None
    own, highest = known[about["method"]], max(known, key=lambda name: known[name])
    return own >= known[highest] - 0.01, f"{own:.4f}, best {_named(highest)} {known[highest]:.4f}"


def beats_most(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether a method is above more than half of those that ``among`` names, by the last value of a column."""
    known = _accuracies(evidence, dataset, (about["method"], *about["among"]), about["by"])
    if known is None:
        return None
    own = known[about["method"]]
    below = [name for name in about["among"] if known[name] < own]
    told = ", ".join(f"{_named(name)} {known[name]:.4f}" for name in known)
    return 2 * len(below) > len(about["among"]), f"above {len(below)} of {len(about['among'])}: {told}"


def _accuracies(
    evidence: Evidence, dataset: str, methods: Sequence[str], column: str = "val_accuracy"
) -> dict[str, float] | None:
    """The mean of the last values of a column, by method; None where one is missing."""
    if column == "val_accuracy":
        found = {name: evidence.accuracy(dataset, name) for name in methods}
    else:
        found = {
            name: mean([v for run in evidence.of(dataset, name) if (v := run.last(column)) is not None])
            for name in methods
        }
    known = {name: m.value for name, m in found.items() if m is not None}
    return known if len(known) == len(found) else None


def best(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Among the methods that ``among`` names, or all."""
    every = dict.fromkeys(str(cell.settings["method"]) for cell in evidence.cells)
    methods = [name for name in every if name in about.get("among", every)]
    found = {name: m for name in methods if (m := evidence.accuracy(dataset, name)) is not None}
    if not found or len(found) < len(methods):
        return None
    winner = max(found, key=lambda name: found[name].value)
    return winner in about["methods"], f"{_named(winner)} {found[winner].value:.4f}"


def only_better(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether the methods above the paper's own are exactly those it names."""
    own = evidence.accuracy(dataset, about["method"])
    found = {name: evidence.accuracy(dataset, name) for name in about["among"]}
    known = {name: m for name, m in found.items() if m is not None}
    if own is None or len(known) < len(found):
        return None
    above = sorted(name for name, m in known.items() if m.value > own.value)
    told = ", ".join(f"{_named(name)} {known[name].value:.4f}" for name in above) or "none"
    return above == sorted(about["others"]), f"above {own.value:.4f}: {told}"


def steady(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether no method's deviation over the initialisations is above the largest in the paper's own table."""
    found = {name: evidence.accuracy(dataset, name) for name in about["among"]}
    known = {name: m for name, m in found.items() if m is not None and m.count > 1}
    if len(known) < len(found):
        return None
    widest = max(known, key=lambda name: known[name].deviation)
    found_widest = known[widest].deviation
    return found_widest <= about["deviation"], f"largest {found_widest:.4f} ({_named(widest)})"


def rate(evidence: Evidence, dataset: str, about: dict[str, Any]) -> Answer:
    """Whether the first of the learning rates that ``rates`` names, the paper's, gives the figure of its table."""
    found = {method: evidence.accuracy(dataset, method) for method in about["rates"]}
    known = {method: m for method, m in found.items() if m is not None}
    if len(known) < len(found):
        return None
    value, deviation = about["table"][about["method"]][dataset]
    theirs = Mean(value, deviation, about["table"]["initialisations"])
    met = [m for m in known if verdicts.accuracy(theirs, known[m], baseline=True) == verdicts.AGREES]
    told = [f"{about['rates'][method]} ({known[method].value:.4f})" for method in met]
    every = ", ".join(f"{about['rates'][method]} ({m.value:.4f})" for method, m in known.items())
    return next(iter(known)) in met, f"at {', '.join(told)}" if met else f"at none of {every}"


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        falls_always, fluctuates, falls, rises, vanishes, settles, wilder, reaches, ends_above, slower, declines,
        ahead, ahead_of_all, worst, second, all_above, competes, beats_most, best, only_better, steady, rate,
    )
} | MEMORY_CHECKS | TIME_CHECKS  # fmt: skip

TITLES = {
    "all_above": "lowest accuracy",
    "best": "best method",
    "constant": "time by {axis}",
    "longer": "time by {axis}",
    "more_than": "memory",
    "at_most": "memory",
    "proportional": "memory by nodes",
    "rate": "the rate that gives the figure",
    "slim": "memory by neurons",
    "steady": "largest deviation",
    "uses_most": "most memory",
}
"""What a check looks at, where it is neither a curve nor a method."""
