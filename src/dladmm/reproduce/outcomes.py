"""An experiment's outcome: the table of what was measured, and the findings beside the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from dladmm import baselines, datasets
from dladmm.report.curves import QUANTITIES
from dladmm.report.data import METHOD_NAMES
from dladmm.reproduce import verdicts
from dladmm.reproduce.claims import CHECKS, TITLES
from dladmm.reproduce.paper import figures, nodes
from dladmm.reproduce.timing import time_findings, time_table
from dladmm.reproduce.verdicts import Finding
from dladmm.runs.evidence import Evidence, Mean
from dladmm.runs.experiment import Experiment

Rows = list[list[str]]


@dataclass(frozen=True)
class Outcome:
    """What is said of one experiment: JSON's own types, so that a summary is a file and a page."""

    id: str
    title: str
    paper: str
    caption: str
    command: str
    settings: str
    machine: str
    headings: list[str]
    table: Rows
    findings: list[dict[str, str]]
    missing: int
    revision: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def outcome(experiment: Experiment, evidence: Evidence, data_dir: str | None = None) -> Outcome:
    """Table and findings of whatever cells are finished."""
    paper = figures().get(experiment.paper, {})
    if experiment.kind == "data":
        headings, table, findings = _data(experiment, paper, data_dir)
    else:
        headings, table = _TABLES[experiment.kind](experiment, evidence)
        own = _FINDINGS.get(experiment.kind, _no_findings)(experiment, evidence, paper)
        findings = [*own, *_claims(experiment, evidence, paper)]
    return Outcome(
        id=experiment.id,
        title=experiment.title,
        paper=experiment.paper,
        caption=str(paper.get("caption", "")),
        command=experiment.command,
        settings=_settings(experiment),
        machine=_machine(evidence),
        headings=headings,
        table=table,
        findings=[asdict(finding.at(experiment.comparable)) for finding in findings],
        missing=evidence.missing,
        revision=experiment.revision,
    )


def _settings(e: Experiment) -> str:
    if e.kind == "data":
        return ""
    layers = f"{e.layers} hidden layer{'s' * (e.layers > 1)}"
    hidden = f"{'-'.join(map(str, e.hidden))} hidden units" if e.hidden else layers
    parts = [
        f"{hidden}",
        f"{e.max_iter} epoch{'s' * (e.max_iter > 1)}",
        f"{e.seeds} initialisation{'s' * (e.seeds > 1)}",
    ]
    parts += [] if e.rows is None else [f"{e.rows} training rows"]
    return ", ".join(parts)


def _machine(evidence: Evidence) -> str:
    """Where the runs were made; several machines are named beside one another."""
    return "; ".join(dict.fromkeys(_one_machine(run.machine) for run in evidence.runs.values()))


def _one_machine(machine: dict[str, Any]) -> str:
    device = str(machine.get("device", "unknown"))
    if device == "cpu" and "cpu" in machine:
        device = f"cpu ({machine['cpu']}, {machine.get('threads', '?')} threads)"
    return f"{device}, torch {machine['torch']}" if "torch" in machine else device


# Data sets -----------------------------------------------------------------------------------------------------


def _data(
    e: Experiment, paper: dict[str, Any], data_dir: str | None
) -> tuple[list[str], Rows, list[Finding]]:
    wanted = [name for name in e.datasets if name in paper]
    headings = ["data set", *next(iter(paper[name] for name in wanted))]
    table, findings = [], []
    for name in wanted:
        ours, theirs = _statistics(name, data_dir), paper[name]
        table.append([name, *(f"{ours[key]:,}" for key in theirs)])
        told = [", ".join(f"{key} {values[key]:,}" for key in theirs) for values in (theirs, ours)]
        verdict = verdicts.AGREES if all(ours[k] == theirs[k] for k in theirs) else verdicts.DIFFERS
        findings.append(Finding(f"statistics of {name}", told[0], told[1], verdict))
    return headings, table, findings


def _statistics(name: str, data_dir: str | None) -> dict[str, float]:
    data = datasets.load(name, data_dir=data_dir)
    shared: dict[str, float] = {"features": data.n_features, "classes": data.n_classes}
    if isinstance(data, datasets.ImageData):
        return shared | {"training": len(data.y_train), "test": len(data.y_test)}
    rate = round(100 * float(data.train_mask.double().mean()), 2)
    return shared | {"nodes": data.n_nodes, "edges": data.n_edges, "label_rate": rate}


# Curves and accuracies ---------------------------------------------------------------------------------------------


def _curve_table(e: Experiment, evidence: Evidence) -> tuple[list[str], Rows]:
    headings = ["data set", "method", "epochs", "Lagrangian", "residual", "test accuracy", "status"]
    table = []
    for dataset in e.datasets:
        for run in evidence.of(dataset):
            ends = [
                f"{values[0]:.4g} to {values[-1]:.4g}" if (values := _known(run.column(column))) else "-"
                for column in ("lagrangian", "primal_residual")
            ]
            last = run.last("val_accuracy")
            shown = "-" if last is None else f"{last:.4f}"
            table.append([dataset, run.method_name, str(run.iterations), *ends, shown, run.status])
    return headings, table


