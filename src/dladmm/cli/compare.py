"""``dladmm compare``: trains with several methods on the same data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dladmm.cli.train import (
    Activation,
    Config,
    Csv,
    DataDir,
    Dataset,
    Device,
    Drop,
    Dtype,
    Hidden,
    Id,
    Json,
    MaxIter,
    Npz,
    Penalty,
    Separator,
    Target,
    TaskOption,
    run_flags,
)

Methods = Annotated[
    str | None,
    typer.Option(
        help="With commas, some of dladmm, accelerated, streaming, cross-fitted, gd, adagrad, adadelta, adam, muon, "
        "lbfgs, admm (all, and adam:batch=32); with settings as adam:batch=256:lr=0.002:schedule=linear:scaled=yes."
    ),
]
Passes = Annotated[
    int | None,
    typer.Option(help="Passes over the data of methods with mini-batches (10 to 100 by the number of rows)."),
]
Levels = Annotated[
    str | None,
    typer.Option(help="Test accuracies (0.9,0.95,0.97) or R^2 (0.5,0.8) to say the time of, as 0.95,0.98."),
]
Rates = Annotated[
    list[str] | None,
    typer.Option("--lr", help="Another learning rate than the paper's, as adam=0.01; once for each method."),
]
Seeds = Annotated[int | None, typer.Option(help="Initialisations of each method: seeds 0 to N - 1 (1).")]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the comparison; what is done there is not done again.")
]


def compare(
    network: Annotated[str, typer.Argument(help="mlp or gcn.")],
    dataset: Dataset = None,
    csv: Csv = None,
    target: Target = None,
    drop: Drop = None,
    id_: Id = None,
    separator: Separator = None,
    npz: Npz = None,
    task: TaskOption = None,
    data_dir: DataDir = None,
    methods: Methods = None,
    lr: Rates = None,
    seeds: Seeds = None,
    passes: Passes = None,
    levels: Levels = None,
    hidden: Hidden = None,
    activation: Activation = None,
    regularizer: Penalty = None,
    max_iter: MaxIter = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Train with several methods side by side: table, figures, and a run folder for each method and seed.

    Classes and numbers can be predicted; which is decided as by: dladmm train.

    Example: dladmm compare mlp --dataset digits --methods streaming,adam:batch=128,adam --seeds 3
    """
    flags = {
        "network": network, "dataset": dataset, "csv": csv, "target": target, "drop": drop, "id": id_,
        "separator": separator, "npz": npz, "task": task, "data_dir": data_dir, "hidden": hidden,
        "activation": activation, "regularizer": regularizer, "max_iter": max_iter, "device": device, "dtype": dtype,
    }  # fmt: skip
    given = {
        "methods": None if methods is None else [name.strip() for name in methods.split(",") if name.strip()],
        "seeds": seeds,
        "passes": passes,
        "levels": None if levels is None else _levels(levels),
    }
    _run(flags, given, config, _rates(lr or []), out, json_)


def _run(
    flags: dict[str, Any],
    given: dict[str, Any],
    toml: Path | None,
    rates: dict[str, dict[str, Any]],
    out: Path | None,
    as_json: bool,
) -> None:
    from dladmm.base.atomic import replacing
    from dladmm.cli.run_config import merged, read_toml
    from dladmm.compare.comparison import Comparison, run_comparison, usual_methods
    from dladmm.compare.table import show, summary

    settings = {} if toml is None else read_toml(toml)
    own = _of_file({name: settings.pop(name) for name in given if name in settings}, toml)
    own |= {name: value for name, value in given.items() if value is not None}
    known = {name: value for name, value in run_flags(flags).items() if value is not None}
    config = merged(None, settings | known)
    if out is None and config.out is not None:
        out = Path(config.out)
    names = own["methods"] if "methods" in own else usual_methods(config)
    seeds, targets = own.get("seeds", 1), own.get("levels")
    comparison = Comparison(config, tuple(names), seeds, rates, own.get("passes"))
    if not as_json:
        _announce(comparison)
    folder = out or Path(f"runs/compare-{config.network}-{comparison.source}")
    runs = run_comparison(comparison, folder)
    if runs is None:
        typer.echo("Interrupted. The same command goes on with the cells that are missing.", err=True)
        raise typer.Exit(130)
    table: dict[str, Any] = {
        "network": config.network,
        "dataset": comparison.source,
        "seeds": seeds,
        "task": asdict(comparison.problem.task),
        "folder": str(folder),
        "methods": summary(runs, targets),
        "cells": [
            {"folder": f"cells/{run.name}", "settings": run.settings, "status": run.status} for run in runs
        ],
    }
    written = {key: value for key, value in table.items() if key != "folder"}
    with replacing(folder / "comparison.json") as file:
        file.write((json.dumps(written, indent=2, allow_nan=False) + "\n").encode())
    if as_json:
        typer.echo(json.dumps(table, allow_nan=False))
    else:
        show(table["methods"], f"{config.network} on {comparison.source}, {seeds} seed{'s' * (seeds != 1)}")
        typer.echo(f"Wrote {folder} (cells, figures, comparison.json). A page of it: dladmm report {folder}")


def _announce(comparison: Any) -> None:
    """Say on standard error what the data are, and what was decided."""
    from dladmm.cli.run_job import OTHER_TASK
    from dladmm.tables.content import printable

    problem = comparison.problem
    if comparison.config.network != "mlp":
        return
    task, notes = problem.task, problem.data.notes
    asked = comparison.config.task != "auto" or comparison.config.dataset is not None
    why = "" if asked else f" ({task.why}; --task {OTHER_TASK[task.kind]} for the other)"
    lines = [f"data       {problem.data.describe()}", *(f"table      {printable(note)}" for note in notes)]
    typer.echo("\n".join([*lines, f"task       {task.kind}, loss {task.loss}{why}"]), err=True)


def _of_file(own: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """What a settings file says of the comparison itself, checked; numbers are checked where they are used."""
    from dladmm.base.errors import InputError

    methods, levels = own.get("methods", []), own.get("levels", [0.5])
    if not isinstance(methods, list) or not all(isinstance(name, str) for name in methods):
        raise InputError(f'{file}: methods must be a list such as ["streaming", "adam:batch=32"].')
    numbers = isinstance(levels, list) and all(type(level) in (int, float) for level in levels)
    if not numbers or not levels or not all(0 < level <= 1 for level in levels):
        raise InputError(f"{file}: levels must be a list of shares between 0 and 1, as [0.95, 0.98].")
    return own


def _levels(text: str) -> tuple[float, ...]:
    from dladmm.base.errors import InputError

    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or not all(0 < level <= 1 for level in found):
        raise InputError(f"--levels must be shares between 0 and 1, as 0.95,0.98, got {text!r}.")
    return found


def _rates(given: list[str]) -> dict[str, dict[str, Any]]:
    """``adam=0.01`` and the like; the value is checked where it is used."""
    from dladmm.base.errors import InputError

    rates: dict[str, dict[str, Any]] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            rates[name.strip()] = {"lr": float(value)}
        except ValueError as error:
            raise InputError(f"--lr must look like adam=0.01, got {text!r}.") from error
    return rates
