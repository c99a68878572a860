from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dladmm import datasets
from dladmm.base.errors import InputError
from dladmm.datasets import embedded


def test_karate_is_zacharys_graph():
    graph = datasets.load("karate")
    zachary = networkx.to_numpy_array(networkx.karate_club_graph(), weight=None)
    assert np.array_equal(graph.adjacency().toarray(), zachary)
    assert (graph.n_nodes, graph.n_edges, graph.n_classes) == (34, 156, 4)
    assert graph.y.bincount().tolist() == [13, 12, 4, 5]
    assert graph.x_dense().equal(torch.eye(34))


@pytest.mark.parametrize("labels", [1, 2, 4])
def test_karate_labels(labels):
    graph = datasets.load("karate", labels_per_class=labels)
    assert graph.y[graph.train_mask].bincount().tolist() == [labels] * 4
    assert bool((graph.train_mask ^ graph.test_mask).all())


def test_karate_with_too_many_labels():
    with pytest.raises(InputError, match="labels_per_class is 5; the smallest community has 4"):
        datasets.load("karate", labels_per_class=5)


def test_digits_are_those_of_scikit_learn_whether_its_file_is_found_or_not(monkeypatch):
    table = embedded._table_of_digits()
    bunch = load_digits()
    assert (table == np.column_stack([bunch.data, bunch.target])).all()
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    assert (table == embedded._table_of_digits()).all()


def test_digits():
    data = datasets.load("digits")
    assert (len(data.x_train), len(data.x_test), data.n_features, data.n_classes) == (1437, 360, 64, 10)
    assert (data.image_shape, float(data.x_train.max()), float(data.x_train.min())) == ((8, 8), 1.0, 0.0)
    assert data.x_train.equal(datasets.load("digits").x_train)
    assert not data.x_train.equal(datasets.load("digits", seed=1).x_train)
    assert len(datasets.load("digits", n_test=1).x_train) == 1796


@pytest.mark.parametrize("n_test", [0, 1797, "many"])
def test_digits_with_a_split_that_cannot_be(n_test):
    with pytest.raises(InputError, match="n_test is"):
        datasets.load("digits", n_test=n_test)
