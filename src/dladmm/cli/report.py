"""``dladmm report``: writes a run, or a folder of runs, as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or a folder with runs at any depth.")],
    out: Annotated[Path | None, typer.Option(help="The page to write (report.html in the folder).")] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every figure as PNG and SVG beside the page.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
    ] = False,
) -> None:
    """Write one self-contained HTML page: curves, tables, certificate, settings, machine.

    Example: dladmm report runs/demo --out demo.html --figures
    """
    from dladmm.report import read_report, write_figures, write_page

    read = read_report(folder)
    page = folder / "report.html" if out is None else out
    drawn = write_figures(read, page.parent / f"{page.stem}-figures") if figures else []
    write_page(read, page)
    if json_:
        typer.echo(json.dumps({"page": str(page), "runs": len(read.runs), "figures": list(map(str, drawn))}))
    else:
        beside = f" and {len(drawn)} files of figures to {drawn[0].parent}" if drawn else ""
        typer.echo(f"Wrote {len(read.runs)} run{'s' * (len(read.runs) != 1)} to {page}{beside}.")
    if open_:
        typer.launch(str(page))
