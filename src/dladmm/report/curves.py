"""The figures of a group of runs as data, drawn both by the page and by matplotlib.

A single method is shown with a colour per quantity (Lagrangian and objective, train and test). Several methods are
shown with a colour per method and a figure per quantity. With several seeds, each is a thin line and their mean a thick
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from statistics import median_high

from dladmm.report.data import Column
from dladmm.report.groups import DatasetGroup, Point, Variant, points

QUANTITIES = {
    "val_accuracy": "Test accuracy",
    "train_accuracy": "Training accuracy",
    "val_r2": "Test R^2",
    "train_r2": "Training R^2",
    "loss": "Training loss",
    "val_loss": "Test loss",
    "objective": "Objective F",
    "lagrangian": "Augmented Lagrangian",
    "primal_residual": "Primal residual",
    "stationarity": "Stationarity",
    "dual_optimality": "Lemma 2 residual",
}
PANELS = (
    ("Accuracy", "accuracy", ("train_accuracy", "val_accuracy")),
    ("Explained variance", "R^2", ("train_r2", "val_r2")),
    ("Loss of the network", "mean loss", ("loss", "val_loss")),
    ("What the theory speaks of", "value", ("lagrangian", "objective")),
    ("Residuals", "norm", ("primal_residual", "stationarity", "dual_optimality")),
)
EXPLANATIONS = {
    "Accuracy": "Share of rows the network itself (its forward pass) classifies rightly.",
    "Explained variance": "R^2: the share of the targets' variance that the network explains; 0 is a constant answer.",
    "Loss of the network": "Mean loss of the network's forward pass, not of the relaxed last layer.",
    "What the theory speaks of": "The theory promises that the augmented Lagrangian falls at every iteration.",
    "Residuals": "Distances from feasibility, from a critical point, and from what Lemma 2 says of the multiplier.",
    "val_accuracy": "Share of test rows the network classifies rightly.",
    "train_accuracy": "Share of training rows the network classifies rightly.",
    "val_r2": "Share of the variance of the test rows' targets that the network explains.",
    "train_r2": "Share of the variance of the training rows' targets that the network explains.",
    "loss": "Mean loss of the network on the training rows.",
    "val_loss": "Mean loss of the network on the test rows.",
    "objective": "F: the summed loss with its penalties; for ADMM of the relaxed problem.",
    "lagrangian": "The theory promises that it falls at every iteration.",
    "primal_residual": "How far the last layer is from its constraint.",
    "stationarity": "Distance of the iterate from a critical point of the Lagrangian.",
    "dual_optimality": "How far the multiplier is from what Lemma 2 says of it.",
}

OF_A_SAMPLE = (
    "The objective on a fixed sample of the training rows; the theory promises nothing of this mode."
)

FEASIBILITY = ("primal_residual", "dual_optimality")
"""Zero by construction for methods that have no constraint to meet."""

PALETTE = (
    ("#0067a5", "#5ab4f0"), ("#c8500a", "#ff9a5c"), ("#00795a", "#3fd0a0"), ("#9b3d8c", "#e394d4"),
    ("#8a6a00", "#e8cf4a"), ("#007c8a", "#5fd3e0"), ("#a3203c", "#ff8fa3"), ("#555d66", "#b4bcc6"),
)  # fmt: skip
"""Colours for light and dark backgrounds: contrast 3:1, and with DASHES distinguishable for colour-blind readers."""

DASHES = ((), (8, 4), (3, 2), (10, 3, 2, 3), (14, 4), (5, 2, 5, 6), (10, 3, 2, 3, 2, 3), (2, 3))
"""Dash patterns by the same index, so that figures are readable in grey."""


def dash_of(style: int) -> tuple[int, ...]:
    """The dashes of a style; a second round of colours has them in another order, so that no two lines look alike."""
    return DASHES[(style + style // len(PALETTE)) % len(DASHES)]


COSTS_DIFFER = 1.5
"""Methods whose iterations differ in seconds by more than this factor are compared by seconds at first."""

LOG_FROM = 20.0
"""Non-negative values whose positive ones span more than this factor are shown on a logarithmic axis at first."""


@dataclass(frozen=True)
class Curve:
    """One line; ``thin`` for a single seed shown together with a mean."""

    name: str
    thin: bool
    iteration: Column
    seconds: Column
    values: Column


@dataclass(frozen=True)
class Entry:
    """A label of the legend and its lines: the thin ones first, the main one last."""

    label: str
    style: int
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Figure:
    """One figure: its title, axis and legend entries; ``log`` for a logarithmic axis."""

    key: str
    title: str
    y_label: str
    explanation: str
    log: bool
    entries: tuple[Entry, ...]

    @property
    def has_seconds(self) -> bool:
        """Whether the time of training was recorded."""
        return any(s is not None for entry in self.entries for s in entry.curves[-1].seconds)

    @property
    def costs_differ(self) -> bool:
        """Whether iterations of one curve take much longer than those of another: then seconds compare them."""
        costs = [_cost(entry.curves[-1]) for entry in self.entries]
        known = [cost for cost in costs if cost is not None]
        return len(known) == len(costs) > 1 and max(known) > COSTS_DIFFER * min(known)

    @property
    def floor(self) -> float | None:
        """What the page shows no lower values than at first: an R^2 below 0 is worse than a constant answer."""
        return 0.0 if "R^2" in self.y_label else None


def _cost(curve: Curve) -> float | None:
    """Seconds of an iteration; None where they were not recorded."""
    pairs = zip(curve.iteration, curve.seconds, strict=True)
    measured = [(k, s) for k, s in pairs if k and s is not None]
    return measured[-1][1] / measured[-1][0] if measured else None


def figures_of(groups: Sequence[DatasetGroup]) -> list[list[Figure]]:
    """The figures of each group, without quantities that no run measured.

    A method keeps its colour from one data set to the next.
    """
    labels = dict.fromkeys(variant.label for group in groups for variant in group.variants)
    styles = {label: place for place, label in enumerate(labels)}
    return [
        _figures_of_one_method(group) if len(group.variants) == 1 else _figures_of_methods(group, styles)
        for group in groups
    ]


def _figures_of_one_method(group: DatasetGroup) -> list[Figure]:
    variant = group.variants[0]
    held = "Unseen" if variant.runs[0].method == "cross-fitted" else "Test"
    streaming = all((run.certificate or {}).get("streaming") for run in variant.runs)
    figures = []
    for title, unit, columns in PANELS:
        entries = [
            Entry(QUANTITIES[c].replace("Test", held), i, _curves(variant, c)) for i, c in enumerate(columns)
        ]
        drawn = [
            e for c, e in zip(columns, entries, strict=True) if not (c in FEASIBILITY and _always_zero(e))
        ]
        if not any(entry.curves for entry in drawn):
            continue
        figure = _figure(group, title, title, unit, drawn)
        if streaming and "lagrangian" in columns:
            figure = replace(figure, title="Training objective", explanation=OF_A_SAMPLE)
        figures.append(figure)
    return figures


def _figures_of_methods(group: DatasetGroup, styles: dict[str, int]) -> list[Figure]:
    figures = []
    for column, title in QUANTITIES.items():
        entries = [Entry(v.label, styles[v.label], _curves(v, column)) for v in group.variants]
        idle = [entry.label for entry in entries if column in FEASIBILITY and _always_zero(entry)]
        drawn = [entry for entry in entries if entry.curves and entry.label not in idle]
        if drawn:
            figure = _figure(group, title, column, title, drawn)
            note = f" Left out, for it is always 0 there: {', '.join(idle)}." if idle else ""
            if column.startswith("val_") and any("(cross-fitted" in entry.label for entry in drawn):
                note += " Of cross-fitted copies: of training rows that a copy did not see."
            figures.append(replace(figure, explanation=figure.explanation + note))
    return figures


def _always_zero(entry: Entry) -> bool:
    values = [value for curve in entry.curves for value in curve.values if value is not None]
    return bool(values) and not any(values)


def _figure(group: DatasetGroup, title: str, about: str, y_label: str, entries: list[Entry]) -> Figure:
    measured = tuple(entry for entry in entries if entry.curves)
    values = [v for entry in measured for curve in entry.curves for v in curve.values if v is not None]
    positive = [v for v in values if v > 0]
    log = (
        "accuracy" not in y_label.lower()
        and min(values) >= 0
        and max(values) > LOG_FROM * min(positive, default=1)
    )
    return Figure(slug(f"{group.dataset} {title}"), title, y_label, EXPLANATIONS[about], log, measured)


def _curves(variant: Variant, column: str) -> tuple[Curve, ...]:
    several = len(variant.runs) > 1
    single = [
        _curve(run.name if run.seed is None else f"seed {run.seed}", several, points(run, column))
        for run in variant.runs
        if run.last(column) is not None
    ]
    mean = _curve(f"mean of {len(variant.runs)} runs", False, variant.mean(column)) if several else None
    return (*single, mean) if mean and mean.values else tuple(single)


def _curve(name: str, thin: bool, rows: list[Point]) -> Curve:
    """A curve without the rows between two measurements, but with a gap where measurements are missing.

    A distance between two measured rows that is longer than the median distance is a gap, which breaks the line.
    """
    places = [i for i, (_, _, value) in enumerate(rows) if value is not None]
    usual = median_high([b - a for a, b in pairwise(places)] or [1])
    kept: list[Point] = []
    for before, place in zip([None, *places], places, strict=False):
        if before is not None and place - before > usual:
            kept.append(rows[before + 1])
        kept.append(rows[place])
    return Curve(name, thin, [k for k, _, _ in kept], [s for _, s, _ in kept], [v for _, _, v in kept])


def in_words(figure: Figure) -> list[str]:
    """A description of the figure for screen readers: first, last, lowest and highest value of each curve."""
    sentences = []
    for entry in figure.entries:
        curve = entry.curves[-1]
        measured = [
            (k, v)
            for k, v in zip(curve.iteration, curve.values, strict=True)
            if v is not None and k is not None
        ]
        if not measured:
            sentences.append(f"{entry.label}: nothing was measured.")
            continue
        (first, start), (last, end) = measured[0], measured[-1]
        low, high = min(measured, key=lambda p: p[1]), max(measured, key=lambda p: p[1])
        of = f" ({curve.name})" if len(entry.curves) > 1 else ""
        sentences.append(
            f"{entry.label}{of}: {start:.4g} at iteration {first:g}, {end:.4g} at iteration {last:g}; "
            f"lowest {low[1]:.4g} at {low[0]:g}, highest {high[1]:.4g} at {high[0]:g}."
        )
    return sentences


def thinned(curve: Curve, most: int = 1500) -> Curve:
    """The curve with about ``most`` points, keeping the extremes of every interval so that no spike is lost."""
    n = len(curve.values)
    if n <= most:
        return curve
    width = ceil(2 * n / most)
    kept: set[int] = {0, n - 1}
    for start in range(0, n, width):
        places = range(start, min(start + width, n))
        known = [i for i in places if curve.values[i] is not None]
        kept |= _extremes(known, curve.values) if known else {start}
    order = sorted(kept)

    def pick(column: Column) -> Column:
        return [column[i] for i in order]

    return Curve(curve.name, curve.thin, pick(curve.iteration), pick(curve.seconds), pick(curve.values))


def _extremes(places: Iterable[int], values: Column) -> set[int]:
    ranked = sorted(places, key=lambda i: values[i] or 0.0)
    return {ranked[0], ranked[-1]}


def slug(text: str) -> str:
    """A name for files and anchors: lower case letters, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "figure"
