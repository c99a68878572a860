from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from dladmm import datasets
from dladmm.base.errors import DladmmError, InputError
from dladmm.datasets import GraphData, ImageData


def _graph(**changes) -> GraphData:
    nodes = torch.arange(4)
    fields = {
        "x": sparse.csr_array(np.array([[0, 1], [2, 0], [0, 0], [3, 4]], dtype=np.float32)),
        "edge_index": torch.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 1, 1]]),
        "y": torch.tensor([0, 1, 1, 0]),
        "train_mask": nodes == 0,
        "val_mask": nodes == 1,
        "test_mask": nodes == 2,
        "n_classes": 2,
    }
    return GraphData(**fields | changes)


def test_adjacency_counts_a_repeated_edge_once():
    expected = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert _graph().adjacency().toarray().tolist() == expected


def test_features_dense_and_torch_sparse():
    graph = _graph()
    assert graph.x_dense().tolist() == [[0, 1], [2, 0], [0, 0], [3, 4]]
    assert graph.x_sparse().to_dense().equal(graph.x_dense())
    assert graph.x_sparse().layout == torch.sparse_coo
    dense = _graph(x=graph.x_dense())
    assert dense.x_sparse().to_dense().equal(dense.x_dense(torch.float64).float())


def test_resplit_draws_new_masks_for_the_same_graph():
    graph = datasets.karate()
    other = graph.resplit(labels_per_class=2, n_val=6, seed=3)
    assert other.y[other.train_mask].bincount().tolist() == [2, 2, 2, 2]
    assert int(other.val_mask.sum()) == 6
    assert bool((other.train_mask ^ other.val_mask ^ other.test_mask).all())
    assert other.edge_index is graph.edge_index


def test_frozen_and_readable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _graph().name = "other"
    assert repr(_graph()) == (
        "GraphData(graph: 4 nodes, 5 directed edges, 2 features, 2 classes, 1/1/1 train/val/test)"
    )
    assert repr(datasets.moons()) == "ImageData(moons: 800 train, 200 test, 2 features, 2 classes)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.eye(4)}, "x is ndarray"),
        ({"x": torch.ones(4)}, r"x is of shape \(4,\)"),
        ({"edge_index": torch.zeros(3, 2).long()}, r"edge_index is of shape \(3, 2\)"),
        ({"edge_index": torch.zeros(2, 2).int()}, "edge_index is of dtype torch.int32"),
        ({"edge_index": torch.tensor([[0], [4]])}, r"edge_index is in 0\.\.4; it must be in 0\.\.3"),
        ({"y": torch.tensor([0, 1, 2, 0])}, r"y is in 0\.\.2; it must be in 0\.\.1"),
        ({"y": torch.zeros(3).long()}, r"y is of shape \(3,\)"),
        ({"val_mask": torch.ones(4)}, "val_mask is torch.float32"),
    ],
)
def test_graphs_that_cannot_be(change, message):
    with pytest.raises(InputError, match=message):
        _graph(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": torch.ones(2, 3, 3)}, r"x_train is of shape \(2, 3, 3\)"),
        ({"x_test": torch.ones(1, 4)}, "x_test is 4 wide; it must be 3 wide"),
        ({"x_train": torch.ones(2, 3).double()}, "x_train is of dtype torch.float64"),
        ({"y_test": torch.tensor([7])}, r"y_test is in 7\.\.7"),
        ({"x_val": torch.ones(1, 3)}, "x_val, y_val is given one without the other"),
    ],
)
def test_rows_that_cannot_be(change, message):
    fields = {
        "x_train": torch.ones(2, 3),
        "y_train": torch.tensor([0, 1]),
        "x_test": torch.ones(1, 3),
        "y_test": torch.tensor([0]),
        "n_classes": 2,
    }
    with pytest.raises(InputError, match=message):
        ImageData(**fields | change)


# PyTorch Geometric


def _same(a: GraphData, b: GraphData) -> bool:
    fields = ("edge_index", "y", "train_mask", "val_mask", "test_mask")
    return a.x_dense().equal(b.x_dense()) and all(getattr(a, f).equal(getattr(b, f)) for f in fields)


@pytest.fixture
def stand_in(monkeypatch):
    """A torch_geometric whose Data only keeps what it is given."""
    module = SimpleNamespace(Data=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "torch_geometric", SimpleNamespace(data=module))
    monkeypatch.setitem(sys.modules, "torch_geometric.data", module)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("sparse_x", [False, True])
def test_to_pyg_and_back(sparse_x):
    data = _graph().to_pyg(sparse_x=sparse_x)
    assert data.x.layout == (torch.sparse_coo if sparse_x else torch.strided)
    back = GraphData.from_pyg(data, name="back")
    assert _same(back, _graph())
    assert isinstance(back.x, sparse.csr_array) == sparse_x


def test_to_real_pyg_and_back(real_pyg):
    data = _graph().to_pyg()
    assert isinstance(data, real_pyg.data.Data)
    assert data.validate()
    assert _same(GraphData.from_pyg(data), _graph())


def test_karate_equals_pygs(real_pyg):
    theirs = GraphData.from_pyg(real_pyg.datasets.KarateClub()[0])
    ours = datasets.karate()
    assert ours.adjacency().toarray().tolist() == theirs.adjacency().toarray().tolist()
    assert ours.y.equal(theirs.y)
    assert ours.train_mask.equal(theirs.train_mask)
    assert ours.x_dense().equal(theirs.x_dense())


def test_without_pyg_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(DladmmError, match=r"pip install 'dladmm\[graph\]'"):
        _graph().to_pyg()


def _data(**changes):
    fields = {"x": torch.eye(3), "edge_index": torch.tensor([[0], [1]]), "y": torch.tensor([0, 1, 1])}
    return SimpleNamespace(**fields | changes)


def test_from_pyg_without_masks_and_with_a_label_column():
    graph = GraphData.from_pyg(_data(y=torch.tensor([[0], [1], [1]])))
    assert graph.y.tolist() == [0, 1, 1]
    assert not graph.train_mask.any()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", ["coo", "csr", "scipy"])
def test_from_pyg_keeps_sparse_features_sparse(kind):
    dense = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    x = {"coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "scipy": sparse.coo_matrix(dense.numpy())}[
        kind
    ]
    graph = GraphData.from_pyg(_data(x=x))
    assert isinstance(graph.x, sparse.csr_array)
    assert graph.x.dtype == np.float32
    assert graph.x_dense().equal(dense)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": None}, "data.edge_index is NoneType"),
        ({"x": None}, "data.x is NoneType"),
        ({"y": [0, 1, 1]}, "data.y is list"),
        ({"train_mask": torch.ones(3, 10).bool()}, "holds 10 splits"),
    ],
)
def test_from_pyg_names_what_is_missing(change, message):
    with pytest.raises(InputError, match=message):
        GraphData.from_pyg(_data(**change))