def _known(column: list[float | None]) -> list[float]:
    return [value for value in column if value is not None]


def _accuracy_table(e: Experiment, evidence: Evidence) -> tuple[list[str], Rows]:
    """Methods by data sets, or where the paper has curves, by epochs."""
    table = []
    if e.milestones:
        for dataset, method in product(e.datasets, e.methods):
            found = [evidence.accuracy_at(dataset, method, k) for k in e.milestones]
            shown = ["-" if m is None else f"{m.value:.4f}" for m in found]
            runs = str(len(evidence.of(dataset, method)))
            table.append([dataset, METHOD_NAMES.get(method, method), runs, *shown])
        return ["data set", "method", "runs", *(f"k={k}" for k in e.milestones)], table
    for method in e.methods:
        found = [evidence.accuracy(dataset, method) for dataset in e.datasets]
        table.append([METHOD_NAMES.get(method, method), *("-" if m is None else str(m) for m in found)])
    return ["method", *e.datasets], table


def _accuracy_findings(e: Experiment, evidence: Evidence, paper: dict[str, Any]) -> Iterator[Finding]:
    """Cell by cell of the paper's table; every setting of a method stands beside its row, the paper's are judged."""
    for method in e.methods:
        trainer = str(e.methods[method].get("trainer", method))
        baseline = trainer in baselines.METHODS
        row = trainer if baseline else "dladmm"
        for dataset, (value, deviation) in paper.get(row, {}).items():
            theirs = Mean(value, deviation, paper["initialisations"])
            ours = evidence.accuracy(dataset, method)
            verdict = verdicts.MISSING if ours is None else verdicts.accuracy(theirs, ours, baseline=baseline)
            if ours is not None and method not in paper["own"]:
                verdict = verdicts.ANOTHER
            keys = (f"{method} {verdict}", verdict if baseline else "")
            why = next((paper["why"][key] for key in keys if key in paper["why"]), "")
            what = f"test accuracy, {dataset}, {METHOD_NAMES.get(method, method)}"
            yield Finding(what, str(theirs), _told(e, evidence, dataset, method, verdict), verdict, why)


def _told(e: Experiment, evidence: Evidence, dataset: str, method: str, verdict: str) -> str:
    """The mean; of how many where some are missing, and whether the runs were higher on the way where it differs."""
    ours, highest = evidence.accuracy(dataset, method), evidence.highest(dataset, method)
    if ours is None:
        return "-"
    asked = e.seeds_of(method)
    few = "" if ours.count == asked else f" ({ours.count} of {asked})"
    best = ""
    if verdict == verdicts.DIFFERS and highest is not None:
        best = f", highest on the way {highest.value:.4f}"
    return f"{ours}{few}{best}"


def _memory_table(e: Experiment, evidence: Evidence) -> tuple[list[str], Rows]:
    widths: list[int] = e.grid["neurons"]
    table = []
    for dataset in e.datasets:
        cells = {cell.hidden[0]: cell.name for cell in evidence.cells if cell.dataset == dataset}
        used = [evidence.memory.get(cells[width]) for width in widths]
        table.append([dataset, *("-" if m is None else f"{m / 1e6:.0f} MB" for m in used)])
    return ["data set", *(f"{width} neurons" for width in widths)], table


def _no_findings(e: Experiment, evidence: Evidence, paper: dict[str, Any]) -> Iterator[Finding]:
    return iter(())


def _claims(e: Experiment, evidence: Evidence, paper: dict[str, Any]) -> Iterator[Finding]:
    counted = {name: n for name, n in nodes().items() if name in e.datasets}
    for about in paper.get("claims", ()):
        for dataset in about.get("datasets", e.datasets):
            answer = CHECKS[about["check"]](evidence, dataset, about | {"nodes": counted, "table": paper})
            what, says = f"{dataset}: {_looked_at(about)}", about["says"]
            if answer is None:
                yield Finding(what, says, "-", verdicts.MISSING)
                continue
            holds, ours = answer
            # "verdict": what is said of something that the paper does not claim, whichever way it is
            verdict = about.get("verdict", verdicts.AGREES if holds else verdicts.DIFFERS)
            shown_by = f"It is not so in our runs: `{e.command}`." if verdict == verdicts.DIFFERS else ""
            yield Finding(what, says, ours, verdict, str(about.get(verdict, shown_by)))


def _looked_at(about: dict[str, Any]) -> str:
    """A curve, a method, or what the check is about."""
    if "column" in about:
        return QUANTITIES[about["column"]]
    if about["check"] in TITLES:
        return TITLES[about["check"]].format(axis=about.get("axis", ""))
    return METHOD_NAMES[about["method"]]


_TABLES: dict[str, Callable[[Experiment, Evidence], tuple[list[str], Rows]]] = {
    "curves": _curve_table,
    "accuracy": _accuracy_table,
    "time": time_table,
    "memory": _memory_table,
}
_FINDINGS: dict[str, Callable[[Experiment, Evidence, dict[str, Any]], Iterator[Finding]]] = {
    "accuracy": _accuracy_findings,
    "time": time_findings,
}
