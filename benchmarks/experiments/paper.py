"""The cells of the paper's experiments that docs/results lacks, and the seconds that need a machine of their own.

    python benchmarks/experiments/paper.py --list                         # what is missing, about how long it takes
    python benchmarks/experiments/paper.py --device cuda --minutes 9      # run it, and put it into docs/results
    python docs/render.py

Cells that docs/results has with the settings of now are not run again, nor are those in OUT: after ``--minutes``
the same command goes on. What is timed runs first and alone: the timing tables, the curves, and one initialisation
of every method that docs/results.md sets beside Adam, so that its seconds are those of a device that did nothing
else. The other accuracies follow, ``--jobs`` of them side by side. Accuracies go to docs/results/ID.json cell by
cell; of curves, times and memory, whose cells are too long to keep, docs/results/reproduce-full.json has the
outcome once all cells are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))  # this checkout, installed or not

from dladmm.base.errors import DladmmError
from dladmm.report.tables import print_table
from dladmm.reproduce import ORDER
from dladmm.reproduce import experiment as paper_experiment
from dladmm.reproduce.command import parse_share
from dladmm.reproduce.outcomes import outcome
from dladmm.runs.estimate import Clock, words
from dladmm.runs.evidence import gather
from dladmm.runs.experiment import Experiment
from dladmm.runs.plan import Cell, cells, plain
from dladmm.runs.record import merged, record, shown_settings
from dladmm.runs.running import Session, run_cells
from dladmm.runs.store import write_text
from dladmm.training.checks import check_device

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SUMMARY = "reproduce-full"
ALONE = "alone.json"
TIMED = (
    "*-accelerated-0",
    "*-accelerated-labels-0",
    "*-adam-0",
    "*-adam-same-0",
    "*-adam-batches-0",
    "*-adam-kipf-0",
)
"""Cells of accuracies whose seconds stand on the page: they run alone."""


@dataclass(frozen=True)
class Missing:
    """What is not there of an experiment: cells that run alone, and those that may run side by side."""

    experiment: Experiment
    alone: tuple[Cell, ...]
    together: tuple[Cell, ...]


def read(name: str, folder: Path) -> dict[str, Any]:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def missing(results: Path, device: str, names: Iterable[str] = ORDER) -> list[Missing]:
    """Of every experiment of the paper's that has cells, what docs/results lacks."""
    found = []
    stored = {one["id"]: one for one in read(SUMMARY, results).get("experiments", ())}
    for e in (paper_experiment(name) for name in names):
        wanted = cells(e, device)
        if not wanted:
            continue
        if e.kind != "accuracy":
            kept = stored.get(e.id, {})
            there = kept and kept.get("revision", 1) >= e.revision and not kept["missing"]
            found.append(Missing(e, () if there else tuple(wanted), ()))
            continue
        known = {one["name"]: one for one in read(e.id, results).get("cells", ())}
        same = {c.name: known[c.name] for c in wanted if _recorded(c, known)}
        timed = [c for c in wanted if any(fnmatch(c.name, pattern) for pattern in TIMED)]
        alone = [c for c in timed if not _has_seconds(same.get(c.name, {}), device)]
        together = [c for c in wanted if c.name not in same and c not in alone]
        found.append(Missing(e, tuple(alone), tuple(together)))
    return found


def _recorded(cell: Cell, known: dict[str, Any]) -> bool:
    return cell.name in known and known[cell.name]["settings"] == plain(shown_settings(cell))


def _has_seconds(kept: dict[str, Any], device: str) -> bool:
    return device in kept.get("device", "") and kept.get("fit_seconds") is not None


def run_alone(found: list[Missing], session: Session) -> bool:
    """One cell at a time; which ones did is kept, for their seconds may be recorded."""
    for one in found:
        folder = session.out / one.experiment.id
        for cell in one.alone:
            if session.over or not run_cells([cell], folder, session, one.experiment.id):
                return False
            if one.experiment.kind == "accuracy":
                told = {*_alone(folder), cell.name}
                write_text(folder / ALONE, json.dumps(sorted(told)))
    return True


