"""The ``dladmm`` command; errors are printed on standard error without a traceback."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dladmm._version import __version__
from dladmm.base.errors import DladmmError
from dladmm.cli import compare, datasets, evaluate, report, reproduce, train, verify
from dladmm.cli.ranks import check_command, rank_of_environment

app = typer.Typer(
    name="dladmm",
    help="Train neural networks with ADMM instead of back-propagation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(train.app, name="train")
app.command("compare")(compare.compare)
app.command("predict")(train.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(evaluate.export)
app.command("report")(report.report)
app.command("verify")(verify.verify)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(datasets.app, name="datasets")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train neural networks with ADMM instead of back-propagation."""
    if "WORLD_SIZE" in os.environ:  # set by torchrun and other launchers
        check_command(context.invoked_subcommand)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/demo"),
) -> None:
    """Train on embedded data, show the curve in numbers and the certificate in words.

    Example: dladmm demo --out runs/first
    """
    from dladmm.cli.demo import run

    results = run(out)
    raise typer.Exit(0 if all(result.status.ok for result in results) else 1)


def main() -> None:
    """Entry point: an error is printed as a line or two on standard error; --debug shows the traceback.

    Exit code 2 for errors the user can fix (input, files, folders, a full disk), 1 for a fault of the library.
    """
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        message, code = _message_and_code(error)
        rank = rank_of_environment()
        if "--json" in sys.argv and rank == 0:
            typer.echo(json.dumps({"error": message}))
        typer.echo(f"dladmm{f' (rank {rank})' if rank else ''}: {message}", err=True)
        sys.exit(code)


def _message_and_code(error: Exception) -> tuple[str, int]:
    # By its name: importing the class would import torch
    if isinstance(error, DladmmError) and type(error).__name__ == "DistributedError":
        return str(error), 1
    if isinstance(error, DladmmError):
        return str(error), 2
    if isinstance(error, OSError):
        return f"{error}; check the path, its permissions and the free space.", 2
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
        return "out of memory; take fewer rows, a narrower network, or --max-memory.", 2
    return f"unexpected {type(error).__name__}: {error}. Run it again with --debug and report the fault.", 1


if __name__ == "__main__":
    main()
