"""The work of ``dladmm evaluate`` and ``dladmm export``: how good a network is, and the network in other formats."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dladmm.packed
from dladmm.api.packed_onnx import run_packed_onnx, save_packed_onnx
from dladmm.api.packing import cost_of, save_packed, unit_of
from dladmm.base.errors import DataError, DladmmError, InputError
from dladmm.cli.measures import of_classes, of_nodes, of_numbers
from dladmm.cli.run_config import stored
from dladmm.cli.run_data import load_graph, load_rows
from dladmm.cli.run_table import rows_to_predict
from dladmm.cli.run_train import read_origin, with_paths
from dladmm.network.table_inputs import features_taken
from dladmm.packed import PackedNetwork
from dladmm.tables.content import printable
from dladmm.training.checkpoint import load_model
from dladmm.training.model_file import SavedModel

Array = NDArray[Any]

FORMATS = {
    "onnx": ".onnx", "torch-export": ".pt2", "state-dict": ".pt", "packed": ".packed.npz",
    "packed-onnx": ".packed.onnx",
}  # fmt: skip
"""What a network can be exported as, and how the file ends."""


@dataclass(frozen=True)
class Judged:
    """Outputs (N, n_outputs) of a network, targets as numbers or class indices, and which rows these are."""

    output: Tensor
    truth: Array
    rows: str


def evaluate_run(run: Path, file: Path | None = None, separator: str | None = None) -> dict[str, Any]:
    """Measures of a run's network by its own test rows, or by the rows of a table that has the target too."""
    model = load_model(run / "model.safetensors")
    if model.loss is None:
        raise InputError(f"{run} stored no loss with its network: it cannot be evaluated.")
    graph = not isinstance(model.module, torch.nn.Sequential)
    if graph and file is not None:
        raise InputError(f"{run} holds a graph network, which is evaluated by the nodes of its own graph.")
    judged = _of_table(model, file, separator) if file is not None else _of_run(model, run, graph)
    if len(judged.truth) == 0:
        raise InputError(f"there are no rows to evaluate: {judged.rows}.")
    classes = model.extra.get("classes")
    names = [printable(c) if isinstance(c, str) else str(c) for c in classes or ()]
    found = (
        of_numbers(judged.output, judged.truth, model.loss)
        if classes is None
        else of_classes(judged.output, judged.truth, model.loss, names)
    )
    size = {} if graph else {"network": cost_of(model.module)}
    return {"run": str(run), "rows": judged.rows, "n_rows": len(judged.truth)} | found | size


def _outputs(model: SavedModel, x: Any) -> Tensor:
    first = next(model.module.parameters())
    x = torch.as_tensor(np.asarray(x)).to(first.dtype)
    taken = features_taken(model.module)
    if x.shape[1] != taken:
        raise DataError(f"the rows have {x.shape[1]} columns, but the network takes {taken} features.")
    with torch.no_grad():
        return torch.cat([model.module(part) for part in torch.split(x, 8192)]).double()


def _of_run(model: SavedModel, run: Path, graph: bool) -> Judged:
    config = stored(run)
    config = with_paths(config, run, read_origin(run))
    if graph:
        data = load_graph(config)
        held = np.asarray(data.test_mask)
        output = of_nodes(model.module, data).double()
        return Judged(output[held], np.asarray(data.y)[held], "the test nodes of the run")
    rows = load_rows(config)
    return Judged(_outputs(model, rows.x_test), np.asarray(rows.y_test), "the test rows of the run")


