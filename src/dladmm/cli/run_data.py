"""Loads the data of a command-line run from a named data set, a CSV file or an npz file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm import datasets
from dladmm.api.node_checks import MOST_CLASSES
from dladmm.base.errors import DataError, InputError
from dladmm.base.table_file import read_npz
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_table import load_table
from dladmm.cli.task import CLASSES, Task, decide
from dladmm.compute.communicator import Communicator, share
from dladmm.datasets import GraphData, ImageData
from dladmm.datasets._locate import find, roots
from dladmm.datasets._registry import dataset
from dladmm.datasets.idx import VALIDATION_ROWS
from dladmm.datasets.partial_reading import idx_rows, npz_names, npz_rows, shape_of
from dladmm.losses import get_loss
from dladmm.network.graph import check_node_features
from dladmm.tables import TableEncoder
from dladmm.tables.content import printable

Array = NDArray[Any]


@dataclass(frozen=True)
class TableData:
    """Training and test data for an MLP.

    ``x_train`` and ``x_test`` have shape (rows, features), ``y_train`` and ``y_test`` (rows,) or (rows, n_outputs).
    ``classes`` are the label names, None for regression; ``features`` the column names, if known. ``encoder`` made x
    from a table with text and gaps; ``notes`` say what was guessed or left out. ``task`` says what was decided, and by
    which loss.
    """

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    n_outputs: int
    classes: list[Any] | None
    features: list[str] = field(default_factory=list)
    encoder: TableEncoder | None = None
    notes: tuple[str, ...] = ()
    task: Task = CLASSES

    def describe(self) -> str:
        """The sizes in words."""
        several = "s" * (self.n_outputs != 1)
        kind = f"{self.n_outputs} output{several}" if self.classes is None else f"{len(self.classes)} classes"
        sizes = f"{len(self.x_train)} training rows, {len(self.x_test)} test rows"
        return f"{sizes}, {self.x_train.shape[1]} features, {kind}"


def load_rows(config: RunConfig) -> TableData:
    """The data of a named data set, a CSV file or an npz file (x, y, or x_train, y_train, x_test, y_test)."""
    if config.dataset is not None:
        data = datasets.load(config.dataset, data_dir=config.data_dir)
        if not isinstance(data, ImageData):
            raise InputError(f"{config.dataset} is a graph; use: dladmm train gcn --dataset {config.dataset}")
        if config.task == "regression":
            raise InputError(f"{config.dataset} holds classes; leave --task regression out.")
        if config.task == "auto" and config.loss is None:
            return rows_of(data)
        return rows_of(data, decide(np.asarray(data.y_train), config.task, config.loss).loss)
    if config.csv is not None:
        return _split_table(config)
    arrays = read_npz(Path(str(config.npz)), ())
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        y = np.concatenate([arrays["y_train"], arrays["y_test"]])
        task = decide(y, config.task, config.loss)
        encoded, n_outputs, classes = _encode(y, task)
        n = len(arrays["y_train"])
        halves = arrays["x_train"], encoded[:n], arrays["x_test"], encoded[n:]
        return TableData(*halves, n_outputs, classes, task=task)
    arrays = read_npz(Path(str(config.npz)), ("x", "y"))
    return _split(arrays["x"], arrays["y"], [], config)


def rows_of(data: ImageData, loss: str = "cross_entropy") -> TableData:
    """A named data set in the form of a run; its classes are 0, 1, 2, ..."""
    names, task = list(range(data.n_classes)), replace(CLASSES, kind=get_loss(loss).kind, loss=loss)
    return TableData(data.x_train, data.y_train, data.x_test, data.y_test, data.n_classes, names, task=task)


def load_graph(config: RunConfig) -> Any:
    """A named graph, or the arrays x, edge_index, y, train_mask (and test_mask) of an npz file."""
    if config.csv is not None:
        raise InputError("a graph comes from --dataset or --npz, not from --csv.")
    if config.dataset is not None:
        data = datasets.load(config.dataset, data_dir=config.data_dir)
        if not isinstance(data, GraphData):
            raise InputError(
                f"{config.dataset} is not a graph; use: dladmm train mlp --dataset {config.dataset}"
            )
        return data
    import torch

    path = Path(str(config.npz))
    arrays = read_npz(path, ("x", "edge_index", "y", "train_mask"))
    y, edges = (_whole(arrays[name], name, path) for name in ("y", "edge_index"))
    if y.ndim != 1 or len(y) == 0 or int(y.max()) >= MOST_CLASSES:
        raise InputError(f"{path}: y must hold one class per node, numbered 0, 1, 2, ...; got {y.shape}.")
    none = np.zeros(len(y), dtype=bool)
    train, val, test = (
        torch.from_numpy(_whole(arrays.get(f"{part}_mask", none), f"{part}_mask", path) != 0)
        for part in ("train", "val", "test")
    )
    x = check_node_features(arrays["x"], torch.float32)
    features = torch.from_numpy(np.asarray(x, dtype=np.float32))
    classes = int(y.max()) + 1
    return GraphData(
        features,
        torch.from_numpy(edges),
        torch.from_numpy(y),
        train,
        val,
        test,
        n_classes=classes,
        name=path.stem,
    )


def _whole(array: Array, name: str, path: Path) -> Array:
    """The array as int64; raises for fractions instead of truncating them."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and not (array == np.rint(array)).all()):
        raise InputError(f"{path}: {name} must hold whole numbers, got dtype {array.dtype} with others.")
    return array.astype(np.int64)


