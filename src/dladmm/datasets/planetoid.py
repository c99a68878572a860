"""Reads Cora, CiteSeer and PubMed as published by Planetoid: eight `ind.*` files, or one converted npz file.

`allx` and `ally` are the nodes outside the test set, in order. Row i of `tx` and `ty` is node number
`test.index[i]`, and that list is not sorted. CiteSeer skips 15 numbers of the test range: these nodes get no
features and class 0, and are in no split. `x` and `y` repeat the first rows of `allx`: the training nodes;
the 500 nodes after them validate. The neighbour lists of `graph` repeat edges and hold self loops; both are
removed. All of this is what Kipf's and PyG's code do.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import DataError
from dladmm.base.scipy_sparse import sparse
from dladmm.datasets import unpickle
from dladmm.datasets._sparse import csr_from, labels_from, shape_from, undirected
from dladmm.datasets._standins import SparseRows
from dladmm.datasets._types import GraphData
from dladmm.datasets.npz import parse_npz

PARTS = ("x", "y", "allx", "ally", "tx", "ty", "graph", "test.index")
VALIDATION_NODES = 500
ARRAY_OPCODES = 1_000

_NPZ_ARRAYS = (
    "features_data",
    "features_indices",
    "features_indptr",
    "features_shape",
    "labels",
    "edge_index",
    "train_index",
    "val_index",
    "test_index",
    "num_classes",
)


def parse_planetoid(files: dict[str, bytes], name: str) -> GraphData:
    """The graph in the eight files `ind.NAME.PART`, given by part."""
    x, allx, tx = (_features(files[part], f"ind.{name}.{part}") for part in ("x", "allx", "tx"))
    y, ally, ty = (_one_hot(files[part], f"ind.{name}.{part}") for part in ("y", "ally", "ty"))
    order = _test_index(files["test.index"], f"ind.{name}.test.index")

    def need(holds: bool, problem: str) -> None:
        if not holds:
            raise DataError(
                f"{name}: {problem}; the ind.{name}.* files are damaged or mixed, fetch them again"
            )

    first, last = allx.shape[0], int(order.max())
    nodes = last + 1
    need(allx.shape[1] == tx.shape[1] == x.shape[1], "allx, tx and x have different numbers of features")
    need(ally.shape[1] == ty.shape[1] == y.shape[1], "ally, ty and y have different numbers of classes")
    need(len(ally) == first and len(y) == x.shape[0], "a label is missing, or one too many")
    need(len(ty) == tx.shape[0] == len(order), "the test index does not fit the test rows")
    need(len(np.unique(order)) == len(order), "the test index names a node twice")
    need(int(order.min()) == first, "the test nodes do not follow the others")
    need(nodes - first <= 2 * len(order), "the test index leaves out more nodes than it names")
    need(len(y) + VALIDATION_NODES <= first, "too few nodes to train and validate on")
    same = (allx[: len(y)] - x).nnz == 0 and np.array_equal(ally[: len(y)], y)
    need(same, "x and y are not the beginning of allx and ally")

    # Rows of tx go to their node numbers; a node without a row has no features and class 0.
    place = np.full(nodes - first, len(order), dtype=np.int64)
    place[order - first] = np.arange(len(order))
    blank_row = sparse.csr_array((1, tx.shape[1]), dtype=np.float32)
    features = sparse.vstack([allx, sparse.vstack([tx, blank_row], format="csr")[place]], format="csr")
    labels = np.concatenate([ally.argmax(axis=1), np.append(ty.argmax(axis=1), 0)[place]])

    row, col = _neighbours(files["graph"], f"ind.{name}.graph")
    return _graph(
        name,
        sparse.csr_array(features),
        undirected(row, col, nodes, f"ind.{name}.graph"),
        labels,
        (np.arange(len(y)), np.arange(len(y), len(y) + VALIDATION_NODES), order),
        n_classes=ally.shape[1],
    )


def parse_planetoid_npz(data: bytes, name: str) -> GraphData:
    """The graph in a converted copy NAME.npz, which holds the same numbers as arrays."""
    source = f"{name}.npz"
    a = parse_npz(data, source, _NPZ_ARRAYS)
    shape = shape_from(a["features_shape"], source)
    nodes = shape[0]
    features = csr_from(a["features_data"], a["features_indices"], a["features_indptr"], shape, source)
    if a["num_classes"].shape != () or not 1 <= a["num_classes"] <= 10_000:
        raise DataError(f"{source}: num_classes is damaged; fetch the file again")
    n_classes = int(a["num_classes"])
    labels = labels_from(a["labels"], nodes, source, most=n_classes)
    edges = a["edge_index"]
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise DataError(
            f"{source}: edge_index has shape {edges.shape}, {edges.dtype}; (2, E) integers are needed"
        )
    split = tuple(a[part] for part in ("train_index", "val_index", "test_index"))
    for index in split:
        inside = index.ndim == 1 and index.dtype.kind in "iu"
        if not inside or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < nodes):
            raise DataError(f"{source}: a split names nodes outside 0..{nodes - 1}; fetch the file again")
    return _graph(
        name, features, undirected(edges[0], edges[1], nodes, source), labels, split, n_classes=n_classes
    )


def _graph(
    name: str,
    x: sparse.csr_array,
    edge_index: torch.Tensor,
    labels: NDArray[Any],
    split: tuple[NDArray[Any], ...],
    *,
    n_classes: int,
) -> GraphData:
    masks = []
    for index in split:
        mask = torch.zeros(x.shape[0], dtype=torch.bool)
        mask[torch.from_numpy(index.astype(np.int64))] = True
        masks.append(mask)
    train, val, test = masks
    y = torch.from_numpy(labels.astype(np.int64))
    return GraphData(
        x, edge_index, y, train_mask=train, val_mask=val, test_mask=test, n_classes=n_classes, name=name
    )


def _features(pickled: bytes, source: str) -> sparse.csr_array:
    value = unpickle.load(pickled, source, max_opcodes=ARRAY_OPCODES)
    state = value.state if isinstance(value, SparseRows) else {}
    match [state.get(key) for key in (b"data", b"indices", b"indptr", b"_shape")]:
        case [
            np.ndarray() as data,
            np.ndarray() as indices,
            np.ndarray() as indptr,
            (int(rows), int(columns)),
        ]:
            return csr_from(data, indices, indptr, (rows, columns), source)
    raise DataError(f"{source}: does not hold a sparse matrix; fetch the file again")


def _one_hot(data: bytes, source: str) -> NDArray[Any]:
    value = unpickle.load(data, source, max_opcodes=ARRAY_OPCODES)
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind != "i" or value.size == 0:
        raise DataError(f"{source}: does not hold a table of integers; fetch the file again")
    if not np.isin(value, (0, 1)).all() or not (value.sum(axis=1) == 1).all():
        raise DataError(f"{source}: a node has several classes, or none; fetch the file again")
    return value


def _test_index(data: bytes, source: str) -> NDArray[np.int64]:
    """Node numbers, one per line, in ASCII digits."""
    words = data.split()
    if not words or not all(word.isdigit() and len(word) <= 9 for word in words):
        raise DataError(f"{source}: should hold whole numbers, one per line; fetch the file again")
    return np.array([int(word) for word in words], dtype=np.int64)


def _neighbours(data: bytes, source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ends of every entry of the neighbour lists."""
    lists = unpickle.load(data, source)
    if not isinstance(lists, dict) or not all(isinstance(value, list) for value in lists.values()):
        raise DataError(f"{source}: does not map nodes to lists of neighbours; fetch the file again")
    lengths = [len(value) for value in lists.values()]
    # An entry takes at least two bytes of a valid file; a list shared through the memo could be very long.
    if sum(lengths) > len(data):
        raise DataError(f"{source}: has more neighbours than bytes; fetch the file again")
    if not all(type(node) is int for node in chain(lists, *lists.values())):
        raise DataError(f"{source}: holds something other than node numbers; fetch the file again")
    row = np.repeat(np.fromiter(lists, dtype=np.int64, count=len(lists)), lengths)
    col = np.fromiter(chain.from_iterable(lists.values()), dtype=np.int64, count=len(row))
    return row, col