def _of_table(model: SavedModel, file: Path, separator: str | None) -> Judged:
    target = model.extra.get("target")
    if target is None:
        raise InputError(
            "the run was not trained on a table with a target column; evaluate it without --csv."
        )
    rows = rows_to_predict(model.extra, file, separator)
    rows.frame.known([str(target)], "target")
    known = ~rows.frame.gaps(str(target))
    if not known.any():
        raise DataError(f"{file}: the target {target!r} has no values.")
    y = rows.frame.take(known).values_of(str(target))
    classes = model.extra.get("classes")
    output = _outputs(model, rows.x[known])
    if classes is None:
        try:
            return Judged(output, np.asarray(y, dtype=np.float64), f"{file}")
        except ValueError as error:
            raise DataError(f"{file}: the target {target!r} must hold numbers: {error}") from error
    places = {str(c): i for i, c in enumerate(classes)}
    unknown = sorted({str(label) for label in y} - set(places))
    if unknown:
        raise DataError(
            f"{file}: {target!r} has {printable(', '.join(unknown[:5]))}, which the network was not trained with."
        )
    return Judged(output, np.array([places[str(label)] for label in y]), f"{file}")


def export_run(run: Path, kind: str, out: Path | None = None) -> Path:
    """Write the network of a run as ONNX, as an exported program of torch, as a plain ``state_dict``, or packed."""
    if kind not in FORMATS:
        raise InputError(f"--format must be one of {', '.join(FORMATS)}, got {kind!r}.")
    if kind.endswith("onnx") and find_spec("onnx") is None:
        raise InputError(
            f"the format {kind} needs the package onnx: pip install 'dladmm[onnx]'. --format torch-export, state-dict "
            "and packed need nothing."
        )
    model = load_model(run / "model.safetensors")
    module = model.module.eval()
    file = (run / f"model{FORMATS[kind]}") if out is None else out
    if kind != "state-dict" and not isinstance(module, torch.nn.Sequential):
        raise InputError(
            f"{run} holds a graph network, which takes a graph as well: only state-dict can be exported."
        )
    if kind.startswith("packed"):
        return _write_packed(run, model, kind, file)
    try:
        if kind == "state-dict":
            torch.save(module.state_dict(), file)
            return file
        first = next(module.parameters())
        example = (torch.zeros(2, features_taken(module), dtype=first.dtype),)
        if kind == "torch-export":
            program = torch.export.export(module, example, dynamic_shapes=({0: torch.export.Dim("rows")},))
            torch.export.save(program, file)
        else:
            _write_onnx(module, example, file)
    except OSError as error:
        raise DataError(f"{file} could not be written: {error}") from error
    return file


def _write_onnx(module: torch.nn.Module, example: tuple[Tensor], file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own exporters
        torch.onnx.export(
            module,
            example,
            str(file),
            dynamo=False,
            input_names=["x"],
            output_names=["output"],
            dynamic_axes={"x": {0: "rows"}, "output": {0: "rows"}},
        )


def _write_packed(run: Path, model: SavedModel, kind: str, file: Path) -> Path:
    """Whole numbers, and beside bits the file that reads them; compared with the network on the test rows."""
    if model.extra.get("table") is not None:
        raise InputError(
            f"{run} was trained on a table, whose columns are no whole numbers: it cannot be packed."
        )
    rows = load_rows(with_paths(stored(run), run, read_origin(run)))
    x = np.asarray(rows.x_test if len(rows.x_test) else rows.x_train)
    unit = unit_of(x)
    write = save_packed if kind == "packed" else save_packed_onnx
    write(model.module, file, unit=unit, classes=model.extra.get("classes"))
    try:
        found = (
            PackedNetwork(file).decision_function(x) if kind == "packed" else run_packed_onnx(file, x, unit)
        )
        expected = _outputs(model, x).numpy()[: len(found)]
        same = (
            found.argmax(1) == expected.argmax(1)
            if expected.shape[1] > 1
            else np.isclose(found, expected)[:, 0]
        )
        if not same.all():
            raise DataError(
                f"{(~same).sum()} of {len(same)} test rows are predicted otherwise by the packed network."
            )
    except DladmmError:
        file.unlink()
        raise
    if kind == "packed":
        shutil.copyfile(dladmm.packed.__file__, file.parent / "packed.py")
    return file