def _split(x: Array, y: Array | None, features: list[str], config: RunConfig) -> TableData:
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim != 2 or len(x) != (len(y) if y.ndim else None):
        raise InputError(
            f"x must have one row per sample and y one entry per row; got shapes {x.shape} and {y.shape}."
        )
    task = decide(y, config.task, config.loss)
    kept, held, encoded, n_outputs, classes = split_rows(y, config)
    return TableData(x[kept], encoded[kept], x[held], encoded[held], n_outputs, classes, features, task=task)


def _split_table(config: RunConfig) -> TableData:
    """Training and test rows of ``--csv``; fills and levels are learned from the training rows alone."""
    table = load_table(config)
    task = decide(table.y, config.task, config.loss)
    kept, held, encoded, n_outputs, classes = split_rows(table.y, config)
    train, test = table.frame.take(kept), table.frame.take(held)
    encoder = TableEncoder.fit(train)
    return TableData(
        encoder.transform(train),
        encoded[kept],
        encoder.transform(test),
        encoded[held],
        n_outputs,
        classes,
        features=encoder.names,
        encoder=encoder,
        notes=(*table.notes, *encoder.notes),
        task=task,
    )


def split_rows(y: Array, config: RunConfig) -> tuple[Array, Array, Array, int, list[Any] | None]:
    """Indices of training and of test rows, and the encoded targets, number of outputs and classes."""
    # A second to import, for runs that have no test rows of their own
    from sklearn.model_selection import train_test_split

    encoded, n_outputs, classes = _encode(y, decide(y, config.task, config.loss))
    stratify = encoded if classes is not None and np.bincount(encoded).min() > 1 else None
    try:
        kept, held = train_test_split(
            np.arange(len(encoded)),
            test_size=config.test_fraction,
            random_state=config.seed,
            stratify=stratify,
        )
    except ValueError as error:
        raise InputError(f"the data cannot be split into training and test rows: {error}") from error
    return kept, held, encoded, n_outputs, classes


def _encode(y: Array, task: Task) -> tuple[Array, int, list[Any] | None]:
    """Encoded targets, number of outputs, and class names: labels as 0..C-1, or real targets (rows, n_outputs)."""
    if task.kind == "classification":
        if y.ndim != 1 or len(y) == 0:
            raise InputError(f"the target must hold one label per row, got shape {y.shape}.")
        classes, encoded = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"the target holds one class only ({printable(str(classes[0]))}); at least two are needed."
            )
        return encoded, len(classes), [c.item() for c in classes]
    try:
        target = np.atleast_1d(y).astype(np.float64)
        target = target.reshape(len(target), -1)
    except ValueError as error:
        raise InputError(f"the target must be numbers for loss {task.loss}: {error}") from error
    return target, target.shape[1], None


