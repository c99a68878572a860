"""The sections of ``docs/results.md`` on convergent mode: digits and MNIST seed by seed, graphs, the theory's bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.catalogue import experiment

from dladmm.reproduce.paper import figures
from pages.records import Cell, accuracy_at, cells_of, command, final, section, setting, shown, values

GRAPHS = ("cora", "citeseer", "pubmed", "coauthor_cs", "coauthor_physics")
NOT_SHOWN = ("method", "network", "dataset", "seed", "activation", "hidden")


def render(folder: Path) -> list[str]:
    """The sections whose records are there."""
    parts = []
    for name in ("convergent-digits", "convergent-mnist"):
        for method, about in experiment(name).methods.items():
            if "title" in about and (cells := cells_of(name, folder, method=method)):
                parts.append(_by_seed(name, about, cells, folder))
    parts += [_graphs(folder)] if cells_of("gcn-convergent", folder) else []
    return parts + ([_theory(folder)] if cells_of("gcn-theory", folder) else [])


def _by_seed(name: str, about: dict[str, Any], cells: list[Cell], folder: Path) -> str:
    """One line per seed, and their means."""
    e, settings = experiment(name), cells[0]["settings"]
    shown_at = [k for k in e.milestones if str(k) in cells[0]["test_accuracy"]]
    rows: list[list[object]] = [
        [
            cell["settings"]["seed"],
            *(shown(cell["test_accuracy"][str(k)]) for k in shown_at),
            cell["rises"],
            "yes" if cell["certified"] else "no",
            shown(cell["seconds_per_iteration"], 3),
        ]
        for cell in cells
    ]
    rows.append(["**mean**", *(f"**{accuracy_at(cells, k):.4f}**" for k in shown_at), "", "", ""])
    told = {key: value for key, value in settings.items() if key not in NOT_SHOWN[:-1]}
    told |= {"activation": settings["activation"]} if settings["activation"] != "relu" else {}
    notes = [about.get("note", ""), f"Settings: {', '.join(f'{k} = {setting(v)}' for k, v in told.items())}."]
    commands = [command(name, f"{settings['dataset']}-{settings['method']}-*", cells[0]["device"])]
    after = []
    if linear := final(cells_of(name, folder, method="logistic")):
        commands.append(command(name, f"{settings['dataset']}-logistic-*"))
        after.append(f"Logistic regression (scikit-learn) on the same splits: {linear.value:.4f}.")
    headings = ["seed", *(f"k={k}" for k in shown_at), "rises", "certified", "s / iteration"]
    return section(about["title"], commands, headings, rows, notes=notes, after=after)


def _graphs(folder: Path) -> str:
    """Ten initialisations on each graph beside the dlADMM row of the paper's table."""
    e, paper = experiment("gcn-convergent"), figures()["tab:gcn performance"]["dladmm"]
    rows = []
    for dataset in GRAPHS:
        if not (cells := cells_of("gcn-convergent", folder, dataset=dataset)):
            continue
        s, found = cells[0]["settings"], final(cells)
        assert found is not None
        row = [dataset, s["rows"], s["rho"], s["mu"], setting(s["regularizer"]), s["max_iter"]]
        row += [f"**{found.value:.4f}** ± {found.deviation:.4f}", shown(min(values(cells, "final")))]
        another_split = experiment("gcn-convergent").on(dataset).data.get("split") == "random"
        theirs = "another split" if another_split else f"{paper[dataset][0]:.4f} ± {paper[dataset][1]:.4f}"
        rows.append([*row, theirs])
    headings = ["data set", "rows", "rho", "mu", "penalty", "iterations", "test accuracy", "lowest"]
    headings.append("the paper's dlADMM")
    return section(e.title, [command(e.id, "NAME-*")], headings, rows, notes=[e.note])


def _theory(folder: Path) -> str:
    """The Lagrangian on the citation graphs inside and outside the certified region."""
    e = experiment("gcn-theory")
    rows = []
    for cell in cells_of(e.id, folder):
        told = {key: value for key, value in cell["settings"].items() if key not in NOT_SHOWN}
        last = cell["rises_at"][-1] if cell["rises_at"] else "-"
        row = [
            cell["settings"]["dataset"],
            ", ".join(f"{key} {setting(value)}" for key, value in told.items()),
        ]
        row += [cell["rises"], last, "yes" if cell["certified"] else "no"]
        rows.append([*row, f"{cell['residual']:.1e}", shown(cell["final"], 3)])
    headings = ["data set", "settings", "rises", "last rise at", "certified", "residual", "test accuracy"]
    return section(e.title, [command(e.id)], headings, rows, notes=[e.note])
