"""``docs/results.md`` from the files in ``docs/results``: no figure on that page is typed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dladmm.report.curves import QUANTITIES
from dladmm.report.data import METHOD_NAMES
from dladmm.reproduce import experiment
from dladmm.reproduce.outcomes import outcome
from dladmm.reproduce.pages import markdown as reproduction
from dladmm.reproduce.pages import overview
from dladmm.reproduce.paper import figures
from dladmm.reproduce.verdicts import AGAIN, DIFFERS, MISSING, TOLERANCES, UNSEEN
from dladmm.runs.evidence import Evidence, Mean
from dladmm.runs.experiment import Experiment
from dladmm.runs.plan import cells
from dladmm.runs.record import recorded
from pages import accelerated, adams, benchmarks, convergent, networks, width
from pages.records import RESULTS, read

HEAD = """# Results

This page is made from the files in `docs/results/` by `python docs/render.py`. The command that stands above a table
makes its cells; `--record` (for the paper's experiments: `python benchmarks/experiments/run.py ID --collect --record`)
puts them into `docs/results/`. Settings were chosen on validation splits of training data, test
sets are for reporting; `docs/graphs.md` says where the graphs' choice fell short of that. "Rises" counts iterations at
which the augmented Lagrangian rose beyond rounding; "certified" means rho > 2H and everything the theory promises was
seen (`docs/theory.md`). A deviation (±) is that of the sample.
"""

CLAIMS = """## The paper's claims, and how they stand

    dladmm reproduce all --scale full

How verdicts are given stands at the end of this page, above the tables that are linked here. "To be measured again":
settings have changed since the cells were made, or cells are missing.
`python benchmarks/experiments/paper.py --list` says which, and without `--list` it runs them.
"""


def render(folder: Path = RESULTS) -> str:
    """The whole page."""
    found = [_judged(path.stem, folder) for path in sorted(folder.glob("reproduce-*.json"))]
    sections = [
        HEAD,
        *("\n".join([CLAIMS, *overview(summary)]) for summary in found),
        *adams.render(folder),
        *accelerated.render(folder),
        *networks.render(folder),
        *convergent.render(folder),
        *benchmarks.render(folder),
        *(reproduction(summary, first=False) for summary in found),
    ]
    return "\n".join(sections)


def _judged(name: str, folder: Path) -> dict[str, Any]:
    """A stored summary of the paper's experiments as the present settings and rules see it."""
    stored = read(name, folder)
    judged = [_as_now(found, stored["scale"], folder) for found in stored["experiments"]]
    timed = width.outcome(folder)
    judged += [] if timed is None else [timed]
    return stored | {"tolerances": TOLERANCES, "experiments": judged}


def _as_now(found: dict[str, Any], scale: str, folder: Path) -> dict[str, Any]:
    """A stored outcome as the present settings and rules see it.

    Where the cells are recorded they are judged again, those with other settings left out. Where only the outcome is
    stored and settings have changed since, its figures are of something else: they are to be measured again.
    """
    e = experiment(found["id"], scale)
    kept = read(e.id, folder)
    if kept.get("cells"):
        again = outcome(e, _with_stored(e, recorded(e, kept), found)).to_dict()
    elif e.kind == "memory":
        again = outcome(e, _weighed(e, found)).to_dict() | {"machine": found["machine"], "missing": 0}
    elif found.get("revision", 1) < e.revision or found["missing"] == len(cells(e, "cpu")) > 0:
        empty = outcome(e, Evidence(tuple(cells(e, "cpu")), {}, {})).to_dict()
        again = empty | {"table": [], "missing": 0}
    else:
        return _unmeasured(found)
    for finding in again["findings"]:
        if finding["verdict"] == MISSING:
            finding["verdict"] = AGAIN
    return again


def _unmeasured(found: dict[str, Any]) -> dict[str, Any]:
    """A stored outcome whose missing cells are said to be that, with the reasons that are given now."""
    claims = figures().get(found["paper"], {}).get("claims", ())
    reasons = {(QUANTITIES.get(a.get("column", "")), a["says"]): a.get("differs", "") for a in claims}
    told = []
    for finding in found["findings"]:
        why = reasons.get((finding["what"].partition(": ")[2], finding["paper"]))
        changed = {"why": why} if why and finding["verdict"] == DIFFERS else {}
        told.append(finding | changed | ({"verdict": UNSEEN} if finding["verdict"] == MISSING else {}))
    return found | {"findings": told}


STORED = {"gcn-accuracy": ("dladmm-paper", ("cora", "pubmed", "citeseer"))}
"""Accuracies whose cells were not recorded and whose settings have not changed: they stand in the stored table."""


@dataclass(frozen=True)
class WithStored(Evidence):
    """Evidence beside means that are known as such, by data set and method."""

    means: dict[tuple[str, str], Mean] = field(default_factory=dict)

    def accuracy(self, dataset: str, method: str) -> Mean | None:
        return super().accuracy(dataset, method) or self.means.get((dataset, method))

    def highest(self, dataset: str, method: str) -> Mean | None:
        return None  # records hold accuracies at some iterations only


def _with_stored(e: Experiment, evidence: Evidence, found: dict[str, Any]) -> Evidence:
    method, wanted = STORED.get(e.id, ("", ()))
    rows = {row[0]: row[1:] for row in found["table"]}
    means = {}
    for dataset in wanted:
        shown = rows[METHOD_NAMES[method]][found["headings"].index(dataset) - 1]
        value, deviation = (float(part) for part in shown.split(" ± "))
        means[dataset, method] = Mean(value, deviation, e.seeds_of(method))
    return WithStored(evidence.cells, evidence.runs, evidence.memory, evidence.metrics, means)


def _weighed(e: Experiment, found: dict[str, Any]) -> Evidence:
    """The memory that a stored table shows, by cell."""
    wanted, memory = cells(e, "cpu"), {}
    shown = {row[0]: row[1:] for row in found["table"]}
    for cell in wanted:
        value = shown[cell.dataset][e.grid["neurons"].index(cell.hidden[0])]
        if value != "-":
            memory[cell.name] = 1e6 * float(value.removesuffix(" MB"))
    return Evidence(tuple(wanted), {}, memory)
