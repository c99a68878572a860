"""``dladmm reproduce``: run what is missing, then say how it stands beside the paper.

OUT/ID/cells/, OUT/ID/figures/, OUT/ID/outcome.json, OUT/ID/record.json     each experiment
OUT/summary.json, OUT/summary.md                                            all experiments of OUT, whenever one is done
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dladmm.base.errors import DataError, InputError
from dladmm.reproduce.catalogue import ORDER, chosen, experiment
from dladmm.reproduce.outcomes import outcome
from dladmm.reproduce.pages import markdown, show, show_list
from dladmm.reproduce.verdicts import TOLERANCES
from dladmm.runs.experiment import Experiment
from dladmm.runs.plan import cells
from dladmm.runs.record import run_experiment
from dladmm.runs.running import Session, announce
from dladmm.runs.store import write_text
from dladmm.training.checks import check_device

OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Listed:
    """A line of ``--list``."""

    id: str
    paper: str
    cells: int
    title: str


def list_experiments(scale: str) -> list[Listed]:
    """What ``dladmm reproduce --list`` shows: ID, the paper's label, number of runs, title."""
    found = [experiment(name, scale) for name in ORDER]
    return [Listed(e.id, e.paper or "-", len(cells(e, "cpu")), e.title) for e in found]


def reproduce(names: Sequence[str], scale: str, session: Session) -> tuple[dict[str, Any], bool]:
    """Run these experiments; the summary of all of OUT, and whether every cell that was asked for is there."""
    complete = True
    experiments = [experiment(name, scale) for name in names]
    if len(names) > 1 and not session.collect:
        announce(experiments, session)
    for e in experiments:
        if not reproduce_one(e, session):
            complete = False
            break
    return write_summary(session.out, scale), complete


def reproduce_one(e: Experiment, session: Session) -> bool:
    """One experiment: its cells, its figures, its outcome, its record. False when cells were left undone."""
    folder = session.out / e.id
    complete, evidence = run_experiment(e, session)
    found = outcome(e, evidence, session.data_dir)
    if evidence.runs and find_spec("matplotlib") is not None:
        from dladmm.reproduce.drawing import draw

        draw(e, evidence, folder / "figures")
    write_text(folder / OUTCOME, json.dumps({"scale": e.scale} | found.to_dict(), indent=1, allow_nan=False))
    return complete


def write_summary(out: Path, scale: str) -> dict[str, Any]:
    """summary.json and summary.md of the outcomes that are there, in the paper's order."""
    outcomes = []
    for name in ORDER:
        path = out / name / OUTCOME
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise DataError(f"{path} is not the outcome of an experiment: {error}") from error
            if found.pop("scale") == scale:
                outcomes.append(found)
    summary = {
        "command": f"dladmm reproduce all --scale {scale}",
        "scale": scale,
        "tolerances": TOLERANCES,
        "experiments": outcomes,
    }
    write_text(out / "summary.json", json.dumps(summary, indent=1, allow_nan=False))
    write_text(out / "summary.md", markdown(summary))
    return summary


def run(
    names: str,
    scale: str,
    *,
    device: str = "auto",
    out: Path | None = None,
    data_dir: str | None = None,
    only: str | None = None,
    share: str = "1/1",
    minutes: float | None = None,
    redo: bool = False,
    collect: bool = False,
    list_: bool = False,
    json_: bool = False,
) -> int:
    """What both command lines do; the exit code."""
    if list_:
        lines = [asdict(line) for line in list_experiments(scale)]
        print(json.dumps({"experiments": lines})) if json_ else show_list(lines)
        return 0
    wanted = chosen(names)
    folder = out or Path(f"runs/reproduce-{scale}")
    session = Session(
        folder, str(check_device(device)), data_dir, only, parse_share(share), minutes, redo, collect
    )
    summary, complete = reproduce(wanted, scale, session)
    if json_:
        print(json.dumps({"out": str(folder), "complete": complete} | summary, allow_nan=False))
    else:
        show(summary, wanted)
        print(f"Wrote {folder} (summary.json, summary.md, and cells and figures of each experiment).")
    return 130 if session.interrupted else 0


def parse_share(text: str) -> tuple[int, int]:
    """``"2/8"`` is the second of eight shares."""
    mine, slash, of = text.partition("/")
    if slash and mine.isdecimal() and of.isdecimal() and 1 <= int(mine) <= int(of):
        return int(mine), int(of)
    raise InputError(f"--share must be I/N with 1 <= I <= N, as 2/8; got {text!r}.")
