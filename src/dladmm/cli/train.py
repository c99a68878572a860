"""``dladmm train mlp``, ``dladmm train gcn`` and ``dladmm predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Train a network on a data set or on your own files.", no_args_is_help=True)

Dataset = Annotated[str | None, typer.Option(help="A data set by name (see: dladmm datasets list).")]
Npz = Annotated[
    Path | None,
    typer.Option(help="An npz file with the arrays x and y (graphs: also edge_index, train_mask)."),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data sets' files; else $DLADMM_DATA, else the cache.")
]
Hidden = Annotated[str | None, typer.Option(help="Widths of the hidden layers, as 100,100.")]
Activation = Annotated[
    str | None, typer.Option(help="relu, leaky_relu, tanh, sigmoid, sign, step, quantised, ...")
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="binary (+1 and -1), ternary, or a number of bits: all layers but the last; with commas one per layer. "
        "ternary:20 has at most 20 weights per unit, real:20 too."
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        help="cross_entropy, squared, huber, absolute, poisson, binary_logistic, squared_hinge (by the task)."
    ),
]
Penalty = Annotated[
    str | None, typer.Option(help="Penalty on the weights: l2:0.1, l1:0.01, none, ... (the mode's own).")
]
Mode = Annotated[
    str | None,
    typer.Option(
        help="auto (by the data, docs/defaults.md), cross-fitted (tables), accelerated, streaming (mini-batches), "
        "or convergent (the paper's algorithm)."
    ),
]
Preset = Annotated[
    str | None, typer.Option(help="default; paper: the paper's own settings; authors: their GCN script's.")
]
Rho = Annotated[
    float | None, typer.Option(help="Weight of the hard constraint; above 2H the theory covers the run.")
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="classification or regression (auto: numbers with a fraction, or many different ones, are regression).",
    ),
]
MaxIter = Annotated[int | None, typer.Option(help="Iterations at most (200).")]
MaxPasses = Annotated[
    int | None,
    typer.Option(
        help="Passes over the rows at most (cross-fitted 60, streaming 10 to 100), or iterations (200)."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Rows of a mini-batch, where the mode has any (32 to 512, by the number of rows)."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the initial weights (0).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str | None, typer.Option(help="float32 or float64 (by the mode and the number of rows).")]
MaxMemory = Annotated[
    str | None,
    typer.Option(help="What the run may take above the data, as 2GB: kept, or refused before it begins."),
]
Out = Annotated[Path | None, typer.Option(help="Folder for the run (a new one under runs/).")]
Resume = Annotated[Path | None, typer.Option(help="Folder of an earlier run to continue.")]
Every = Annotated[int, typer.Option(help="Iterations between two checkpoints.")]
Timeout = Annotated[
    float, typer.Option(help="Under torchrun: seconds after which a silent rank is given up.")
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Print calls, bytes and time of communication between ranks.")
]
Csv = Annotated[
    Path | None,
    typer.Option(help="A table with a header line (CSV, also gzip): numbers and text, gaps may be empty."),
]
Target = Annotated[str | None, typer.Option(help="The column of --csv to predict.")]
Drop = Annotated[
    list[str] | None, typer.Option(help="Columns of --csv not to learn from, with commas or repeated.")
]
Id = Annotated[
    list[str] | None,
    typer.Option(
        "--id", help="Columns of --csv that identify rows: not learned from, kept with predictions."
    ),
]
Separator = Annotated[
    str | None, typer.Option(help="What parts the cells of --csv: , ; | or tab (recognised).")
]
Config = Annotated[Path | None, typer.Option(help="TOML file with these settings; flags override it.")]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--certificate", help="With --mode convergent: a file for dladmm verify, and FILE.npz with its data."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


@app.command("mlp")
def train_mlp(
    dataset: Dataset = None,
    csv: Csv = None,
    target: Target = None,
    drop: Drop = None,
    id_: Id = None,
    separator: Separator = None,
    npz: Npz = None,
    data_dir: DataDir = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of --csv or --npz rows kept for testing (0.2).")
    ] = None,
    hidden: Hidden = None,
    activation: Activation = None,
    weights: Weights = None,
    task: TaskOption = None,
    loss: LossOption = None,
    regularizer: Penalty = None,
    mode: Mode = None,
    preset: Preset = None,
    rho: Rho = None,
    nu: Annotated[float | None, typer.Option(help="Weight of the relaxed constraints (1).")] = None,
    batch_size: BatchSize = None,
    max_iter: MaxPasses = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    max_memory: MaxMemory = None,
    out: Out = None,
    resume: Resume = None,
    config: Config = None,
    checkpoint_every: Every = 10,
    timeout: Timeout = 300.0,
    profile: Profile = False,
    certificate: CertificateFile = None,
    json_: Json = False,
) -> None:
    """Train a multi-layer perceptron.

    Example: dladmm train mlp --dataset digits --hidden 100,100 --out runs/digits
    """
    flags = {
        "network": "mlp", "dataset": dataset, "csv": csv, "target": target, "drop": drop, "id": id_,
        "separator": separator, "npz": npz, "data_dir": data_dir, "test_fraction": test_fraction, "hidden": hidden,
        "activation": activation, "weights": weights, "task": task, "loss": loss, "regularizer": regularizer,
        "mode": mode, "preset": preset, "rho": rho, "nu": nu, "batch_size": batch_size, "max_iter": max_iter,
        "seed": seed, "device": device, "dtype": dtype, "max_memory": max_memory, "out": out,
    }  # fmt: skip
    _run(flags, resume, config, json_, (checkpoint_every, timeout, profile, certificate))


@app.command("gcn")
def train_gcn(
    dataset: Dataset = None,
    npz: Npz = None,
    data_dir: DataDir = None,
    hidden: Hidden = None,
    activation: Activation = None,
    loss: LossOption = None,
    regularizer: Penalty = None,
    rows: Annotated[
        str | None,
        typer.Option(help="all: the paper's problem; train, fixed: only labelled rows are variables."),
    ] = None,
    mode: Mode = None,
    preset: Preset = None,
    rho: Rho = None,
    mu: Annotated[float | None, typer.Option(help="Weight of the relaxed constraints (1).")] = None,
    max_iter: MaxIter = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    resume: Resume = None,
    config: Config = None,
    checkpoint_every: Every = 10,
    timeout: Timeout = 300.0,
    profile: Profile = False,
    certificate: CertificateFile = None,
    json_: Json = False,
) -> None:
    """Train a graph convolutional network on the labelled nodes of a graph.

    Example: dladmm train gcn --dataset karate --hidden 16 --max-iter 50
    """
    flags = {
        "network": "gcn", "dataset": dataset, "npz": npz, "data_dir": data_dir, "hidden": hidden,
        "activation": activation, "loss": loss, "regularizer": regularizer, "rows": rows, "mode": mode,
        "preset": preset, "rho": rho, "nu": mu, "max_iter": max_iter, "seed": seed, "device": device,
        "dtype": dtype, "out": out,
    }  # fmt: skip
    _run(flags, resume, config, json_, (checkpoint_every, timeout, profile, certificate))


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished MLP run.")],
    csv: Annotated[Path, typer.Option(help="A CSV file with the columns the network was trained with.")],
    out: Annotated[Path | None, typer.Option(help="Where the predictions go (FILE.predictions.csv).")] = None,
    separator: Separator = None,
    json_: Json = False,
) -> None:
    """Predict the rows of a CSV file with the network of a run.

    Example: dladmm predict runs/own --csv new.csv
    """
    from dladmm.cli.run_table import predict_csv

    report = predict_csv(run, csv, out, separator)
    if json_:
        typer.echo(json.dumps(report))
    else:
        typer.echo(f"Wrote {report['rows']} predictions to {report['file']}.")


def _run(
    flags: dict[str, Any],
    resume: Path | None,
    config: Path | None,
    as_json: bool,
    execution: tuple[int, float, bool, Path | None],
) -> None:
    from dladmm.api.choosing import CROSS_FITTED
    from dladmm.base.errors import InputError
    from dladmm.cli.result_table import print_result
    from dladmm.cli.run_config import merged, resumed
    from dladmm.cli.run_train import Execution, run_training

    flags = run_flags(flags)
    if resume is not None and config is not None:
        raise InputError("--resume takes its settings from the run's folder; leave --config out.")
    settings = merged(config, flags) if resume is None else resumed(resume, flags)
    run = run_training(settings, resume is not None, Execution(*execution))
    if run.rank > 0:  # only rank 0 prints
        raise typer.Exit(run.exit_code)
    if as_json:
        metrics = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
        typer.echo(json.dumps({"run": str(run.folder)} | metrics))
        if run.useless is not None:
            typer.echo(f"WARNING: {run.useless}", err=True)
    else:
        data = settings.dataset or settings.csv or settings.npz
        held = "unseen" if run.config.mode == CROSS_FITTED else "test"
        print_result(run.result, f"dlADMM, {settings.network} on {data}", run.standing, held)
        typer.echo(
            f"Wrote the run to {run.folder} (config.toml, history.csv, metrics.json, model.safetensors)."
        )
    if run.exit_code > 128:
        typer.echo(
            f"Interrupted. Continue with: dladmm train {settings.network} --resume {run.folder}", err=True
        )
    raise typer.Exit(run.exit_code)


def run_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags converted to the types of the settings of a run: paths to str, widths to a tuple."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()}
    for name in ("drop", "id"):
        # Typer gives an empty list for an option that is not there
        settings[name] = settings.get(name) or None
    if isinstance(settings["hidden"], str):
        settings["hidden"] = _widths(settings["hidden"])
    return settings


def _widths(text: str) -> tuple[int, ...]:
    from dladmm.base.errors import InputError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"--hidden must be whole numbers separated by commas, got {text!r}.") from error
