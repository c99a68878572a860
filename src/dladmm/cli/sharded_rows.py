"""Loads the data of a command-line run on several ranks: every rank reads its own rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import TableData, load_rows, split_rows
from dladmm.compute.communicator import Communicator
from dladmm.compute.shards import share
from dladmm.datasets._locate import find, roots
from dladmm.datasets._registry import dataset
from dladmm.datasets.idx import VALIDATION_ROWS
from dladmm.datasets.partial_reading import idx_rows, npz_names, npz_rows, shape_of
from dladmm.losses import get_loss

Array = NDArray[Any]

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
    return TableData(parts[0], parts[1], parts[2], parts[3], 10, list(range(10)))


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
        else:
            y = npz_rows(path, "y", slice(None))
            kept, held, encoded, n_outputs, classes = split_rows(y, config)
            kept, held = (each[share(len(each), comm.rank, comm.size)] for each in (kept, held))
            parts = [npz_rows(path, "x", kept), encoded[kept], npz_rows(path, "x", held), encoded[held]]
    if n_outputs is not None:
        return TableData(parts[0], parts[1], parts[2], parts[3], n_outputs, classes)
    labels = [parts[1], parts[3]]
    if get_loss(config.loss).kind != "classification":
        columns = [y.astype(np.float64).reshape(len(y), -1) for y in labels]
        return TableData(parts[0], columns[0], parts[2], columns[1], columns[0].shape[1], None)
    own = sorted({label for y in labels for label in np.unique(y).tolist()})
    everywhere = sorted({label for said in comm.texts(json.dumps(own)) for label in json.loads(said)})
    encoded_parts = [np.searchsorted(np.array(everywhere), y) for y in labels]
    return TableData(parts[0], encoded_parts[0], parts[2], encoded_parts[1], len(everywhere), everywhere)
