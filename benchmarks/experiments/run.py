"""The library's own experiments, which stand in docs/results.md beside the paper's.

    python benchmarks/experiments/run.py --list
    python benchmarks/experiments/run.py convergent-digits --device cuda
    python benchmarks/experiments/run.py networks-cnn --only 'digits-*' --record
    python benchmarks/experiments/run.py mlp-accuracy --collect --out runs/reproduce-full --record

An experiment is a TOML file of this folder (docs/reproduce.md has the format). Its cells are run folders in
OUT/ID/cells, made once and resumed like those of ``dladmm reproduce``; OUT/ID/record.json has a short record of each.
``--record`` puts these into docs/results/ID.json, beside the cells that are there; ``python docs/render.py`` then
writes the pages. The paper's experiments are taken too, so that their cells can be recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # this checkout, installed or not

from dladmm.base.errors import DladmmError
from dladmm.report.tables import print_table
from dladmm.reproduce.__main__ import add_session_arguments
from dladmm.reproduce.command import parse_share
from dladmm.runs.plan import cells
from dladmm.runs.problem import NETWORKS
from dladmm.runs.record import merged, record, run_experiment
from dladmm.runs.running import Session
from dladmm.runs.store import write_text
from dladmm.training.checks import check_device
from experiments.catalogue import NAMES, experiment
from experiments.estimators import MEASURES
from experiments.networks import NETWORKS as OWN_NETWORKS

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
COLUMNS = ("name", "status", "iterations", "final", "train_accuracy", "rises", "seconds_per_iteration")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("experiment", nargs="?", help="an ID of --list")
    made.add_argument("--out", type=Path, default=Path("runs/experiments"), help="folder for the cells")
    made.add_argument("--record", action="store_true", help="put what was measured into docs/results")
    made.add_argument(
        "--alone", default="", help="cells that had the device to themselves, as 'mnist-adam-0,cora-*-0'"
    )
    made.add_argument("--list", action="store_true", help="list the experiments and exit")
    add_session_arguments(made)
    return made


def session_of(given: argparse.Namespace) -> Session:
    """A session that knows this folder's networks and estimators besides the library's."""
    return Session(
        given.out,
        str(check_device(given.device)),
        given.data_dir,
        given.only,
        parse_share(given.share),
        given.minutes,
        given.redo,
        given.collect,
        networks=NETWORKS | OWN_NETWORKS,
        measures=MEASURES,
    )


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.list or given.experiment is None:
        found = [experiment(name) for name in NAMES]
        print_table(
            "Experiments",
            ["ID", "cells", "title"],
            [[e.id, str(len(cells(e, "cpu"))), e.title] for e in found],
        )
        return 0
    try:
        e, session = experiment(given.experiment), session_of(given)
        _, evidence = run_experiment(e, session)
        measured = record(e, evidence, given.alone)
        if given.record:
            path = RESULTS / f"{e.id}.json"
            old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            write_text(path, json.dumps(merged(old, measured), indent=1, allow_nan=False))
    except DladmmError as error:
        print(f"{given.experiment}: {error}", file=sys.stderr)
        return 2
    print_table(e.title, COLUMNS, [[_shown(cell.get(key)) for key in COLUMNS] for cell in measured["cells"]])
    return 130 if session.interrupted else 0


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
