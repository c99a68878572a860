"""Accuracy on graphs with 20 labelled nodes a class, random splits: the default beside Kipf's recipe.

    python benchmarks/graphs.py                                      # five graphs, 20 splits
    python benchmarks/graphs.py --datasets cora --splits 2           # a glance
    python benchmarks/graphs.py --out docs/results/graphs-random-splits.json

The protocol of Shchur et al. (2018): the largest connected component, 20 nodes of every class train, 30 are kept for
validation (nobody uses them here), all others test; the same splits for all, one after the other in one run.
``--whole`` keeps every node of the graph instead, which is harder: hundreds of Citeseer's have no edge to the rest.

- *dladmm*: ``GCNClassifier(random_state=seed)``, nothing else given;
- *Kipf's recipe* (Kipf and Welling 2017) in plain torch: 16 hidden units, rows of features divided by their sums, Adam
  at .01 for 200 epochs, half of the entries of X and of the hidden layer dropped, weight decay 5e-4 on the first layer.
  It is trained on the nodes that the labelled ones see, which changes nothing but its time.

Progress and the table go to standard error, the JSON to ``--out``, and with --json to standard output. The file is
written after every split, and a run that is started again goes on where the file ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded

from dladmm import GCNClassifier, datasets
from dladmm.datasets._types import stable_order
from dladmm.training.run_folder import describe

ASKED = {"cora": 0.815, "citeseer": 0.719, "pubmed": 0.778, "coauthor-cs": 0.911, "coauthor-physics": 0.928}
"""The mean accuracy of a tuned GCN in Shchur et al. (2018), 20 labelled nodes a class."""

Array = np.ndarray[Any, Any]


class Graph(NamedTuple):
    """Features (n, f), edges (2, e) in both directions, labels (n,)."""

    x: sparse.csr_array
    edges: Array
    y: Array


def read(name: str, *, whole: bool) -> Graph:
    data = datasets.load(name)
    x, edges, y = sparse.csr_array(data.x), np.asarray(data.edge_index), np.asarray(data.y)
    if whole:
        return Graph(x, edges, y)
    n = len(y)
    joined = sparse.csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n))
    _, part = connected_components(joined, directed=False)
    kept = np.flatnonzero(part == np.bincount(part).argmax())
    place = np.full(n, -1)
    place[kept] = np.arange(len(kept))
    moved = place[edges]
    return Graph(x[kept], moved[:, (moved >= 0).all(0)], y[kept])


def split(y: Array, seed: int, n_train: int = 20, n_val: int = 30) -> tuple[Array, Array]:
    """Masks of training and of test nodes; validation nodes are in neither."""
    order = stable_order(len(y), seed)
    train, test = np.zeros(len(y), bool), np.ones(len(y), bool)
    for label in np.unique(y):
        members = order[y[order] == label]
        train[members[:n_train]] = True
        test[members[: n_train + n_val]] = False
    return train, test


def ours(graph: Graph, train: Array, seed: int) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network = GCNClassifier(random_state=seed)
        network.fit(graph.x, graph.y, edge_index=graph.edges, train_mask=train)
    return network.predict(graph.x, edge_index=graph.edges)


def kipf(graph: Graph, train: Array, seed: int, hidden: int = 16) -> Array:
    """The class of every node by Kipf's recipe."""
    n, n_classes = len(graph.y), int(graph.y.max()) + 1
    edges = graph.edges[:, graph.edges[0] != graph.edges[1]]
    joined = sparse.csr_array((np.ones(edges.shape[1], np.float32), (edges[0], edges[1])), shape=(n, n))
    joined.data[:] = 1
    joined = joined + sparse.eye_array(n, dtype=np.float32)
    scale = sparse.diags_array(1 / np.sqrt(joined.sum(1)))
    A = sparse.csr_array(scale @ joined @ scale)
    sums = np.asarray(graph.x.sum(1)).ravel()
    x = sparse.csr_array(sparse.diags_array(1 / np.where(sums > 0, sums, 1)) @ graph.x).astype(np.float32)

    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as GCNClassifier chooses
    labelled = np.flatnonzero(train)
    near = np.unique(A[labelled].indices)
    far = np.unique(A[near].indices)
    to_labelled, to_near = (csr(part).to(device) for part in (A[labelled][:, near], A[near][:, far]))
    seen, target = x[far], torch.from_numpy(graph.y[labelled]).to(device)
    shape, (rows, columns) = seen.shape, (torch.from_numpy(part.astype(np.int64)) for part in seen.nonzero())
    places, values = (
        torch.stack([rows, columns]).to(device),
        torch.from_numpy(seen[seen.nonzero()]).to(device),
    )
    W1, W2 = (glorot(a, b, device) for a, b in ((x.shape[1], hidden), (hidden, n_classes)))
    optimizer = torch.optim.Adam([{"params": [W1], "weight_decay": 5e-4}, {"params": [W2]}], lr=0.01)
    for _ in range(200):
        dropped = torch.sparse_coo_tensor(places, F.dropout(values), shape, check_invariants=False)
        between = torch.relu(torch.sparse.mm(to_near, torch.sparse.mm(dropped, W1)))
        loss = F.cross_entropy(torch.sparse.mm(to_labelled, F.dropout(between) @ W2), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    first, second = (W.detach().cpu().numpy() for W in (W1, W2))
    return np.asarray((A @ (np.maximum(A @ (x @ first), 0) @ second)).argmax(1))


def csr(matrix: sparse.csr_array) -> Tensor:
    parts = (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data.astype(np.float32))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(
            *map(torch.from_numpy, parts), size=matrix.shape, check_invariants=True
        )


def glorot(n_in: int, n_out: int, device: torch.device) -> Tensor:
    return torch.nn.init.xavier_uniform_(torch.empty(n_in, n_out)).to(device).requires_grad_()


LEARNERS = {"dladmm": ours, "kipf": kipf}


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """The table's line: mean and deviation over splits of every learner, and their seconds."""
    cells = [f"{name:17} {len(rows):3} splits"]
    for learner in LEARNERS:
        found = [row[learner] for row in rows]
        seconds = statistics.mean(row[f"{learner}_seconds"] for row in rows)
        cells.append(
            f"{learner} {statistics.mean(found):.4f} +- {statistics.pstdev(found):.4f} ({seconds:.0f} s)"
        )
    asked = ASKED.get(name)
    return "  ".join([*cells, "" if asked is None else f"asked {asked}"]).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=list(ASKED))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="seeds of the splits count from here")
    parser.add_argument("--whole", action="store_true", help="all nodes, not the largest component")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    report: dict[str, Any] = {
        "machine": describe(),
        "protocol": {"train": 20, "validation": 30, "whole": chosen.whole, "first_seed": chosen.first_seed},
        "results": [],
    }
    if chosen.out is not None and chosen.out.exists():
        report["results"] = json.loads(chosen.out.read_text())["results"]
    for name in chosen.datasets:
        graph = read(name, whole=chosen.whole)
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.splits):
            rows = [row for row in report["results"] if row["dataset"] == name]
            if any(row["seed"] == seed for row in rows):
                continue
            train, test = split(graph.y, seed)
            row: dict[str, Any] = {"dataset": name, "seed": seed}
            for learner, predict in LEARNERS.items():
                began = time.perf_counter()
                right = predict(graph, train, seed)[test] == graph.y[test]
                row |= {learner: float(right.mean()), f"{learner}_seconds": time.perf_counter() - began}
            report["results"].append(rounded(row))
            print(
                f"  {name} split {seed}: {row['dladmm']:.4f} {row['kipf']:.4f}", file=sys.stderr, flush=True
            )
            if chosen.out is not None:
                chosen.out.write_text(dumps(report) + "\n")
        print(line(name, [r for r in report["results"] if r["dataset"] == name]), file=sys.stderr, flush=True)
    if chosen.json:
        print(dumps(report))


if __name__ == "__main__":
    main()
