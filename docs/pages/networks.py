"""The section of ``docs/results.md`` about networks that are no MLP."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from experiments.catalogue import NAMES, experiment

from pages.records import Cell, accuracy_at, cells_of, command, seconds, section, shown, values

SHOWN = (10, 20, 50, 100)


def render(folder: Path) -> list[str]:
    """One table of all ``networks-*`` experiments; none where there are no records."""
    found = [
        (name, cell) for name in NAMES if name.startswith("networks-") for cell in cells_of(name, folder)
    ]
    if not found:
        return []
    # Networks in order within
    found.sort(key=lambda pair: (pair[1]["settings"]["dataset"], pair[1]["samples"]))
    groups = [list(group) for _, group in groupby(found, key=_row_of)]
    commands = [_command(name, cells[0]) for name, cells in map(_pair, groups)]
    headings = ["network", "data", "images", "method", "device", "seeds", *(f"k={k}" for k in SHOWN)]
    return [
        section(
            "Networks that are no MLP: test accuracy",
            commands,
            [*headings, "rises", "s / iteration"],
            [_row(*_pair(group)) for group in groups],
            notes=[
                "Mean of the seeds. Adam has full batches and the loss alone, as in the paper: it is not Adam as\n"
                "people use it, which [streaming mode](streaming.md) is set beside. CPU cores were shared with other\n"
                "work, so their times say little."
            ],
        )
    ]


def _row_of(pair: tuple[str, Cell]) -> tuple[object, ...]:
    name, cell = pair
    return name, cell["settings"]["dataset"], cell["samples"], cell["settings"]["method"]


def _pair(group: list[tuple[str, Cell]]) -> tuple[str, list[Cell]]:
    return group[0][0], [cell for _, cell in group]


def _command(name: str, cell: Cell) -> str:
    """One command for both methods."""
    settings = cell["settings"]
    size = f"*-samples-{settings['train_rows']}-" if "train_rows" in settings else ""
    return command(name, f"{settings['dataset']}-{size}*", cell["device"])


def _row(name: str, cells: list[Cell]) -> list[object]:
    settings = cells[0]["settings"]
    return [
        experiment(name).title,
        settings["dataset"],
        cells[0]["samples"],
        settings["method"],
        re.sub(r"cuda \(NVIDIA (.*?),.*", r"\1", cells[0]["device"]),
        len(cells),
        *(shown(accuracy_at(cells, k)) for k in SHOWN),
        "-" if settings["method"] == "adam" else sum(values(cells, "rises")),
        shown(seconds(cells), 2),
    ]
