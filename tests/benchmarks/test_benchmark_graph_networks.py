"""benchmarks/graph_networks.py: which run of Adam's grid counts, and what a split has."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import pytest

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import graph_networks as benchmark


def row(method, seed, val, test):
    return {
        "dataset": "cora", "split": "random", "network": "GCN 2", "seconds": 1.0,
        "method": method, "seed": seed, "val": val, "test": test,
    }  # fmt: skip


def test_adam_is_chosen_on_validation_nodes_split_by_split():
    first, *others = benchmark.GRID
    rows = [row("dladmm", 0, 0.5, 0.6), row(first, 1, 0.9, 0.2), row(first, 0, 0.1, 0.9)]
    rows += [row(other, seed, 0.5, 0.4) for other in others for seed in (0, 1)]
    assert "best Adam 0.3000 +- 0.1000" in benchmark.table(rows)


def test_tasks_go_split_by_split():
    chosen = argparse.Namespace(
        datasets=["cora", "coauthor-cs"], networks=["own 2", "GAT"], splits=2, modes=["streaming"]
    )
    found = benchmark.tasks(chosen)
    assert [task["seed"] for task in found] == sorted(task["seed"] for task in found)
    assert sum(task["split"] == "public" for task in found) == 4
    assert all(("modes" in task) == task["network"].startswith("own") for task in found)


@pytest.mark.parametrize("network", ["GCN 3", "GAT", "SAGE"])
def test_networks_give_a_row_per_node(network):
    pytest.importorskip("torch_geometric")
    import torch

    made = benchmark.Network(network, 5, 3)
    edges = torch.as_tensor(np.array([[0, 1, 2], [1, 2, 0]]))
    assert made(torch.randn(4, 5), edges).shape == (4, 3)
