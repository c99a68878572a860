"""Writes the figures of the page as PNG and SVG for a paper, one column wide."""

from __future__ import annotations

import io
import os
from collections.abc import Collection
from math import ceil
from pathlib import Path
from typing import Any

from dladmm.base.atomic import replacing
from dladmm.base.errors import InputError
from dladmm.report.curves import PALETTE, Entry, Figure, dash_of, figures_of
from dladmm.report.data import Column, Report
from dladmm.report.groups import group_runs

WIDTH, HEIGHT, LEGEND_ROW = 3.5, 2.2, 0.15
"""Inches: one column of a two-column paper, and the height of a row of the legend above."""

STYLE: Any = {
    "font.family": "sans-serif",
    # comes with matplotlib, so that figures are the same on every machine
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "svg.hashsalt": "dladmm",
    "svg.fonttype": "path",
}


def write_figures(
    report: Report,
    folder: str | os.PathLike[str],
    *,
    seconds: bool = False,
    titles: Collection[str] | None = None,
) -> list[Path]:
    """Write NAME.png and NAME.svg of every figure into ``folder``; the same runs give the same bytes.

    Parameters
    ----------
    report : Report
    folder : str or path
    seconds : bool, default False
        Also plot accuracies and R^2 against the time of training, as NAME-by-seconds.
    titles : collection of str, optional
        Only figures with these titles.

    Returns
    -------
    list of Path
    """
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need matplotlib; install it with: pip install 'dladmm[plot]'.") from error
    target, written = Path(folder), []
    names: set[str] = set()
    all_figures = [figure for some in figures_of(group_runs(report.runs)) for figure in some]
    figures = [(figure, "iteration") for figure in all_figures if titles is None or figure.title in titles]
    if seconds:
        judged = ("accuracy", "r^2", "explained variance")
        timed = [f for f, _ in figures if f.has_seconds and any(word in f.title.lower() for word in judged)]
        figures += [(figure, "seconds") for figure in timed]
    try:
        target.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for figure, x in figures:
                name = _free_name(figure.key + ("-by-seconds" if x == "seconds" else ""), names)
                written += save_both(_draw(figure, x), target, name)
    except OSError as error:
        raise InputError(f"{target} cannot hold the figures: {error}") from error
    return written


def _free_name(key: str, taken: set[str]) -> str:
    """A file name not in ``taken``: names of two data sets may differ only in characters that are left out."""
    name, number = key, 1
    while name in taken:
        number += 1
        name = f"{key}-{number}"
    taken.add(name)
    return name


def _draw(figure: Figure, x: str) -> Any:
    from matplotlib.figure import Figure as Drawn

    height = HEIGHT + LEGEND_ROW * ceil(len(figure.entries) / 2)
    drawn = Drawn(figsize=(WIDTH, height), layout="constrained")
    axes = drawn.subplots()
    for entry in figure.entries:
        _draw_entry(axes, entry, x)
    if figure.log:
        axes.set_yscale("log")
    axes.set_xlabel("iteration" if x == "iteration" else "seconds of training")
    axes.set_ylabel(figure.y_label)
    axes.grid(True)
    axes.set_axisbelow(True)
    if len(figure.entries) > 1:
        drawn.legend(loc="outside upper left", ncols=2, frameon=False, handlelength=2.6, columnspacing=1.2)
    return drawn


def _draw_entry(axes: Any, entry: Entry, along: str) -> None:
    colour = PALETTE[entry.style % len(PALETTE)][0]
    dash = dash_of(entry.style)
    for curve in entry.curves:
        x, y = _numbers(getattr(curve, along)), _numbers(curve.values)
        if curve.thin:
            axes.plot(x, y, color=colour, linewidth=0.5, alpha=0.5)
        else:
            # matplotlib measures dashes in line widths, the page in pixels, with lines 2.25 wide
            style: Any = (0, tuple(length / 2.25 for length in dash)) if dash else "solid"
            axes.plot(x, y, color=colour, linewidth=1.3, linestyle=style, label=entry.label)


def _numbers(column: Column) -> list[float]:
    return [float("nan") if value is None else value for value in column]


def save_both(drawn: Any, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg of a matplotlib figure, each atomically; returns their paths."""
    written = []
    for ending, options in (("png", {"dpi": 300}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        drawn.savefig(buffer, format=ending, **options)
        with replacing(folder / f"{name}.{ending}") as file:
            file.write(buffer.getvalue())
        written.append(folder / f"{name}.{ending}")
    return written
