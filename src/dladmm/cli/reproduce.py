"""``dladmm reproduce``: runs the paper's experiments with :mod:`dladmm.reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dladmm.cli.train import DataDir, Device, Json


def reproduce(
    experiment: Annotated[str, typer.Argument(help="An ID of --list, several with commas, or all.")] = "all",
    scale: Annotated[str, typer.Option(help="full: the paper's sizes; quick: small ones.")] = "full",
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; what is done there is not done again.")
    ] = None,
    data_dir: DataDir = None,
    only: Annotated[str | None, typer.Option(help="Only cells whose names match, as 'cora-*'.")] = None,
    share: Annotated[
        str, typer.Option(help="I/N: every N-th cell, so that N commands with one --out divide the work.")
    ] = "1/1",
    minutes: Annotated[
        float | None, typer.Option(help="Begin no further cell after so many minutes.")
    ] = None,
    redo: Annotated[
        bool, typer.Option("--redo", help="Run cells again whose settings have changed.")
    ] = False,
    collect: Annotated[
        bool,
        typer.Option(
            "--collect", help="Run nothing: sum up the cells that are in OUT, wherever they were made."
        ),
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    json_: Json = False,
) -> None:
    """Run the paper's experiments and put each result beside the paper's own figure.

    Example: dladmm reproduce mlp-accuracy --scale quick --out runs/quick
    """
    from dladmm.reproduce.command import run

    code = run(
        experiment, scale, device=device or "auto", out=out, data_dir=None if data_dir is None else str(data_dir),
        only=only, share=share, minutes=minutes, redo=redo, collect=collect, list_=list_, json_=json_,
    )  # fmt: skip
    raise typer.Exit(code)
