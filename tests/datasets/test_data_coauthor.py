from __future__ import annotations

import builtins

import numpy as np
import pytest
from dataset_files import coauthor_arrays, npz

from dladmm.base.errors import DataError, InputError
from dladmm.datasets.coauthor import parse_coauthor


def _parse(arrays: dict, **options):
    return parse_coauthor(npz(arrays), "tiny", **{"labels_per_class": 1, "n_test": None} | options)


def test_counts_become_ones_unless_asked_for():
    assert set(_parse(coauthor_arrays()).x.data) == {1.0}
    assert set(_parse(coauthor_arrays(), counts=True).x.data) == {3.0}


def test_the_graph_becomes_undirected_and_class_names_stay_closed():
    graph = _parse(coauthor_arrays())
    assert (graph.n_nodes, graph.n_edges, graph.n_features, graph.n_classes) == (12, 24, 5, 3)
    assert not hasattr(builtins, "dladmm_bomb")


def test_split_from_a_seed():
    first, again, other = (_parse(coauthor_arrays(120), n_test=50, seed=seed) for seed in (1, 1, 2))
    assert first.train_mask.equal(again.train_mask)
    assert not first.test_mask.equal(other.test_mask)
    assert first.y[first.train_mask].bincount().tolist() == [1, 1, 1]
    assert not (first.train_mask & first.test_mask).any()
    assert int(first.test_mask.sum()) == 50


def test_validation_nodes_do_not_move_the_test_nodes():
    without, with_val = (_parse(coauthor_arrays(120), n_test=50, n_val=n) for n in (0, 20))
    assert without.test_mask.equal(with_val.test_mask)
    assert int(with_val.val_mask.sum()) == 20
    assert not (with_val.val_mask & (with_val.test_mask | with_val.train_mask)).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adj_shape": np.array([12, 13])}, r"a graph of \(12, 13\)"),
        ({"labels": np.arange(12) % 3 * 2}, "a class without nodes"),
        ({"labels": np.full(12, -1)}, "labels from -1"),
        ({"attr_data": np.full(12, -1.0)}, "negative count"),
        ({"attr_indices": np.full(12, 2**31 - 1, np.int32)}, "a column that does not exist"),
    ],
)
def test_damaged_files(change, message):
    with pytest.raises(DataError, match=message):
        _parse(coauthor_arrays() | change)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels_per_class": 5}, "class 0 has 4 nodes"),
        ({"labels_per_class": 0}, "labels_per_class is 0"),
        ({"n_test": 10}, "9 nodes are left"),
        ({"n_test": 5, "n_val": 5}, "9 nodes are left"),
        ({"n_val": 10}, "9 nodes are left"),
        ({"n_val": -1}, "n_val is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_splits_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        _parse(coauthor_arrays(), **options)