def _alone(folder: Path) -> list[str]:
    path = folder / ALONE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def run_together(found: list[Missing], session: Session) -> bool:
    """A share of the cells whose seconds nobody looks at."""
    mine, of = session.share
    whole = replace(session, share=(1, 1))
    place = 0
    for one in found:
        todo = []
        for cell in one.together:
            place += 1
            todo += [cell] if place % of == mine % of else []
        if not run_cells(todo, session.out / one.experiment.id, whole, one.experiment.id):
            return False
    return True


def keep(found: list[Missing], session: Session, results: Path) -> None:
    """Put what is in OUT into docs/results."""
    summary = read(SUMMARY, results)
    for one in found:
        e, folder = one.experiment, session.out / one.experiment.id
        evidence = gather(folder, cells(e, session.device_kind))
        if not evidence.runs:
            continue
        if e.kind == "accuracy":
            new = record(e, evidence, ",".join(_alone(folder)))
            text = json.dumps(merged(read(e.id, results) or None, new), indent=1, allow_nan=False)
            write_text(results / f"{e.id}.json", text)
        elif not evidence.missing:
            said = outcome(e, evidence, session.data_dir).to_dict()
            summary["experiments"] = [said if old["id"] == e.id else old for old in summary["experiments"]]
            write_text(results / f"{SUMMARY}.json", json.dumps(summary, indent=1, allow_nan=False))


def show(found: list[Missing], device: str) -> None:
    rows = []
    for one in found:
        todo = [*one.alone, *one.together]
        about = words(Clock(todo, device).seconds) if todo else "-"
        rows.append([one.experiment.id, str(len(one.alone)), str(len(one.together)), about])
    print_table("Missing in docs/results", ["ID", "alone", "side by side", f"one by one on {device}"], rows)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="say what is missing and exit")
    made.add_argument("--experiments", default=",".join(ORDER), help="IDs with commas; in this order")
    made.add_argument("--device", default="auto", help="auto, cpu or cuda")
    made.add_argument("--data-dir", help="folder of the data sets")
    made.add_argument("--out", type=Path, default=Path("runs/reproduce-full"), help="folder for the cells")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    made.add_argument("--minutes", type=float, help="begin no further cell after so many minutes")
    made.add_argument("--jobs", type=int, default=6, help="processes for what is not timed")
    made.add_argument("--share", help="I/N: run this share of what is not timed, and record nothing")
    return made


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        session = Session(given.out, str(check_device(given.device)), given.data_dir, minutes=given.minutes)
        found = missing(given.results, session.device_kind, given.experiments.split(","))
        if given.list:
            show(found, session.device)
            return 0
        if given.share is not None:
            run_together(found, replace(session, share=parse_share(given.share)))
            return 0
        if run_alone(found, session) and any(one.together for one in found):
            _side_by_side(given, session)
        keep(found, session, given.results)
    except DladmmError as error:
        print(f"paper.py: {error}", file=sys.stderr)
        return 2
    show(missing(given.results, session.device_kind, given.experiments.split(",")), session.device)
    return 0


def _side_by_side(given: argparse.Namespace, session: Session) -> None:
    command = [sys.executable, __file__, "--device", session.device, "--out", str(session.out)]
    command += ["--experiments", given.experiments, "--results", str(given.results)]
    command += [] if given.data_dir is None else ["--data-dir", given.data_dir]
    if session.minutes is not None:
        left = session.minutes - (time.perf_counter() - session.began) / 60
        command += ["--minutes", f"{left:.2f}"]
    # Each with its share of the cores: threads of several processes on one core wait for each other
    own = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // given.jobs))}
    shares = [f"{i}/{given.jobs}" for i in range(1, given.jobs + 1)]
    jobs = [subprocess.Popen([*command, "--share", share], env=own) for share in shares]
    for job in jobs:
        job.wait()


if __name__ == "__main__":
    sys.exit(main())
