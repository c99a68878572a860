"""The cells of an experiment: every data set with every method, every point of the grid and every seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from dladmm.compare.cells import defaults, plain
from dladmm.engine.options import TrainOptions, make_options
from dladmm.experiments.gcn_convergent import SETTINGS
from dladmm.reproduce.experiment import Experiment
from dladmm.solvers.subproblems import SubproblemOptions

ACTIVATION, LOSS, DTYPE = "relu", "cross_entropy", "float32"
"""Of every network in the paper."""


@dataclass(frozen=True)
class Cell:
    """One run: its name, the data it needs, and what the front door is told. ``settings`` is what is written down."""

    name: str
    dataset: str
    data: dict[str, Any]
    rows: int | None
    hidden: tuple[int, ...]
    trainer: str
    seed: int
    max_iter: int
    diagnostics_every: int | None
    options: dict[str, Any]
    settings: dict[str, Any]


def cells(experiment: Experiment, device: str) -> list[Cell]:
    """All cells, in the order in which they run; ``device`` belongs to the settings of what is timed or weighed."""
    return [] if experiment.kind == "data" else list(_cells(experiment, device))


def _cells(e: Experiment, device: str) -> Iterator[Cell]:
    for dataset in e.datasets:
        axes = {
            name: values[dataset] if isinstance(values, dict) else values for name, values in e.grid.items()
        }
        for method, point in product(e.methods, product(*axes.values())):
            for seed in range(e.seeds_of(method)):
                yield _cell(e, dataset, method, dict(zip(axes, point, strict=True)), seed, device)


def _cell(e: Experiment, dataset: str, method: str, point: dict[str, Any], seed: int, device: str) -> Cell:
    options = _options(e, dataset, method) | {
        "eps_abs": 0.0,
        "eps_rel": 0.0,
    }  # for as many epochs as the paper
    trainer = options.pop("trainer", method)
    max_iter = options.pop("max_iter", e.max_iter)
    if "rho" in point:
        options["rho"] = point["rho"]
    hidden = (point["neurons"],) * e.layers if "neurons" in point else e.hidden
    rows = point.get("samples", e.rows)
    data = e.data | {name: point[name] for name in ("degree",) if name in point}
    settings = {
        "experiment": e.id,
        "method": method,
        "network": e.network,
        "dataset": dataset,
        "seed": seed,
        "hidden": list(hidden),
        "activation": ACTIVATION,
        "loss": LOSS,
        "max_iter": max_iter,
        "dtype": DTYPE,
        **({} if rows is None else {"train_rows": rows}),
        **data,
        **(_resolved(options) if trainer in ("dladmm", "accelerated") else defaults(trainer, e.network)),
        **options,
        **({"device": device} if e.kind in ("time", "memory") else {}),
    }
    shown = [f"{name}-{value:g}" for name, value in point.items()]
    every = max_iter if e.kind in ("time", "memory") else min(e.diagnostics_every or max_iter, max_iter)
    return Cell(
        "-".join([dataset, method, *shown, str(seed)]),
        dataset,
        data,
        rows,
        tuple(hidden),
        trainer,
        seed,
        max_iter,
        every,
        options,
        plain(settings),
    )


def _options(e: Experiment, dataset: str, method: str) -> dict[str, Any]:
    """What the method is told; TOML has no None, so "none" stands for it."""
    options = {key: value for key, value in e.methods[method].items() if key != "seeds"}
    if options.pop("settings_of", None):
        known = {key: value for key, value in SETTINGS[dataset.replace("_", "-")].items() if key != "hidden"}
        if e.scale == "quick":
            known["max_iter"] = min(known["max_iter"], e.max_iter)
        options = known | options
    if method == "accelerated":
        options = {"mode": "accelerated"} | options
    return {key: None if value == "none" else value for key, value in options.items()}


def _resolved(options: dict[str, Any]) -> dict[str, Any]:
    """The library's own settings behind those that were given: when they change, a cell is another cell."""
    known = {name: value for name, value in options.items() if name in _FIELDS}
    if "mu" in options:
        known["nu"] = options["mu"]
    full = asdict(make_options(options.get("preset", "default"), **known))
    full |= full.pop("subproblems")
    skipped = ("max_iter", "diagnostics_every")
    return {name: value for name, value in full.items() if value is not None and name not in skipped}


_FIELDS = {*TrainOptions.__dataclass_fields__, *SubproblemOptions.__dataclass_fields__} - {"subproblems"}
