"""Run folders made by hand, in the form ``runs.write_run`` leaves them: small, exact, and quick to damage."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

CERTIFICATE = "Certified: everything the theory promises was seen.\n  H = 0.5 and rho = 1.5 > 2H = 1.\n"
MACHINE = {"python": "3.11.7", "torch": "2.13.0", "cpu": "some processor", "cpu_count": 2, "device": "cpu"}


def history(n: int = 12, offset: float = 0.0, **changes: list[Any]) -> dict[str, list[Any]]:
    """Columns of plain shapes; ``offset`` tells runs apart."""
    steps = range(1, n + 1)
    columns: dict[str, list[Any]] = {
        "iteration": list(steps),
        "seconds": [0.5 * k for k in steps],
        "lagrangian": [1000.0 / k + offset for k in steps],
        "objective": [900.0 / k + offset for k in steps],
        "loss": [2.0 / k + offset for k in steps],
        "primal_residual": [10.0**-k for k in steps],
        "stationarity": [None if k % 3 else 1.0 / k for k in steps],
        "train_accuracy": [1 - 0.5 / k for k in steps],
        "val_accuracy": [0.9 - 0.5 / k - offset for k in steps],
    }
    return columns | changes


def make_run(
    folder: Path,
    columns: dict[str, list[Any]] | None = None,
    *,
    certificate: dict[str, Any] | str | None = "certified",
    status: str = "MAX_ITER",
    machine: dict[str, Any] | None = MACHINE,
    tested: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write a run folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = history() if columns is None else columns
    with (folder / "history.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    verdict = {"certified": True, "accelerated": False} if certificate == "certified" else certificate
    metrics = {
        "status": status, "message": "Stopped.", "iterations": len(columns["iteration"]),
        "settings": {"dataset": "digits", "seed": 0} | settings, "certificate": verdict, "machine": machine,
        "tested": tested,
    }  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    if verdict:
        (folder / "certificate.txt").write_text(CERTIFICATE, encoding="utf-8")
    return folder


def make_comparison(folder: Path, seeds: int = 3) -> Path:
    """Two methods with a few seeds each, as a comparison leaves them."""
    for seed in range(seeds):
        make_run(folder / "cells" / f"dladmm-{seed}", history(offset=0.01 * seed), seed=seed, rho=1.5)
        columns = history(10, offset=0.2 + 0.02 * seed)
        columns = {name: columns[name] for name in ("iteration", "seconds", "loss", "val_accuracy")}
        make_run(
            folder / "cells" / f"adam-{seed}", columns, method="adam", seed=seed, lr=0.01, certificate=None
        )
    return folder
