"""A user's own table, to learn from or to predict: which columns count, how text and gaps become numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import DataError, InputError
from dladmm.cli.run_config import RunConfig
from dladmm.network.table_inputs import features_taken
from dladmm.tables import Frame, TableEncoder, read_table
from dladmm.tables.content import printable
from dladmm.training.checkpoint import load_model

Array = NDArray[Any]

FORMULA = ("=", "+", "-", "@")
"""How a cell begins that a spreadsheet would compute."""


@dataclass(frozen=True)
class OwnTable:
    """A table for training: the columns to learn from, and the target ``y`` (n_rows,), without gaps."""

    frame: Frame
    y: Array
    notes: tuple[str, ...]


def load_table(config: RunConfig) -> OwnTable:
    """The table of ``--csv`` without ``--drop`` and ``--id``, and its column ``--target``."""
    frame = read_table(Path(str(config.csv)), config.separator)
    target = str(config.target)
    frame.known([target], "target")
    left_out = [*columns_named(frame, config.drop, "drop"), *columns_named(frame, config.id, "id")]
    labelled = ~frame.gaps(target)
    notes = list(frame.notes)
    if not labelled.all():
        notes.append(f"{int((~labelled).sum())} rows without a value of {target!r} are left out")
        frame = frame.take(labelled)
    if frame.n_rows == 0:
        raise DataError(f"{frame.source}: the target {target!r} has no values.")
    y = frame.values_of(target)
    return OwnTable(frame.without([target, *(name for name in left_out if name != target)]), y, tuple(notes))


def columns_named(frame: Frame, given: Sequence[str] | None, option: str) -> list[str]:
    """The columns that an option names: each a name, or several with commas."""
    names = [
        name.strip()
        for text in given or ()
        for name in ([text] if text.strip() in frame.columns else text.split(","))
    ]
    return list(dict.fromkeys(frame.known([name for name in names if name], option)))


@dataclass(frozen=True)
class NewRows:
    """Rows to predict: the network's input ``x`` (n_rows, n_features), and the columns that identify them."""

    x: Array
    ids: dict[str, list[Any]]
    frame: Frame


def rows_to_predict(extra: dict[str, Any], file: Path, separator: str | None = None) -> NewRows:
    """The rows of a table as the network of a run takes them; ``extra`` is what the run stored with its model."""
    frame = read_table(file, separator)
    ids = {name: _cells(frame, name) for name in extra.get("id") or () if name in frame.columns}
    if extra.get("table") is not None:
        return NewRows(TableEncoder.from_dict(extra["table"]).transform(frame), ids, frame)
    names = extra.get("features") or frame.names  # files written before text and gaps were understood
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise DataError(f"{file} lacks the columns {', '.join(absent)}, which the network was trained with.")
    for name in names:
        if frame.is_text(name) or frame.gaps(name).any():
            row = int(np.flatnonzero(frame.gaps(name) | frame.is_text(name))[0])
            raise DataError(
                f"{file}, row {row + 2}, column {name!r}: {frame.columns[name][row]!r} is not a finite number; the "
                "network was trained with numbers alone."
            )
    x = np.column_stack([frame.columns[name] for name in names])
    return NewRows(x, ids, frame)


def _cells(frame: Frame, name: str) -> list[Any]:
    """A column as cells to write: whole numbers without a fraction, gaps empty."""
    column = frame.columns[name]
    if frame.is_text(name):
        return ["" if value is None else value for value in column]
    return [
        "" if np.isnan(v) else int(v) if v == np.rint(v) and abs(v) < 2**53 else v for v in column.tolist()
    ]


def write_cells(file: Path, header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file in which no cell of text is a formula for a spreadsheet: such a cell gets a leading quote."""
    try:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerows([_harmless(cell) for cell in row] for row in (header, *rows))
    except OSError as error:
        raise DataError(f"{file} could not be written: {error}") from error


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell


def predict_csv(run: Path, file: Path, out: Path | None, separator: str | None = None) -> dict[str, Any]:
    """Write predictions of a run's network for the rows of a CSV file, beside it or to ``out``; returns a summary."""
    model = load_model(run / "model.safetensors")
    if model.loss is None or not isinstance(model.module, torch.nn.Sequential):
        raise InputError(
            f"{run} holds a graph network; predict its nodes with GCNClassifier or module(x, edge_index)."
        )
    table = rows_to_predict(model.extra, file, separator)
    first = next(model.module.parameters())
    taken = features_taken(model.module)
    if table.x.shape[1] != taken:
        raise DataError(f"{file} has {table.x.shape[1]} columns, but the network takes {taken} features.")
    with torch.no_grad():
        output = model.module(torch.from_numpy(table.x).to(first.dtype))
    lost = torch.nonzero(~torch.isfinite(output).all(1))
    if len(lost):
        raise DataError(
            f"{file}, row {int(lost[0]) + 2}: the network's output is not finite ({len(lost)} such rows). A number "
            "there is too large, or the weights of the network are not finite."
        )
    named = model.extra.get("classes")
    classes = None if named is None else [printable(c) if isinstance(c, str) else c for c in named]
    if classes is None:
        header = [f"prediction{j or ''}" for j in range(output.shape[1])]
        predictions: Any = model.loss.decision(output).tolist()
    else:
        probabilities = model.loss.probabilities(output.double()).numpy()
        chosen = [classes[i] for i in model.loss.decision(output).tolist()]
        header = ["prediction", *(f"p({c})" for c in classes)]
        predictions = [[c, *np.round(p, 6)] for c, p in zip(chosen, probabilities, strict=True)]
    rows = [[*(cells[i] for cells in table.ids.values()), *row] for i, row in enumerate(predictions)]
    header = [*table.ids, *header]
    target = file.with_suffix(".predictions.csv") if out is None else out
    write_cells(target, header, rows)
    return {"rows": len(predictions), "file": str(target), "columns": header}
