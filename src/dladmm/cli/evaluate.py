"""``dladmm evaluate`` and ``dladmm export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dladmm.cli.train import Json, Separator

Run = Annotated[Path, typer.Argument(help="The folder of a finished run.")]

NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "most_frequent_class": "always the most frequent class",
    "log_loss": "log loss",
    "auc": "area under the ROC curve",
    "r2": "R^2",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
}
"""What the measures are called in the table."""

SIZES = {
    "parameters": "parameters",
    "bytes": "bytes, weights of few levels as bits",
    "bit_operations": "bit operations per row",
    "additions": "additions per row",
    "multiplications": "multiplications per row",
}

MOST_CLASSES = 20
"""Classes up to which the confusion matrix is printed; ``--json`` has larger ones."""


def evaluate(
    run: Run,
    csv: Annotated[
        Path | None,
        typer.Option(help="A table with the columns of training and the target (the run's test rows)."),
    ] = None,
    separator: Separator = None,
    json_: Json = False,
) -> None:
    """Say how good the network of a run is: by its own test rows, or by the rows of a table.

    Example: dladmm evaluate runs/own --csv later.csv
    """
    from dladmm.cli.evaluating import evaluate_run

    found = evaluate_run(run, csv, separator)
    if json_:
        typer.echo(json.dumps(found, allow_nan=False))
    else:
        _print(found)


def export(
    run: Run,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx, torch-export (a program of torch.export), state-dict, packed, or packed-onnx (integer types).",
        ),
    ] = "onnx",
    packed: Annotated[
        bool,
        typer.Option("--packed", help="Bits and whole-numbered thresholds, and packed.py, which reads them."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The file to write (model.* in the run's folder).")] = None,
    json_: Json = False,
) -> None:
    """Write the network of a run for other programs: it takes rows as they are, scaling is part of it.

    Example: dladmm export runs/own --format torch-export --out price.pt2
    """
    from dladmm.cli.evaluating import export_run

    format_ = "packed" if packed else format_
    file = export_run(run, format_, out)
    if json_:
        typer.echo(json.dumps({"run": str(run), "format": format_, "file": str(file)}))
    else:
        typer.echo(f"Wrote {file}.")


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{found['run']} on {found['n_rows']:,} rows: {found['rows']}")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for key, name in NAMES.items():
        if found.get(key) is not None:
            table.add_row(name, f"{found[key]:.4f}" if abs(found[key]) < 1e4 else f"{found[key]:,.1f}")
    for key, count in found.get("network", {}).items():
        if count:
            table.add_row(SIZES[key], f"{count:,}")
    console.print(table)
    if "confusion" in found:
        if len(found["classes"]) <= MOST_CLASSES:
            console.print(_confusion(found["classes"], found["confusion"]))
        return
    pairs = Table(title="Predicted against true: means of tenths of the rows, by what was predicted")
    for heading in ("rows", "predicted", "true"):
        pairs.add_column(heading, justify="right")
    for part in found["predicted_against_true"]:
        pairs.add_row(str(part["rows"]), f"{part['predicted']:,.6g}", f"{part['true']:,.6g}")
    console.print(pairs)


def _confusion(classes: list[str], counts: list[list[int]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Confusion matrix: rows are what is true, columns what was predicted")
    table.add_column("true")
    for name in classes:
        table.add_column(Text(name), justify="right")
    for name, row in zip(classes, counts, strict=True):
        table.add_row(Text(name), *map(str, row))
    return table
