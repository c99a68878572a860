"""Networks on graphs with few labels: the default beside Adam, and GCNClassifier beside its other modes.

    python benchmarks/graph_networks.py --data DIR --out FILE --workers 16     # everything; minutes on a GPU
    python benchmarks/graph_networks.py --datasets cora --splits 1 --networks "GCN 2"

Splits: the public one of the citation graphs with all nodes ("public", network seeds 0 to 2), and random ones as in
``benchmarks/graphs.py``: largest component, 20 labelled nodes a class, 30 more for validation, all others test.

- *own*: ``GCNClassifier(hidden)``, and with ``--modes`` in those modes, with and without self-training;
- *module*: ``train_graph(data, model=network)``, a network of PyG as it is, 64 units, dropout .5;
- *Adam*: the same network as people train it: rate .01, 200 epochs, weight decay 5e-4, and the best on validation nodes
  of that and of rate .005 and weight decay 5e-3.

Features are divided by the sums of their rows for networks of PyG, and given as they are to GCNClassifier.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded
from graphs import Graph, read, split

from dladmm import datasets, train_graph
from dladmm.training.run_folder import describe

DATASETS = {"cora": 10, "citeseer": 10, "pubmed": 10, "coauthor-cs": 5, "coauthor-physics": 4}
"""Random splits of every graph, unless --splits is given."""

PUBLIC = ("cora", "citeseer", "pubmed")
PUBLIC_SEEDS = 3
NETWORKS = {"GCN 2": 2, "GCN 3": 3, "GCN 4": 4, "GAT": 2, "SAGE": 2}
"""Networks and their number of layers."""

GRID = {"Adam": (0.01, 5e-4), "Adam, 5e-3": (0.01, 5e-3), "Adam, .005": (0.005, 5e-4)}
EPOCHS, WIDTH, DROPOUT = 200, 64, 0.5

Array = np.ndarray[Any, Any]


class Network(nn.Module):
    """Layers of PyG with relu and dropout between them."""

    def __init__(self, kind: str, n_in: int, n_out: int) -> None:
        super().__init__()
        from torch_geometric.nn import GATConv, GCNConv, SAGEConv

        depth, layers = NETWORKS[kind], []
        for i in range(depth):
            a, b = (n_in if i == 0 else WIDTH), (n_out if i == depth - 1 else WIDTH)
            if kind == "GAT":
                heads = 1 if i == depth - 1 else 8
                layers.append(GATConv(a, b // heads, heads=heads))
            else:
                layers.append(SAGEConv(a, b) if kind == "SAGE" else GCNConv(a, b, cached=True))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(F.dropout(x if i == 0 else x.relu(), DROPOUT, self.training), edge_index)
        return x


def graph_of(dataset: str, kind: str, seed: int) -> tuple[Graph, Array, Array, Array]:
    """A graph and its masks of training, validation and test nodes."""
    if kind == "public":
        graph, data = read(dataset, whole=True), datasets.load(dataset)
        train, val, test = (np.asarray(m) for m in (data.train_mask, data.val_mask, data.test_mask))
        return graph, train, val, test
    graph = read(dataset, whole=False)
    train, test = split(graph.y, seed)
    return graph, train, ~(train | test), test


def run(task: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one network on one split; none after the task's ``until``."""
    if time.time() > task.pop("until"):
        return []
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    graph, train, val, test = graph_of(task["dataset"], task["split"], task["seed"])
    found = []
    for method, fit in methods_of(task):
        began = time.perf_counter()
        outputs = fit(graph, train)
        seconds = time.perf_counter() - began
        right = outputs.argmax(1) == graph.y
        own = {"method": method, "val": float(right[val].mean()), "test": float(right[test].mean())}
        found.append(rounded(task | own | {"seconds": seconds}))
    return found


def methods_of(task: dict[str, Any]) -> list[tuple[str, Any]]:
    network, seed = task["network"], task["seed"]
    if network.startswith("own"):
        hidden = (128,) * (int(network[-1]) - 1)

        def own(mode: str, self_training: bool) -> Any:
            return lambda graph, train: ours(graph, train, hidden, mode, self_training, seed)

        return [
            (f"{mode}{', self-training' if s else ''}", own(mode, s))
            for mode in task["modes"]
            for s in (False, True)
        ]
    adam = [
        (name, lambda graph, train, s=settings: by_adam(graph, train, network, *s, seed))
        for name, settings in GRID.items()
    ]
    return [("dladmm", lambda graph, train: module(graph, train, network, seed)), *adam]


def ours(
    graph: Graph, train: Array, hidden: tuple[int, ...], mode: str, self_training: bool, seed: int
) -> Array:
    found = train_graph(
        graph.x, graph.edges, graph.y, train, hidden=hidden, mode=mode, self_training=self_training,
        random_state=seed, max_iter=200 if mode == "accelerated" else 100,
    )  # fmt: skip
    x = csr(graph.x).to(next(found.module.parameters()).device)
    with torch.no_grad():
        return np.asarray(found.module(x, torch.as_tensor(graph.edges)).cpu())


