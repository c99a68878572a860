from __future__ import annotations

import numpy as np
import pytest
import torch
from dataset_files import npz, pickled_array, pickled_graph, planetoid_arrays, planetoid_files

from dladmm.base.errors import DataError
from dladmm.datasets.planetoid import parse_planetoid, parse_planetoid_npz

FILES = planetoid_files()


def test_test_rows_go_to_their_nodes_and_the_missing_node_stays_empty():
    graph = parse_planetoid(FILES, "tiny")
    order = [int(word) for word in FILES["test.index"].split()]
    assert graph.n_nodes == 611
    assert order != sorted(order)
    assert [int(graph.y[node]) for node in order] == [row % 3 for row in range(10)]
    assert graph.test_mask.nonzero().flatten().tolist() == sorted(order)
    assert graph.x[[605]].nnz == 0
    assert int(graph.y[605]) == 0
    assert not (graph.train_mask | graph.val_mask | graph.test_mask)[605]
    assert int(graph.train_mask.sum()) == 9
    assert graph.val_mask.nonzero().flatten().tolist() == list(range(9, 509))


def test_edges_are_undirected_once_and_without_loops():
    graph = parse_planetoid(FILES, "tiny")
    dense = graph.adjacency().toarray()
    assert np.array_equal(dense, dense.T)
    assert np.trace(dense) == 0
    assert dense.sum() == graph.n_edges == len(set(map(tuple, graph.edge_index.T.tolist())))
    # a ring of 611 nodes without the arc 605 -> 606, and the chord 0 - 5
    assert graph.n_edges == 2 * (611 - 1 + 1)
    assert torch.equal(graph.edge_index, torch.tensor(sorted(graph.edge_index.T.tolist())).T)


CLASSES = np.eye(3, dtype=np.int32)
MIXED = {
    "a label missing": ("ally", pickled_array(CLASSES[np.arange(599) % 3]), "a label is missing"),
    "classes differ": (
        "ty",
        pickled_array(np.eye(4, dtype=np.int32)[np.zeros(10, int)]),
        "numbers of classes",
    ),
    "two classes": ("ty", pickled_array(np.ones((10, 3), np.int32)), "several classes"),
    "not a table": ("y", pickled_array(np.ones(3, np.int32)), "table of integers"),
    "rows for labels": ("y", FILES["x"], "table of integers"),
    "labels for rows": ("x", FILES["y"], "sparse matrix"),
    "no numbers": ("test.index", b"six hundred\n", "whole numbers"),
    "endless number": ("test.index", b"9" * 4000, "whole numbers"),
    "node twice": ("test.index", b"600\n" * 10, "names a node twice"),
    "not after the others": ("test.index", b"".join(b"%d\n" % n for n in range(601, 611)), "do not follow"),
    "far away": ("test.index", b"".join(b"%d\n" % n for n in [*range(600, 609), 99_999_999]), "leaves out"),
    "too few": ("test.index", b"600\n", "does not fit the test rows"),
    "other training rows": ("y", pickled_array(CLASSES[(np.arange(9) + 1) % 3]), "not the beginning"),
    "unknown node": ("graph", pickled_graph({0: [611]}), "outside 0..610"),
    "negative node": ("graph", pickled_graph({0: [-1]}), "outside 0..610"),
    "not a graph": ("graph", FILES["y"], "lists of neighbours"),
    "shared list": (
        "graph",
        b"\x80\x02}(K\x00]("
        + b"K\x01" * 2000
        + b"eq\x01"
        + b"".join(b"K%ch\x01" % n for n in range(1, 200))
        + b"u.",
        "more neighbours than bytes",
    ),
    "strings for nodes": ("graph", b"\x80\x02}(K\x00](U\x01aU\x01beu.", "other than node numbers"),
}


@pytest.mark.parametrize("case", MIXED)
def test_files_that_do_not_fit_together(case):
    part, data, message = MIXED[case]
    with pytest.raises(DataError, match=message):
        parse_planetoid(FILES | {part: data}, "tiny")


def test_converted_copy():
    graph = parse_planetoid_npz(npz(planetoid_arrays(), packed=True), "tiny")
    assert (graph.n_nodes, graph.n_edges, graph.n_features, graph.n_classes) == (12, 24, 5, 3)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("features_shape", np.array([12, 2**40]), "a matrix of"),
        ("features_shape", np.array([13, 5]), "row pointers for 13 rows"),
        ("features_shape", np.array([12.0, 5.0]), "two integers"),
        ("features_indices", np.full(12, 5, np.int32), "a column that does not exist"),
        ("features_indices", np.zeros(11, np.int32), "12 values for 11 columns"),
        ("features_indptr", np.array([0, 3, 2, *range(3, 13)], np.int32), "go back"),
        ("features_indptr", np.array([0, 2, 2, *range(3, 13)], np.int32)[::-1].copy(), "span"),
        ("features_data", np.full(12, np.nan, np.float32), "not finite"),
        ("features_data", np.full(12, 1e300), "too large for float32"),
        ("labels", np.full(12, 3), "labels from 3 to 3"),
        ("labels", np.zeros(11, int), "12 integers"),
        ("edge_index", np.zeros((3, 2), np.int32), r"\(2, E\)"),
        ("edge_index", np.full((2, 2), -1), "outside 0..11"),
        ("train_index", np.array([12]), "outside 0..11"),
        ("num_classes", np.array(0), "num_classes"),
        ("num_classes", np.array([3]), "num_classes"),
    ],
)
def test_damaged_copies(key, value, message):
    with pytest.raises(DataError, match=message):
        parse_planetoid_npz(npz(planetoid_arrays() | {key: value}), "tiny")


def test_a_column_twice_in_a_row():
    arrays = planetoid_arrays()
    arrays["features_indptr"] = np.array([0, 6, *range(7, 13), *[12] * 5], np.int32)
    with pytest.raises(DataError, match="a column twice"):
        parse_planetoid_npz(npz(arrays), "tiny")
