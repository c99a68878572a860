from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch
from dataset_files import coauthor_arrays, npz

from dladmm.base.errors import DataError, InputError
from dladmm.datasets.coauthor import paper_split, parse_coauthor


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


def script_split(label: torch.Tensor, n_classes: int, per_class: int, n_test: int):
    """The published script's split, as it is told: the global generator begins at 100 for every draw."""
    train, test = torch.zeros(len(label), dtype=torch.bool), torch.zeros(len(label), dtype=torch.bool)
    for c in range(n_classes):
        members = (label == c).nonzero().view(-1)
        torch.manual_seed(100)
        train[members[torch.randperm(len(members))[:per_class]]] = True
    rest = (~train).nonzero().view(-1)
    torch.manual_seed(100)
    test[rest[torch.randperm(len(rest))[:n_test]]] = True
    return train, test


def test_the_split_of_the_script_is_the_default():
    arrays = coauthor_arrays(1500)
    graph, named = (parse_coauthor(npz(arrays), "tiny", **options) for options in ({}, {"split": "paper"}))
    train, test = script_split(graph.y, 3, 100, 1000)
    assert graph.train_mask.equal(train)
    assert graph.test_mask.equal(test)
    assert named.train_mask.equal(train)
    assert not graph.val_mask.any()
    drawn = parse_coauthor(npz(arrays), "tiny", split="random")
    assert drawn.test_mask.equal(parse_coauthor(npz(arrays), "tiny", seed=0).test_mask)
    assert not drawn.test_mask.equal(test)


def test_the_split_of_the_script_leaves_torchs_own_generator_alone():
    torch.manual_seed(7)
    wanted = torch.rand(1)
    torch.manual_seed(7)
    paper_split(np.arange(50) % 2, 2, labels_per_class=5, n_test=10)
    assert torch.rand(1).equal(wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "paper", "seed": 1}, "leave those out"),
        ({"split": "paper", "n_test": 10}, "leave those out"),
        ({"split": "public"}, "it must be 'paper' or 'random'"),
    ],
)
def test_splits_that_contradict_themselves(options, message):
    with pytest.raises(InputError, match=message):
        parse_coauthor(npz(coauthor_arrays()), "tiny", **options)
