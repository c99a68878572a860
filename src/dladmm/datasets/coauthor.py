"""Reads Coauthor CS and Physics (Shchur et al. 2018): authors, with an edge where they wrote a paper together.

The npz file stores the graph and the keyword counts of each author as compressed sparse rows. As in the
original benchmark and in PyG a count becomes 1, and the graph becomes undirected without self loops. There
is no public split. The paper trains on 100 nodes per class (its label rates 8.18 % and 1.45 %) and tests on
1,000 of the rest; which ones its published script says, by torch's generator and the seed 100.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import DataError, InputError
from dladmm.datasets._sparse import csr_from, labels_from, shape_from, undirected
from dladmm.datasets._types import GraphData, Mask, split_nodes
from dladmm.datasets.npz import parse_npz

# Only these: `class_names` is a pickle and is never opened; the two lists of names are not needed.
_ARRAYS = tuple(
    f"{what}_{part}" for what in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")
)


PAPER_SEED = 100
"""Of the split in the paper's published script."""


def parse_coauthor(
    data: bytes,
    name: str,
    *,
    source: str = "",
    counts: bool = False,
    split: str | None = None,
    labels_per_class: int = 100,
    n_test: int | None = 1000,
    n_val: int = 0,
    seed: int | None = None,
) -> GraphData:
    """The graph in an npz file with the paper's split, or a random one; `counts` keeps the feature counts.

    `split` is "paper" or "random"; None is the paper's unless a number or a seed of a random one is given.
    """
    own = seed is not None or (labels_per_class, n_test, n_val) != (100, 1000, 0)
    if split not in (None, "paper", "random"):
        raise InputError(f"split is {split!r}; it must be 'paper' or 'random'")
    if split == "paper" and own:
        raise InputError(
            "split='paper' has 100 labelled nodes a class, 1,000 test nodes and no seed; leave those out"
        )
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
    if split == "random" or own:
        train, val, test = split_nodes(
            labels,
            n_classes,
            labels_per_class=labels_per_class,
            n_test=n_test,
            n_val=n_val,
            seed=0 if seed is None else seed,
        )
    else:
        train, val, test = paper_split(labels, n_classes)
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


def paper_split(
    y: NDArray[np.int64], n_classes: int, *, labels_per_class: int = 100, n_test: int = 1000
) -> tuple[Mask, Mask, Mask]:
    """Masks (nodes,) for training, validation (empty) and test, as the paper's published script draws them.

    For every class, and once more for the rest, torch's CPU generator begins anew at seed 100; the first nodes of its
    permutation are taken. Fewer nodes than asked for are all taken, as there.
    """

    def first(nodes: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(PAPER_SEED))
        chosen: NDArray[np.int64] = nodes[order[:n].numpy()]
        return chosen

    train, test = np.zeros(len(y), dtype=bool), np.zeros(len(y), dtype=bool)
    for label in range(n_classes):
        train[first(np.flatnonzero(y == label), labels_per_class)] = True
    test[first(np.flatnonzero(~train), n_test)] = True
    return train, np.zeros(len(y), dtype=bool), test
