"""Figures of a reproduction: curves as in any report; seconds and memory beside the paper's; PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from dladmm.report.curves import PALETTE, slug
from dladmm.report.figures import HEIGHT, STYLE, WIDTH, save_both, write_figures
from dladmm.reproduce.paper import figures
from dladmm.reproduce.timing import measured, sizes
from dladmm.runs.evidence import Evidence, report_of
from dladmm.runs.experiment import Experiment

ACCURACIES = ("Test accuracy", "Accuracy", "Training accuracy")
CURVES = ("Augmented Lagrangian", "Objective F", "What the theory speaks of", "Primal residual", "Residuals")
"""Titles of what the paper's figures show, for several methods and for one alone; a report has the rest."""


def draw(e: Experiment, evidence: Evidence, folder: Path) -> list[Path]:
    """Whatever fits the experiment's kind."""
    folder.mkdir(parents=True, exist_ok=True)
    if e.kind in ("curves", "accuracy"):
        accuracy = e.kind == "accuracy"
        titles = ACCURACIES if accuracy else CURVES
        return write_figures(report_of(evidence, e.id), folder, seconds=accuracy, titles=titles)
    with matplotlib.rc_context(STYLE):
        if e.kind == "memory":
            return save_both(_memory(e, evidence), folder, "memory")
        return [
            path
            for dataset in e.datasets
            for path in save_both(_times(e, evidence, dataset), folder, slug(f"{dataset} seconds"))
        ]


def _axes(x_label: str, y_label: str) -> tuple[Any, Any]:
    drawn = Figure(figsize=(WIDTH, HEIGHT + 0.6), layout="constrained")
    axes = drawn.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True)
    axes.set_axisbelow(True)
    return drawn, axes


def _times(e: Experiment, evidence: Evidence, dataset: str) -> Any:
    """Both axes logarithmic, so that an exponent is a slope: ours solid, the paper's dashed."""
    drawn, axes = _axes(e.axis, "seconds per epoch")
    paper = figures().get(e.paper, {}).get(dataset)
    for place, (rho, row) in enumerate(zip(e.grid["rho"], measured(e, evidence, dataset), strict=True)):
        colour = PALETTE[place % len(PALETTE)][0]
        known = [(size, s) for size, s in zip(sizes(e, dataset), row, strict=True) if s is not None]
        axes.plot(*_columns(known), "o-", color=colour, markersize=3, linewidth=1.2, label=f"rho {rho:g}")
        if paper is not None and rho in paper["rho"]:
            theirs = list(zip(paper[e.axis], paper["seconds"][paper["rho"].index(rho)], strict=True))
            axes.plot(*_columns(theirs), "--", color=colour, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{dataset}: ours solid{', the paper dashed' if paper is not None else ''}")
    drawn.legend(loc="outside upper left", ncols=3, frameon=False)
    return drawn


def _columns(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _memory(e: Experiment, evidence: Evidence) -> Any:
    drawn, axes = _axes("", "MB")
    widths = e.grid["neurons"]
    for place, width in enumerate(widths):
        used = {
            c.dataset: evidence.memory.get(c.name, 0.0) / 1e6 for c in evidence.cells if c.hidden[0] == width
        }
        at = [i + (place - (len(widths) - 1) / 2) * 0.4 for i in range(len(used))]
        axes.bar(at, list(used.values()), 0.38, color=PALETTE[place][0], label=f"{width} neurons")
    axes.set_xticks(range(len(e.datasets)), [name.replace("_", "\n") for name in e.datasets])
    drawn.legend(loc="outside upper left", ncols=2, frameon=False)
    return drawn
