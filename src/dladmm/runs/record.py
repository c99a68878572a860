"""A short JSON record per finished cell: what a results page says of it.

    {"experiment": ID, "command": ..., "cells": [{"name": ..., "settings": {...}, "test_accuracy": {...}, ...}]}

``dladmm reproduce`` writes it to OUT/ID/record.json; ``docs/results`` holds records that are kept.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import Any

from dladmm.report.data import Run
from dladmm.runs.accuracy import SHOWN, by_iteration, first_reaching
from dladmm.runs.evidence import Evidence, gather, seconds_per_epoch
from dladmm.runs.experiment import Experiment
from dladmm.runs.plan import Cell, cells, plain
from dladmm.runs.running import Session, run_cells
from dladmm.runs.store import write_text

RECORD = "record.json"
FIRST_AT = 0.95
"""The test accuracy whose first iteration is recorded."""

FROM_CERTIFICATE = {
    "covered": "covered",
    "monotone": "monotone",
    "certified": "certified",
    "agrees": "agrees",
    "largest_entry": "largest_norm",
}


def record(experiment: Experiment, evidence: Evidence, alone: str = "") -> dict[str, Any]:
    """The record of an experiment's finished cells.

    Seconds are left out of the paper's accuracy experiments, whose cells are run several at a time on one device, but
    for cells whose names match one of the patterns ``alone``, which had it to themselves.
    """
    timed = experiment.own or experiment.kind in ("time", "memory")
    patterns = [pattern.strip() for pattern in alone.split(",")]
    found = [
        record_of(
            cell,
            evidence.runs[cell.name],
            evidence.metrics.get(cell.name, {}),
            timed=timed or any(fnmatch(cell.name, pattern) for pattern in patterns),
        )
        for cell in evidence.cells
        if cell.name in evidence.runs
    ]
    return {"experiment": experiment.id, "command": experiment.command, "cells": found}


def run_experiment(experiment: Experiment, session: Session) -> tuple[bool, Evidence]:
    """Run the cells that are missing and write the record; whether all are done, and what is there."""
    folder, wanted = session.out / experiment.id, cells(experiment, session.device_kind)
    complete = session.collect or run_cells(wanted, folder, session, experiment.id)
    evidence = gather(folder, wanted)
    write_text(folder / RECORD, json.dumps(record(experiment, evidence), indent=1, allow_nan=False))
    return complete, evidence


def record_of(cell: Cell, run: Run, metrics: dict[str, Any], *, timed: bool = True) -> dict[str, Any]:
    """What a results page says of one cell.

    ``test_accuracy``, ``train_loss_at`` and ``lagrangian_at`` are by iteration, at those of
    :data:`dladmm.runs.accuracy.SHOWN` and the last; ``final``, ``train_accuracy`` and ``train_loss`` are the last ones
    measured; ``rises_at`` lists the iterations at which the Lagrangian rose beyond rounding. ``median_seconds`` are of
    an iteration, without the first ones that warm a device up; ``fit_seconds`` and ``fit_cpu_seconds`` of the call.
    """
    certificate = run.certificate or {}
    rises = certificate.get("descent_violations", [])
    residual = (certificate.get("primal_residual") or {}).get("recomputed")
    found: dict[str, Any] = {
        "name": cell.name,
        "settings": shown_settings(cell),
        "device": str(run.machine.get("device", "unknown")),
        "status": run.status,
        "iterations": run.iterations,
        "test_accuracy": _shown(run, "val_accuracy", 4),
        "train_loss_at": _shown(run, "loss", 5),
        "lagrangian_at": _shown(run, "lagrangian", None),
        "final": _rounded(run.last("val_accuracy"), 4),
        "first_at_95": first_reaching(run, FIRST_AT),
        "train_accuracy": _rounded(run.last("train_accuracy"), 5),
        "train_loss": _rounded(run.last("loss"), 5),
        "final_rho": run.last("rho"),
        "rises": len(rises),
        "rises_at": rises,
        "residual": residual,
        **{ours: certificate.get(theirs) for ours, theirs in FROM_CERTIFICATE.items()},
        "seconds_per_iteration": run.seconds_per_iteration if timed else None,
        "median_seconds": seconds_per_epoch(run) if timed else None,
        **{key: metrics.get(key) if timed else None for key in ("fit_seconds", "fit_cpu_seconds")},
        **{key: metrics.get(key) for key in ("samples", "refused", "memory_bytes")},
    }
    return {key: value for key, value in found.items() if value not in (None, {}) or key == "first_at_95"}


def shown_settings(cell: Cell) -> dict[str, Any]:
    """What makes a cell another than its neighbours, and what its method was given."""
    names = ("method", "network", "dataset", "seed", "train_rows")
    # A random split of the coauthor graphs is what every record was made on before there was the paper's
    data = {name: value for name, value in cell.data.items() if (name, value) != ("split", "random")}
    return {name: cell.settings[name] for name in names if name in cell.settings} | cell.given | data


def recorded(experiment: Experiment, kept: dict[str, Any]) -> Evidence:
    """What a kept record says of an experiment's cells; those with other settings than now are missing.

    Only accuracies by iteration are there, at the iterations that records show.
    """
    stored = {cell["name"]: cell for cell in kept.get("cells", [])}
    wanted = cells(experiment, "cpu")
    runs = {
        cell.name: _run_of(cell, stored[cell.name])
        for cell in wanted
        if cell.name in stored and stored[cell.name]["settings"] == plain(shown_settings(cell))
    }
    return Evidence(tuple(wanted), runs, {})


def _run_of(cell: Cell, kept: dict[str, Any]) -> Run:
    by_epoch = {int(k): value for k, value in kept.get("test_accuracy", {}).items()}
    columns: dict[str, list[float | None]] = {
        "iteration": [*map(float, by_epoch)],
        "val_accuracy": [*by_epoch.values()],
    }
    if by_epoch and kept.get("train_accuracy") is not None:
        columns["train_accuracy"] = [*[None] * (len(by_epoch) - 1), kept["train_accuracy"]]
    machine = {"device": kept.get("device", "unknown")}
    return Run(cell.name, cell.settings, kept.get("status", ""), "", columns, None, (), machine)


def merged(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Both records' cells, those of the new one in the place of those of the same name."""
    if old is None:
        return new
    cells = {cell["name"]: cell for cell in (*old["cells"], *new["cells"])}
    return old | new | {"cells": list(cells.values())}


def _shown(run: Run, column: str, digits: int | None) -> dict[str, float]:
    values = by_iteration(run, column)
    kept = {*SHOWN, max(values, default=0)}
    return {
        str(k): value if digits is None else round(value, digits) for k, value in values.items() if k in kept
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
