"""Generated data: moons and spirals in the plane, and stochastic block model graphs.

The same seed gives the same data; no global random state is read or changed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.datasets._types import GraphData, ImageData, bounded_number, split_nodes, whole_number
from dladmm.datasets.embedded import shuffled_rows

Integers = NDArray[np.int64]


def moons(*, n_samples: int = 1000, n_test: int = 200, noise: float = 0.1, seed: int = 0) -> ImageData:
    """Two interleaving half circles with Gaussian noise of deviation `noise`: an ImageData with 2 features.

    `n_samples` rows in all, of which `n_test` are for testing, drawn with `seed`.
    """
    y, rng = _balanced(n_samples, 2, seed)
    angle = np.pi * rng.random(len(y))
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1.0 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    return _points("moons", np.where(y[:, None] == 0, upper, lower), y, noise, n_test, seed, rng)


def spirals(
    *,
    n_samples: int = 1000,
    n_test: int = 200,
    n_classes: int = 2,
    turns: float = 1.5,
    noise: float = 0.02,
    seed: int = 0,
) -> ImageData:
    """`n_classes` interleaved spiral arms of `turns` turns, with Gaussian noise: an ImageData with 2 features.

    `n_samples` rows in all, of which `n_test` are for testing, drawn with `seed`.
    """
    n_classes = whole_number(n_classes, "n_classes", least=2)
    turns = bounded_number(turns, "turns", most=100.0)
    y, rng = _balanced(n_samples, n_classes, seed)
    radius = np.sqrt(rng.random(len(y)))  # even along the arm, not crowded in the middle
    angle = 2.0 * np.pi * (turns * radius + y / n_classes)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return _points("spirals", x, y, noise, n_test, seed, rng)


def sbm(
    *,
    n_nodes: int = 1000,
    n_classes: int = 4,
    degree: float = 10.0,
    homophily: float = 0.8,
    n_features: int = 128,
    words_per_node: int = 12,
    signal: float = 0.5,
    labels_per_class: int = 20,
    n_test: int | None = None,
    n_val: int = 0,
    seed: int = 0,
) -> GraphData:
    """A stochastic block model: classes of equal size, edges mostly within them, sparse 0/1 features.

    Parameters
    ----------
    n_nodes, n_classes, n_features : int
    degree : float
        Mean degree: the graph has n_nodes * degree / 2 undirected edges in expectation. Every pair of nodes has an edge
        independently, with a probability that depends on its two classes.
    homophily : float
        Expected share of edges within a class.
    words_per_node : int
        Features drawn per node; one drawn twice counts once.
    signal : float
        Share of the drawn features that come from the block of features of the node's class, the rest from all.
    labels_per_class, n_test, n_val, seed : int
        The split, as in `GraphData.resplit`.

    Returns
    -------
    GraphData
    """
    n_nodes = whole_number(n_nodes, "n_nodes", least=2)
    n_classes = whole_number(n_classes, "n_classes", least=2)
    n_features = whole_number(n_features, "n_features", least=n_classes)
    words_per_node = whole_number(words_per_node, "words_per_node", least=1)
    homophily, signal = bounded_number(homophily, "homophily"), bounded_number(signal, "signal")
    degree = bounded_number(degree, "degree", most=float(n_nodes - 1))
    y, rng = _balanced(n_nodes, n_classes, seed)
    edge_index = _edges(y, n_classes, n_nodes * degree / 2.0, homophily, rng)
    x = _words(y, n_classes, n_features, words_per_node, signal, rng)
    train, val, test = split_nodes(
        y, n_classes, labels_per_class=labels_per_class, n_test=n_test, n_val=n_val, seed=seed
    )
    return GraphData(
        x=x,
        edge_index=edge_index,
        y=torch.from_numpy(y),
        train_mask=torch.from_numpy(train),
        val_mask=torch.from_numpy(val),
        test_mask=torch.from_numpy(test),
        n_classes=n_classes,
        name="sbm",
    )


def _balanced(n: int, n_classes: int, seed: int) -> tuple[Integers, np.random.Generator]:
    """Labels (n,) in random order, class sizes differing by at most one, and the generator for further numbers."""
    n = whole_number(n, "n_samples", least=n_classes)
    rng = np.random.default_rng(whole_number(seed, "seed"))
    return rng.permutation(np.arange(n, dtype=np.int64) % n_classes), rng


def _points(
    name: str,
    x: NDArray[np.float64],
    y: Integers,
    noise: float,
    n_test: int,
    seed: int,
    rng: np.random.Generator,
) -> ImageData:
    x = x + bounded_number(noise, "noise", most=math.inf) * rng.standard_normal(x.shape)
    return shuffled_rows(name, x.astype(np.float32), y, n_test, seed)


def _edges(
    y: Integers, n_classes: int, expected: float, homophily: float, rng: np.random.Generator
) -> torch.Tensor:
    """For each pair of classes: how many edges (binomial), then which (distinct, uniform)."""
    members = np.split(np.argsort(y, kind="stable"), np.cumsum(np.bincount(y, minlength=n_classes))[:-1])
    sizes = np.array([len(nodes) for nodes in members], dtype=np.int64)
    inside = int((sizes * (sizes - 1) // 2).sum())
    across = int(len(y) * (len(y) - 1) // 2) - inside
    p_in = expected * homophily / inside if inside else 0.0
    p_out = expected * (1.0 - homophily) / across
    if max(p_in, p_out) > 1.0:
        raise InputError(
            f"degree={2 * expected / len(y):g}, homophily={homophily:g}: more edges than {len(y)} nodes in "
            f"{n_classes} classes have pairs for; lower degree or change homophily"
        )
    keys = []
    for a, first in enumerate(members):
        for b, second in enumerate(members[: a + 1]):
            pairs = len(first) * (len(first) - 1) // 2 if a == b else len(first) * len(second)
            count = rng.binomial(pairs, p_in if a == b else p_out)
            chosen = np.empty(0, np.int64)
            if count:
                chosen = rng.choice(pairs, count, replace=False, shuffle=False)
            i, j = _triangle(chosen) if a == b else np.divmod(chosen, len(second))
            keys.append(first[i] * len(y) + second[j])
    one_way = np.concatenate(keys)
    both = np.concatenate([one_way, one_way % len(y) * len(y) + one_way // len(y)])
    both.sort()
    edge_index = torch.empty(2, len(both), dtype=torch.int64)
    np.divmod(both, len(y), out=(edge_index[0].numpy(), edge_index[1].numpy()))
    return edge_index


def _triangle(k: Integers) -> tuple[Integers, Integers]:
    """Pair number k of the pairs (1,0), (2,0), (2,1), (3,0), ...: i (i - 1) / 2 + j = k with j < i."""
    i = ((1.0 + np.sqrt(1.0 + 8.0 * k)) / 2.0).astype(np.int64)
    i -= i * (i - 1) // 2 > k  # the square root may round across a whole number
    i += i * (i + 1) // 2 <= k
    return i, k - i * (i - 1) // 2


def _words(
    y: Integers, n_classes: int, n_features: int, words: int, signal: float, rng: np.random.Generator
) -> sparse.csr_array:
    """Sparse 0/1 features (nodes, n_features): words from the class's own block of columns, and from all columns."""
    width = n_features // n_classes
    shape = (len(y), words)
    own = y[:, None].astype(np.int32) * width + rng.integers(width, size=shape, dtype=np.int32)
    any_word = rng.integers(n_features, size=shape, dtype=np.int32)
    columns = np.where(rng.random(shape, dtype=np.float32) < signal, own, any_word)
    columns.sort(axis=1)
    keep = np.ones(shape, dtype=bool)
    keep[:, 1:] = columns[:, 1:] != columns[:, :-1]
    indices = columns[keep]
    indptr = np.concatenate([[0], np.cumsum(keep.sum(axis=1))])
    pointer_type = np.int32 if len(indices) < 2**31 else np.int64
    values = np.ones(len(indices), dtype=np.float32)
    return sparse.csr_array(
        (values, indices.astype(pointer_type), indptr.astype(pointer_type)), shape=(len(y), n_features)
    )
