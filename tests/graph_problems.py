"""Small random graphs that several test files share."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse

from dladmm.compute.sparse import SparseMatrix, csr_tensor
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.graph import normalised_adjacency
from dladmm.network.graph_chain import gcn
from dladmm.regularizers import get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions

CPU = torch.device("cpu")


def random_graph(rng, n, features, classes, edges=None):
    """Edges (with a self loop, a repeated edge and isolated nodes), features, labels, labelled nodes."""
    edges = 2 * n if edges is None else edges
    pairs = rng.integers(0, n - 2, (edges, 2))
    pairs = np.concatenate([pairs, [[0, 0]], pairs[:1], pairs[1:2, ::-1]])
    x = rng.normal(size=(n, features)) * (rng.random((n, features)) < 0.6)
    y = rng.integers(0, classes, n)
    labelled = rng.random(n) < 0.4
    labelled[:2] = True
    return pairs, x, y, labelled


def graph_engine(
    pairs,
    x,
    y,
    labelled,
    widths,
    *,
    activation="relu",
    regularizer=None,
    loss="cross_entropy",
    kind="factors",
    train_rows=False,
    dtype=torch.float64,
    **options,
):
    """An engine on the graph, with the input given in one of the four ways."""
    adjacency = normalised_adjacency(pairs.T, len(x))
    product = np.asarray(adjacency @ x)
    given = {"factors": x, "dense factors": x, "product": product, "dense product": product}[kind]
    dense = torch.from_numpy(np.array(given)).to(dtype)
    v = dense if kind.startswith("dense") else csr_tensor(sparse.csr_array(given), dtype, CPU)
    A = SparseMatrix.of(adjacency, dtype, CPU, symmetric=True)
    rows = torch.from_numpy(np.flatnonzero(labelled)) if train_rows else None
    chain = gcn(widths, A, activation, rows=rows, propagated="product" in kind)
    the_loss = get_loss(loss)
    target = the_loss.encode(torch.from_numpy(y), widths[-1], dtype)
    weight = torch.from_numpy(labelled).to(dtype)[:, None]
    return Engine(
        chain, v, Risk(the_loss, target, weight), get_regularizer(regularizer), SubproblemOptions(**options)
    )
