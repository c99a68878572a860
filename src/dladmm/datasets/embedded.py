"""Data sets that need no download: scikit-learn's digits and Zachary's karate club."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import InputError
from dladmm.datasets._types import GraphData, ImageData, stable_order, whole_number

# W. W. Zachary, An information flow model for conflict and fission in small groups, 1977: who met whom
# outside the club. Row i lists the members above i whom member i met.
_KARATE_TIES: tuple[tuple[int, ...], ...] = (
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    (2, 3, 7, 13, 17, 19, 21, 30),
    (3, 7, 8, 9, 13, 27, 28, 32),
    (7, 12, 13),
    (6, 10),
    (6, 10, 16),
    (16,),
    (),
    (30, 32, 33),
    (33,),
    (),
    (),
    (),
    (33,),
    (32, 33),
    (32, 33),
    (),
    (),
    (32, 33),
    (33,),
    (32, 33),
    (),
    (32, 33),
    (25, 27, 29, 32, 33),
    (25, 27, 31),
    (31,),
    (29, 33),
    (33,),
    (31, 33),
    (32, 33),
    (32, 33),
    (32, 33),
    (33,),
    (),
)
# The four communities of greatest modularity, numbered as in PyG's KarateClub.
_KARATE_COMMUNITIES = (
    1, 1, 1, 1, 3, 3, 3, 1, 0, 1, 3, 1, 1, 1, 0, 0, 3,
    1, 0, 1, 0, 1, 0, 0, 2, 2, 0, 0, 2, 0, 0, 2, 0, 0,
)  # fmt: skip


def karate(*, labels_per_class: int = 1) -> GraphData:
    """Zachary's karate club: 34 members, 78 ties (156 directed edges), 4 communities, identity features.

    Parameters
    ----------
    labels_per_class : int, default 1
        The first so many members of each community are training nodes (1 as in PyG), all others test nodes.

    Returns
    -------
    GraphData
    """
    labels_per_class = whole_number(labels_per_class, "labels_per_class", least=1)
    y = np.array(_KARATE_COMMUNITIES, dtype=np.int64)
    smallest = int(np.bincount(y).min())
    if labels_per_class > smallest:
        raise InputError(
            f"labels_per_class is {labels_per_class}; the smallest community has {smallest} members"
        )
    train = np.zeros(len(y), dtype=bool)
    for label in range(4):
        train[np.flatnonzero(y == label)[:labels_per_class]] = True
    ties = [(i, j) for i, others in enumerate(_KARATE_TIES) for j in others]
    edges = np.array(sorted(ties + [(j, i) for i, j in ties]), dtype=np.int64)
    return GraphData(
        x=torch.eye(len(y)),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges.T)),
        y=torch.from_numpy(y),
        train_mask=torch.from_numpy(train),
        val_mask=torch.zeros(len(y), dtype=torch.bool),
        test_mask=torch.from_numpy(~train),
        n_classes=4,
        name="karate",
    )


def digits(*, n_test: int = 360, seed: int = 0) -> ImageData:
    """1,797 handwritten digits of 8 x 8 pixels (UCI, comes with scikit-learn), pixels scaled to [0, 1].

    Parameters
    ----------
    n_test : int, default 360
        Number of test samples.
    seed : int, default 0
        Seed of the split.

    Returns
    -------
    ImageData
    """
    table = _table_of_digits()
    x, y = (table[:, :-1] / 16.0).astype(np.float32), table[:, -1].astype(np.int64)
    return shuffled_rows("digits", x, y, n_test, seed, image_shape=(8, 8))


def _table_of_digits() -> NDArray[np.float64]:
    """Pixels and labels, (1797, 65), from the file that scikit-learn brings along.

    Where it lies there, the package itself, which takes a second to import, is not needed to read it.
    """
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",", ndmin=2)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def shuffled_rows(
    name: str,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    n_test: int,
    seed: int,
    image_shape: tuple[int, int] | None = None,
) -> ImageData:
    """An ImageData of x (n, features) and y (n,) in random order, whose last `n_test` rows are the test set."""
    n_train = len(y) - whole_number(n_test, "n_test", least=1)
    if n_train < 1:
        raise InputError(f"n_test is {n_test}; {name} has {len(y)} rows and at least one has to train")
    order = stable_order(len(y), seed)
    rows, labels = torch.from_numpy(x[order]), torch.from_numpy(y[order])
    return ImageData(
        x_train=rows[:n_train],
        y_train=labels[:n_train],
        x_test=rows[n_train:],
        y_test=labels[n_train:],
        n_classes=int(y.max()) + 1,
        image_shape=image_shape,
        name=name,
    )
