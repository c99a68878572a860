"""GCNClassifier: what it accepts, what it gives back, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from dladmm import GCNClassifier, InputError, datasets

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def graph():
    return datasets.load("sbm", n_nodes=200, n_classes=3, seed=0)


@pytest.fixture(scope="module")
def fitted(graph):
    return GCNClassifier((16,), max_iter=60, random_state=0).fit(graph)


def test_learns_the_blocks(graph, fitted):
    assert fitted.score(graph, mask="test") > 0.7
    assert fitted.predict(graph).shape == (200,)
    probabilities = fitted.predict_proba(graph)
    assert probabilities.shape == (200, 3)
    assert np.allclose(probabilities.sum(1), 1)
    assert 0 < fitted.n_iter_ <= 60
    assert [c.shape for c in fitted.coefs_] == [(graph.n_features, 16), (16, 3)]


def test_arrays_tensors_and_scipy_give_the_same(graph, fitted):
    x = graph.x_dense()
    for features in (x, x.numpy(), sparse.csr_array(x.numpy())):
        other = GCNClassifier((16,), max_iter=60, random_state=0)
        other.fit(features, graph.y, edge_index=graph.edge_index, train_mask=graph.train_mask)
        same = other.predict(features, edge_index=graph.edge_index) == fitted.predict(graph)
        assert same.mean() > 0.97


def test_string_labels(graph):
    names = np.array(["red", "green", "blue"])[graph.y.numpy()]
    gcn = GCNClassifier((8,), max_iter=30, random_state=0)
    gcn.fit(graph.x, names, edge_index=graph.edge_index, train_mask=graph.train_mask)
    assert set(gcn.predict(graph)) <= {"red", "green", "blue"}
    assert gcn.score(graph, names, mask=graph.test_mask) > 0.6


def test_a_new_graph_with_the_same_features(fitted, graph):
    other = datasets.load("sbm", n_nodes=150, n_classes=3, seed=1)
    assert fitted.predict(other).shape == (150,)
    with pytest.raises(InputError, match="features, but GCNClassifier is expecting"):
        fitted.predict(torch.zeros(5, graph.n_features + 1), edge_index=torch.zeros(2, 0, dtype=torch.int64))


def test_module_gives_the_same_logits(fitted, graph):
    logits = fitted.module_(graph.x_dense(), graph.edge_index)
    assert (logits.argmax(1).numpy() == fitted.predict(graph)).all()


def test_validation_mask_adds_columns(graph):
    gcn = GCNClassifier((8,), max_iter=3, random_state=0).fit(graph, val_mask=graph.test_mask)
    assert gcn.history_["val_accuracy"][-1] is not None


def test_same_seed_same_network_and_clone(graph, fitted):
    again = clone(fitted).fit(graph)
    assert np.array_equal(again.coefs_[0], fitted.coefs_[0])


def test_warns_at_max_iter(graph):
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        GCNClassifier((4,), max_iter=2, mode="convergent").fit(graph)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: GCNClassifier().fit(g.x, g.y), "fit needs a graph object"),
        (lambda g: GCNClassifier().fit(g.x, g.y, edge_index=g.edge_index), "train_mask is missing"),
        (lambda g: GCNClassifier().fit(g, g.y), "not both"),
        (lambda g: GCNClassifier(mode="fast").fit(g), "mode must be"),
        (lambda g: GCNClassifier(loss="squared").fit(g), "loss must be a classification loss"),
        (lambda g: GCNClassifier(mu=-1).fit(g), "nu must be a positive"),
    ],
)
def test_bad_calls(graph, call, message):
    with pytest.raises(InputError, match=message):
        call(graph)


def test_unfitted_and_bad_masks(graph, fitted):
    with pytest.raises(NotFittedError):
        GCNClassifier().predict(graph)
    with pytest.raises(InputError, match="mask must be"):
        fitted.score(graph, mask="all")
    with pytest.raises(InputError, match="edge_index is missing"):
        fitted.predict(graph.x)


def test_save_and_load(graph, fitted, tmp_path):
    fitted.save(tmp_path / "graph.dladmm")
    loaded = GCNClassifier.load(tmp_path / "graph.dladmm")
    assert np.array_equal(loaded.predict_proba(graph), fitted.predict_proba(graph))
    assert loaded.score(graph) == fitted.score(graph)
