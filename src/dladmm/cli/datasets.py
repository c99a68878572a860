"""``dladmm datasets list``, ``fetch NAME`` and ``verify [NAME]``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dladmm.base.errors import DladmmError, InputError
from dladmm.datasets._check import DAMAGED, MISSING, FileReport, overview, verify
from dladmm.datasets._download import fetch
from dladmm.datasets._progress import reporter
from dladmm.datasets._registry import DATASETS, dataset

app = typer.Typer(
    name="datasets",
    help="The data sets: which are there, fetch one, check their files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="A folder to use before $DLADMM_DATA and the user's cache folder.", show_default=False),
]
Name = Annotated[str, typer.Argument(help="A name from `dladmm datasets list`.", show_default=False)]


@app.command("list", epilog="Example: dladmm datasets list --data-dir ~/data")
def list_command(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show every data set: size, licence, present or not."""
    with _errors_as_lines(as_json):
        rows = overview(data_dir=data_dir)
        if as_json:
            _print_json({"datasets": rows})
        else:
            _print_table(rows)


@app.command("fetch", epilog="Example: dladmm datasets fetch cora")
def fetch_command(name: Name, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Download what is missing or damaged of a data set; a partial download is continued."""
    with _errors_as_lines(as_json):
        with reporter() as progress:
            paths = fetch(name, data_dir=data_dir, progress=progress)
        if as_json:
            _print_json({"dataset": dataset(name).name, "files": [str(path) for path in paths]})
        else:
            print(f"{dataset(name).name}: {_files(len(paths))} in {paths[0].parent}")


@app.command("verify", epilog="Example: dladmm datasets verify mnist")
def verify_command(
    name: Annotated[
        str | None, typer.Argument(help="One data set; without it, all.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Recompute the checksums. A damaged file fails; so does a missing one of the data set named."""
    with _errors_as_lines(as_json):
        if name is not None and dataset(name).embedded:
            raise InputError(f"name is {name!r}, which is embedded or generated: it has no files to verify")
        reports = verify(name, data_dir=data_dir)
    bad = [report for report in reports if report.state == DAMAGED or (name and report.state == MISSING)]
    if as_json:
        _print_json({"ok": not bad, "files": [report.to_dict() for report in reports]})
    else:
        for line in _verdicts(reports):
            print(line)
    if bad:
        names = sorted({report.dataset for report in bad})
        _print_error(
            f"{len(bad)} of {_files(len(reports))} damaged or missing; mend with: "
            + ", ".join(f"dladmm datasets fetch {each}" for each in names)
        )
        raise typer.Exit(2)


@contextmanager
def _errors_as_lines(as_json: bool) -> Iterator[None]:
    """Print a :class:`DladmmError` as a line or two on stderr and exit with code 2."""
    try:
        yield
    except DladmmError as error:
        if as_json:
            _print_json({"error": str(error)})
        _print_error(str(error))
        raise typer.Exit(2) from error


def _print_error(message: str) -> None:
    print(f"dladmm: {message}", file=sys.stderr)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def _verdicts(reports: list[FileReport]) -> Iterator[str]:
    """One line per data set that is complete or absent, else one line per file."""
    for name in DATASETS:
        mine = [report for report in reports if report.dataset == name]
        states = {report.state for report in mine}
        if len(states) == 1 and DAMAGED not in states:
            yield f"{name:17} {states.pop():8} {_files(len(mine))}"
        else:
            yield from (
                f"{name:17} {report.state:8} {report.file} {report.problem}".rstrip() for report in mine
            )


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "kind", "size", "licence", "present", box=None, pad_edge=False)
    for row in rows:
        size = f"{row['bytes'] / 1e6:.1f} MB" if row["bytes"] else "-"
        present = "embedded" if row["embedded"] else "yes" if row["present"] else "no"
        table.add_row(row["name"], row["kind"], size, row["licence"], present)
    Console().print(table)
    if not all(row["present"] for row in rows):
        print("Fetch one with: dladmm datasets fetch NAME", file=sys.stderr)


if __name__ == "__main__":
    app()
