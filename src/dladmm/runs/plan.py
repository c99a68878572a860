"""The cells of an experiment: every data set with every method, every point of the grid and every seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from dladmm import baselines
from dladmm.engine.options import TrainOptions, make_options
from dladmm.runs.chosen import chosen_settings
from dladmm.runs.experiment import OF_A_METHOD, Experiment, Kind
from dladmm.solvers.subproblems import SubproblemOptions

LOSS, DTYPE = "cross_entropy", "float32"
"""Of every network in the paper."""


@dataclass(frozen=True)
class Cell:
    """One run: its name, the data it needs, and what :func:`dladmm.train` or a baseline is given.

    ``settings`` is everything that makes the run what it is, as its metrics.json has it; ``given`` is the part of it
    that the experiment names, for people to read.
    """

    name: str
    network: str
    dataset: str
    trainer: str
    seed: int
    hidden: tuple[int, ...]
    max_iter: int
    options: dict[str, Any]
    settings: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "curves"
    activation: str = "relu"
    loss: str = LOSS
    dtype: str = DTYPE
    diagnostics_every: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    held_out: int | None = None
    shuffle: bool = False


def cells(experiment: Experiment, device: str) -> list[Cell]:
    """All cells, in the order in which they run; ``device`` belongs to the settings of what is timed or weighed."""
    return [] if experiment.kind == "data" else list(_cells(experiment, device))


def _cells(experiment: Experiment, device: str) -> Iterator[Cell]:
    for dataset in experiment.datasets:
        e = experiment.on(dataset)
        axes = {
            name: values[dataset] if isinstance(values, dict) else values for name, values in e.grid.items()
        }
        methods = [name for name, about in e.methods.items() if dataset in about.get("datasets", e.datasets)]
        for method, point in product(methods, product(*axes.values())):
            for seed in range(e.seeds_of(method)):
                yield _cell(e, dataset, method, dict(zip(axes, point, strict=True)), seed, device)


def _cell(e: Experiment, dataset: str, method: str, point: dict[str, Any], seed: int, device: str) -> Cell:
    about = e.methods[method]
    options = _options(e, dataset, method)
    trainer = options.pop("trainer", method)
    max_iter = options.pop("max_iter", e.max_iter)
    if "rho" in point:
        options["rho"] = point["rho"]
        if e.one_weight:
            options["mu" if e.network == "gcn" else "nu"] = point["rho"]
    hidden = (point["neurons"],) * e.layers if "neurons" in point else tuple(about.get("hidden", e.hidden))
    activation = about.get("activation", e.activation)
    given = {"hidden": list(hidden), "activation": activation, **options, "max_iter": max_iter}
    if "stop" in about:
        given["stop"] = about["stop"]
    if not about.get("stop", e.stop):  # for as many iterations as the experiment says
        options |= {"eps_abs": 0.0, "eps_rel": 0.0}
    rows = point.get("samples", e.rows)
    data = e.data | {name: point[name] for name in ("degree",) if name in point}
    data |= {"seed": seed} if e.split_by_seed else {}
    settings = {
        "experiment": e.id,
        "method": method,
        "network": e.network,
        "dataset": dataset,
        "seed": seed,
        "hidden": list(hidden),
        "activation": activation,
        "loss": LOSS,
        "max_iter": max_iter,
        "dtype": DTYPE,
        **({} if rows is None else {"train_rows": rows}),
        **({} if e.held_out is None else {"held_out": e.held_out}),
        **({"shuffle": True} if e.shuffle else {}),
        **data,
        **(
            defaults(trainer, e.network, batches="batch_size" in options)
            if trainer in baselines.METHODS
            else _resolved(options)
            if trainer in ("dladmm", "accelerated", "streaming")
            else {}
        ),
        **options,
        **({"device": device} if e.kind in ("time", "memory") else {}),
    }
    shown = [f"{name}-{value:g}" for name, value in point.items()]
    every = max_iter if e.kind in ("time", "memory") else min(e.diagnostics_every or max_iter, max_iter)
    return Cell(
        name="-".join([dataset, method, *shown, str(seed)]),
        network=e.network,
        dataset=dataset,
        trainer=trainer,
        seed=seed,
        hidden=hidden,
        max_iter=max_iter,
        options=options,
        settings=plain(settings),
        given=plain(given),
        kind=e.kind,
        activation=activation,
        diagnostics_every=every,
        data=data,
        rows=rows,
        held_out=e.held_out,
        shuffle=e.shuffle,
    )


def _options(e: Experiment, dataset: str, method: str) -> dict[str, Any]:
    """The method's options; TOML has no None, so "none" stands for it. ``chosen`` takes those of chosen.toml first."""
    options = {key: value for key, value in e.methods[method].items() if key not in OF_A_METHOD}
    if options.pop("chosen", False):
        known = {key: value for key, value in chosen_settings(dataset).items() if key != "hidden"}
        if e.scale == "quick":
            known["max_iter"] = min(known["max_iter"], e.max_iter)
        options = known | options
    if options.get("trainer", method) in ("accelerated", "streaming"):
        options = {"mode": options.get("trainer", method)} | options
    return {key: None if value == "none" else value for key, value in options.items()}


def _resolved(options: dict[str, Any]) -> dict[str, Any]:
    """The library's own settings behind those that were given: when they change, a cell is another cell."""
    known = {name: value for name, value in options.items() if name in _FIELDS}
    if "mu" in options:
        known["nu"] = options["mu"]
    full = asdict(make_options(options.get("preset", "default"), **known))
    full |= full.pop("subproblems")
    skipped = {"max_iter", "diagnostics_every"}
    skipped |= {name for name, value in _YOUNGER.items() if full.get(name) == value}
    if full.get("rho_rule") == "authors":
        full["raises"] = "rho, nu"  # cells of before it raised nu are others
    if options.get("mode") != "streaming":  # its settings change no other mode, and cells are older than it
        skipped.add("streaming")
    return {name: value for name, value in full.items() if value is not None and name not in skipped}


_YOUNGER = {"init_rule": "he", "w_penalty": "prox", "sweep": "both"}
"""Options that stored cells are older than, with the value that changes nothing."""

_FIELDS = {*TrainOptions.__dataclass_fields__, *SubproblemOptions.__dataclass_fields__} - {"subproblems"}


def defaults(trainer: str, network: str, *, batches: bool = False) -> dict[str, Any]:
    """The settings that a baseline has where none are given; with ``batches`` those it has with mini-batches."""
    from dladmm.baselines.optimizers import BATCH_RATES
    from dladmm.baselines.taylor import BETA, GAMMA, RHO, WARMUP

    if batches and trainer in BATCH_RATES:
        return {"lr": BATCH_RATES[trainer].lr, "reduction": BATCH_RATES[trainer].reduction}
    if trainer in baselines.LEARNING_RATES:
        rate = baselines.LEARNING_RATES[trainer]["gcn" if network == "gcn" else "mlp"]
        return {"lr": rate.lr, "reduction": rate.reduction}
    return {"rho": RHO, "beta": BETA, "gamma": GAMMA, "warmup": WARMUP} if trainer == "admm" else {}


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in JSON's own types, as they come back from a file."""
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read