def csr(x: sparse.csr_array) -> Tensor:
    parts = (torch.from_numpy(p.astype(t)) for p, t in ((x.indptr, "i8"), (x.indices, "i8"), (x.data, "f4")))
    return torch.sparse_csr_tensor(*parts, size=x.shape, check_invariants=False)


def dense_rows(graph: Graph) -> Tensor:
    x = torch.from_numpy(graph.x.toarray().astype(np.float32))
    return x / x.sum(1, keepdim=True).clamp_min(1e-9)


def module(graph: Graph, train: Array, network: str, seed: int) -> Array:
    torch.manual_seed(seed)
    made = Network(network, graph.x.shape[1], int(graph.y.max()) + 1)
    x, edges = dense_rows(graph), torch.as_tensor(graph.edges)
    found = train_graph(x, edges, torch.as_tensor(graph.y), train, model=made, random_state=seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = found.module.to(device).eval()
    with torch.no_grad():
        return np.asarray(made(x.to(device), edges.to(device)).cpu())


def by_adam(graph: Graph, train: Array, network: str, rate: float, decay: float, seed: int) -> Array:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    made = Network(network, graph.x.shape[1], int(graph.y.max()) + 1).to(device)
    x, edges = dense_rows(graph).to(device), torch.as_tensor(graph.edges).to(device)
    mask = torch.as_tensor(train).to(device)
    target = torch.as_tensor(graph.y).to(device)[mask].long()
    optimizer = torch.optim.Adam(made.parameters(), lr=rate, weight_decay=decay)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        F.cross_entropy(made(x, edges)[mask], target).backward()
        optimizer.step()
    with torch.no_grad():
        return np.asarray(made.eval()(x, edges).cpu())


def tasks(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for dataset in chosen.datasets:
        seeds = range(DATASETS[dataset] if chosen.splits is None else chosen.splits)
        splits = [("random", seed) for seed in seeds]
        if dataset in PUBLIC:
            splits += [("public", seed) for seed in range(min(PUBLIC_SEEDS, len(seeds)))]
        for kind, seed in splits:
            for network in chosen.networks:
                task = {"dataset": dataset, "split": kind, "seed": seed, "network": network}
                found.append(task | ({"modes": chosen.modes} if network.startswith("own") else {}))
    # split by split, the longest first
    order = {"coauthor-physics": 0, "coauthor-cs": 1, "pubmed": 2}
    return sorted(found, key=lambda task: (task["seed"], order.get(task["dataset"], 3)))


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and deviation of the test accuracy; "best Adam" is chosen on validation nodes, split by split."""
    groups: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        groups[row["dataset"], row["split"], row["network"]][row["method"]].append(row)
    lines = []
    for (dataset, kind, network), methods in sorted(groups.items()):
        adams = [methods[name] for name in GRID if name in methods]
        if len(adams) > 1:
            by_split = zip(*(sorted(a, key=lambda row: int(row["seed"])) for a in adams), strict=True)
            methods["best Adam"] = [max(some, key=lambda row: row["val"]) for some in by_split]
        cells = []
        for method, some in methods.items():
            tests = [row["test"] for row in some]
            seconds = statistics.mean(row["seconds"] for row in some)
            cells.append(
                f"{method} {statistics.mean(tests):.4f} +- {statistics.pstdev(tests):.4f} ({seconds:.0f} s)"
            )
        lines.append(f"{dataset} {kind} {network} ({len(some)}): " + " | ".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder of the data sets (DLADMM_DATA)")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    own = [f"own {depth}" for depth in (2, 3, 4)]
    parser.add_argument("--networks", nargs="+", default=[*own, *NETWORKS], choices=[*own, *NETWORKS])
    parser.add_argument("--modes", nargs="+", default=["streaming"])
    parser.add_argument("--splits", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin with no more splits after so many"
    )
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.data is not None:
        os.environ["DLADMM_DATA"] = str(chosen.data.resolve())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # of the workers
        os.environ.setdefault(name, "1")
    report: dict[str, Any] = {"machine": describe(), "results": []}
    with multiprocessing.get_context("spawn").Pool(chosen.workers) as pool:
        limited = [task | {"until": time.time() + chosen.seconds} for task in tasks(chosen)]
        for rows in pool.imap_unordered(run, limited):
            report["results"] += rows
            for row in rows:
                print(
                    f"  {row['dataset']} {row['split']} {row['seed']} {row['network']}, {row['method']}: "
                    f"{row['val']:.4f} {row['test']:.4f} ({row['seconds']:.0f} s)",
                    file=sys.stderr,
                    flush=True,
                )
            if chosen.out is not None:
                chosen.out.write_text(dumps(report) + "\n")
    print(table(report["results"]))


if __name__ == "__main__":
    main()
