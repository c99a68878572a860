"""Reads Coauthor CS and Physics (Shchur et al. 2018): authors, with an edge where they wrote a paper together.

The npz file stores the graph and the keyword counts of each author as compressed sparse rows. As in the
original benchmark and in PyG a count becomes 1, and the graph becomes undirected without self loops. There
is no public split. The paper trains on 100 nodes per class (its label rates 8.18 % and 1.45 %) and tests on
1,000 of the rest.
"""

from __future__ import annotations

import numpy as np
import torch

from dladmm.base.errors import DataError
from dladmm.datasets._sparse import csr_from, labels_from, shape_from, undirected
from dladmm.datasets._types import GraphData, split_nodes
from dladmm.datasets.npz import parse_npz

# Only these: `class_names` is a pickle and is never opened; the two lists of names are not needed.
_ARRAYS = tuple(
    f"{what}_{part}" for what in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")
)


def parse_coauthor(
    data: bytes,
    name: str,
    *,
    source: str = "",
    counts: bool = False,
    labels_per_class: int = 100,
    n_test: int | None = 1000,
    n_val: int = 0,
    seed: int = 0,
) -> GraphData:
    """The graph in an npz file, with a random split from `seed`; `counts` keeps the feature counts."""
    source = source or f"{name}.npz"
    a = parse_npz(data, source, (*_ARRAYS, "labels"))
    adjacency, features = (
        csr_from(
            a[f"{what}_data"],
            a[f"{what}_indices"],
            a[f"{what}_indptr"],
            shape_from(a[f"{what}_shape"], source),
            source,
        )
        for what in ("adj", "attr")
    )
    nodes = features.shape[0]
    if adjacency.shape != (nodes, nodes):
        raise DataError(
            f"{source}: a graph of {adjacency.shape} with features of {features.shape}; fetch it again"
        )
    labels = labels_from(a["labels"], nodes, source)
    sizes = np.bincount(labels)
    if not len(sizes) or sizes.min() == 0 or (features.data < 0).any():
        raise DataError(
            f"{source}: a class without nodes, or a negative count; the file is damaged, fetch it again"
        )
    n_classes = len(sizes)
    if not counts:
        features.data[:] = 1.0
    row = np.repeat(np.arange(nodes), np.diff(adjacency.indptr))
    train, val, test = split_nodes(
        labels, n_classes, labels_per_class=labels_per_class, n_test=n_test, n_val=n_val, seed=seed
    )
    return GraphData(
        x=features,
        edge_index=undirected(row, adjacency.indices, nodes, source),
        y=torch.from_numpy(labels),
        train_mask=torch.from_numpy(train),
        val_mask=torch.from_numpy(val),
        test_mask=torch.from_numpy(test),
        n_classes=n_classes,
        name=name,
    )
