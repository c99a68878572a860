"""Writes a finished run into a folder: history.csv, metrics.json, certificate.txt, curves.png.

Versions and hardware are written with it, without anything that identifies a person, a host or a folder.
"""

from __future__ import annotations

import csv
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dladmm._version import __version__

if TYPE_CHECKING:
    from dladmm.training.result import Result


def write_run(
    result: Result, folder: Path, settings: dict[str, Any], *, curves: bool = True, **measured: Any
) -> Path:
    """Write history, metrics and certificate of a run into ``folder`` and return it.

    ``settings`` and ``measured`` are added to metrics.json; ``curves=False`` writes no figure.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = result.history.to_dict()
    with (folder / "history.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    metrics = {
        "status": result.status.name,
        "message": result.status.value,
        "iterations": result.history.n_iter,
        "settings": settings,
        "last": {name: result.history.last(name) for name in columns},
        "certificate": result.certificate.to_dict(),
        "machine": describe(result.state.u.device),
        **measured,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=2, allow_nan=False), encoding="utf-8")
    (folder / "certificate.txt").write_text(f"{result.certificate}\n", encoding="utf-8")
    if curves:
        plot_curves(result, folder / "curves.png")
    return folder


def plot_curves(result: Result, path: Path) -> bool:
    """Plot Lagrangian, residuals and accuracy against iterations; returns False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    history = result.history
    k = history["iteration"]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    energy, residuals, accuracy = figure.subplots(1, 3)
    for column, label in (("lagrangian", "augmented Lagrangian"), ("objective", "objective F")):
        energy.plot(k, history[column], label=label)
    for column, label in (
        ("primal_residual", "primal residual"),
        ("stationarity", "stationarity"),
        ("dual_optimality", "Lemma 2"),
    ):
        residuals.plot(*_measured(k, history[column]), label=label)
    if min(history["lagrangian"], default=0) > 0:  # type: ignore[type-var, operator]
        energy.set_yscale("log")
    if residuals.dataLim.y1 > 0:  # zero throughout in streaming mode
        residuals.set_yscale("log")
    figure_of = "accuracy" if history.last("train_r2") is None and history.last("val_r2") is None else "r2"
    for column, label in ((f"train_{figure_of}", "train"), (f"val_{figure_of}", "held out")):
        accuracy.plot(*_measured(k, history[column]), label=label)
    last = "accuracy of the network" if figure_of == "accuracy" else "R^2 of the network"
    titles = ("what the theory speaks of", "residuals", last)
    for axis, title in zip((energy, residuals, accuracy), titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)
    return True


def _measured(k: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
    pairs = [(i, v) for i, v in zip(k, values, strict=True) if v is not None]
    return [i for i, _ in pairs], [v for _, v in pairs]


def describe(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions and hardware for ``metrics.json``; ``device`` is the device of the run's tensors."""
    return {
        "dladmm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}".strip(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": _device_name(torch.device(device)),
    }


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda})"


def _cpu_name() -> str:
    """The processor's model name; on Linux from /proc/cpuinfo, which ``platform`` does not read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown"
