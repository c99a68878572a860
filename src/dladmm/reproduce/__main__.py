"""``python -m dladmm.reproduce``: the same as ``dladmm reproduce``, without anything that must be installed for it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dladmm.base.errors import DladmmError
from dladmm.reproduce.command import run


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m dladmm.reproduce", description=__doc__)
    made.add_argument("experiment", nargs="?", default="all", help="an ID, several with commas, or all")
    made.add_argument(
        "--scale", choices=["full", "quick"], default="full", help="the paper's sizes, or small ones"
    )
    made.add_argument("--out", type=Path, help="folder for the results (runs/reproduce-SCALE)")
    made.add_argument("--list", action="store_true", help="list the experiments and exit")
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_session_arguments(made)
    return made


def add_session_arguments(made: argparse.ArgumentParser) -> None:
    """What the commands say of a session besides its folder: where, which cells, for how long."""
    made.add_argument("--device", default="auto", help="auto, cpu or cuda")
    made.add_argument("--data-dir", help="folder of the data sets")
    made.add_argument("--only", help="only cells whose names match, as 'cora-*'")
    made.add_argument(
        "--share", default="1/1", help="I/N: every N-th cell, so that N commands divide the work"
    )
    made.add_argument("--minutes", type=float, help="begin no further cell after so many minutes")
    made.add_argument("--redo", action="store_true", help="run cells again whose settings have changed")
    made.add_argument("--collect", action="store_true", help="run nothing, sum up the cells that are in OUT")


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        return run(
            given.experiment, given.scale, device=given.device, out=given.out, data_dir=given.data_dir,
            only=given.only, share=given.share, minutes=given.minutes, redo=given.redo, collect=given.collect,
            list_=given.list, json_=given.json,
        )  # fmt: skip
    except DladmmError as error:
        if given.json:
            print(json.dumps({"error": str(error)}))
        print(f"dladmm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
