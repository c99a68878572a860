"""The benchmark of random splits: same splits for all, nothing trained on test nodes, and a run that goes on."""

from __future__ import annotations

import json
import sys

import numpy as np

from running_benchmarks import BENCHMARKS, run_benchmark

sys.path.insert(0, str(BENCHMARKS))

from graphs import kipf, line, read, split


def test_a_run_has_a_row_per_split_and_goes_on_where_its_file_ends(tmp_path):
    out = tmp_path / "graphs.json"
    report, text = run_benchmark("graphs.py", "--datasets", "sbm", "--splits", "1", "--out", str(out))
    assert json.loads(out.read_text()) == report
    assert [(row["dataset"], row["seed"]) for row in report["results"]] == [("sbm", 0)]
    assert line("sbm", report["results"]) in text
    again, text = run_benchmark("graphs.py", "--datasets", "sbm", "--splits", "1", "--out", str(out))
    assert again["results"] == report["results"]
    assert "split 0" not in text


def test_splits_have_so_many_nodes_of_every_class_and_overlap_nowhere():
    graph = read("sbm", whole=False)
    train, test = split(graph.y, 3)
    assert not (train & test).any()
    for label in np.unique(graph.y):
        assert train[graph.y == label].sum() == 20
        assert (~train & ~test)[graph.y == label].sum() == 30
    assert graph.edges.max() < len(graph.y)


def test_kipfs_recipe_learns():
    graph = read("sbm", whole=True)
    train, test = split(graph.y, 0)
    assert (kipf(graph, train, 0) == graph.y)[test].mean() > 0.7