DECIDING_ROWS = 1_000_000
"""Rows of a file read in parts whose targets decide the task."""

FIRST_ROW = {"mnist": VALIDATION_ROWS, "fashion_mnist": 0}
"""Index of the first training row in an image data set's file."""


def load_own_rows(config: RunConfig, comm: Communicator) -> TableData:
    """This rank's training and test rows, as :func:`~dladmm.cli.run_data.load_rows` returns them for one process.

    CSV files and the data sets that come with the library are small: they are read completely, then sliced.
    """
    if comm.alone:
        return load_rows(config)
    if config.dataset in FIRST_ROW:
        with comm.together():
            return _images(config, comm)
    if config.npz is not None:
        return _npz(config, comm)
    with comm.together():
        whole = load_rows(config)
        train, test = (share(len(y), comm.rank, comm.size) for y in (whole.y_train, whole.y_test))
        return replace(
            whole,
            x_train=whole.x_train[train],
            y_train=whole.y_train[train],
            x_test=whole.x_test[test],
            y_test=whole.y_test[test],
        )


def _images(config: RunConfig, comm: Communicator) -> TableData:
    """This rank's rows of the idx files; checksums are not verified (``dladmm datasets verify`` does)."""
    entry = dataset(str(config.dataset))
    places = {file.unpacked_name: find(entry, file, roots(config.data_dir)) for file in entry.files}
    paths = {name: found.path for name, found in places.items() if found is not None}
    parts = []
    for part, first in (("train", FIRST_ROW[entry.name]), ("t10k", 0)):
        names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        missing = [name for name in names if name not in paths]
        if missing:
            raise DataError(
                f"{entry.name}: {missing[0]} is missing; fetch it: dladmm datasets fetch {entry.name}"
            )
        images, labels = (paths[name] for name in names)
        mine = share(shape_of(images)[0] - first, comm.rank, comm.size)
        rows = slice(first + mine.start, first + mine.stop)
        pixels = idx_rows(images, rows)
        x = pixels.reshape(len(pixels), int(np.prod(pixels.shape[1:]))).astype(np.float32) / np.float32(255)
        parts += [x, idx_rows(labels, rows).astype(np.int64)]
    task = replace(CLASSES, loss=config.loss or CLASSES.loss)
    return TableData(parts[0], parts[1], parts[2], parts[3], 10, list(range(10)), task=task)


def _npz(config: RunConfig, comm: Communicator) -> TableData:
    path = Path(str(config.npz))
    with comm.together():
        names = set(npz_names(path))
        if {"x_train", "y_train", "x_test", "y_test"} <= names:
            parts: list[Array] = []
            for part in ("train", "test"):
                mine = share(shape_of(path, f"y_{part}")[0], comm.rank, comm.size)
                parts += [npz_rows(path, f"{kind}_{part}", mine) for kind in ("x", "y")]
            n_outputs, classes = None, None
            task = decide(npz_rows(path, "y_train", slice(DECIDING_ROWS)), config.task, config.loss)
        else:
            y = npz_rows(path, "y", slice(None))
            task = decide(y, config.task, config.loss)
            kept, held, encoded, n_outputs, classes = split_rows(y, config)
            kept, held = (each[share(len(each), comm.rank, comm.size)] for each in (kept, held))
            parts = [npz_rows(path, "x", kept), encoded[kept], npz_rows(path, "x", held), encoded[held]]
    if n_outputs is not None:
        return TableData(parts[0], parts[1], parts[2], parts[3], n_outputs, classes, task=task)
    labels = [parts[1], parts[3]]
    if task.kind != "classification":
        columns = [y.astype(np.float64).reshape(len(y), -1) for y in labels]
        return TableData(parts[0], columns[0], parts[2], columns[1], columns[0].shape[1], None, task=task)
    own = sorted({label for y in labels for label in np.unique(y).tolist()})
    everywhere = sorted({label for said in comm.texts(json.dumps(own)) for label in json.loads(said)})
    encoded_parts = [np.searchsorted(np.array(everywhere), y) for y in labels]
    return TableData(
        parts[0], encoded_parts[0], parts[2], encoded_parts[1], len(everywhere), everywhere, task=task
    )
