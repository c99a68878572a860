"""Graph objects as PyG users have them: Data itself, edge weights, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convergent import train_graph
from dladmm import GCNClassifier, InputError, InputTypeError, datasets
from dladmm.network.graph import normalised_adjacency


class Data:
    """A stand-in of PyG's ``Data``: callable, and without an attribute None."""

    def __init__(self, **fields):
        self.__dict__ |= fields

    def __getattr__(self, name):
        if name.startswith("__") or name not in ("x", "edge_index", "edge_attr", "y"):
            raise AttributeError(name)
        return

    def __call__(self, *names):
        yield from ((name, getattr(self, name)) for name in names or self.__dict__)


def of_pyg(**fields):
    geometric = pytest.importorskip("torch_geometric.data")
    return geometric.Data(**fields)


@pytest.fixture(params=[Data, of_pyg], ids=["stand-in", "PyG"])
def make(request):
    return request.param


def weighted_ring(n: int = 40, seed: int = 0) -> dict[str, torch.Tensor]:
    """Two classes on a ring; a node hears its own class by edges of weight 1, the other by edges of weight 0.01."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    pairs = [(i, (i + step) % n) for i in range(n) for step in (1, 2)]
    edges = torch.tensor([*pairs, *((j, i) for i, j in pairs)]).T
    weight = torch.where(y[edges[0]] == y[edges[1]], 1.0, 0.01)
    x = torch.nn.functional.one_hot(y, 2).float() + 0.3 * torch.randn(n, 2, generator=generator)
    return {"x": x, "edge_index": edges, "y": y, "train_mask": torch.arange(n) < 12, "edge_weight": weight}


def accuracy(module, ring, **arguments) -> float:
    with torch.no_grad():
        found = module(ring["x"], ring["edge_index"], **arguments).argmax(1)
    return float((found == ring["y"]).float().mean())


def karate(make):
    graph = datasets.load("karate")
    fields = {
        "x": graph.x_dense(),
        "edge_index": graph.edge_index,
        "y": graph.y,
        "train_mask": graph.train_mask,
    }
    return graph, make(**fields)


def test_data_is_taken_though_it_is_callable(make):
    """``train_graph(Data(...))`` always failed: it was called as a function of (rank, world)."""
    graph, data = karate(make)
    results = [train_graph(each, hidden=(8,), max_iter=3) for each in (graph, data)]
    for ours, theirs in zip(*(result.module.parameters() for result in results), strict=True):
        assert torch.equal(ours, theirs)


def test_the_classifier_takes_data(make):
    _, data = karate(make)
    network = GCNClassifier((8,), max_iter=300, tol=1e-1, random_state=0).fit(data)
    assert network.score(data, mask="train") == 1.0


@pytest.mark.parametrize("mode", ["accelerated", "streaming"])
def test_edge_weights_are_used(make, mode):
    ring = weighted_ring()
    settings = {"hidden": (8,), "mode": mode, "max_iter": 100, "self_training": False}
    with_weights = train_graph(make(**ring), **settings).module
    assert accuracy(with_weights, ring, edge_weight=ring["edge_weight"]) == 1.0
    without = train_graph(make(**(ring | {"edge_weight": None})), **settings).module
    assert accuracy(without, ring) < 0.7
    arrays = [ring[name] for name in ("x", "edge_index", "y", "train_mask")]
    same = train_graph(*arrays, edge_weight=ring["edge_weight"], **settings).module
    for one, other in zip(with_weights.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_classifier_uses_edge_weights(make):
    ring = weighted_ring()
    settings = {"max_iter": 300, "tol": 1e-1, "random_state": 0}
    network = GCNClassifier((8,), **settings).fit(make(**ring))
    assert network.score(make(**ring), mask=np.ones(40, dtype=bool)) == 1.0
    arrays = {name: ring[name] for name in ("edge_index", "train_mask", "edge_weight")}
    same = GCNClassifier((8,), **settings).fit(ring["x"], ring["y"], **arrays)
    both = (one.predict_proba(make(**ring)) for one in (network, same))
    np.testing.assert_array_equal(*both)


def test_clusters_have_the_weights_of_their_edges():
    ring = weighted_ring(400)
    arrays = [ring[name] for name in ("x", "edge_index", "y", "train_mask")]
    module = train_graph(
        *arrays, edge_weight=ring["edge_weight"], hidden=(8,), mode="streaming", batch_size=100, max_iter=30
    ).module
    assert accuracy(module, ring, edge_weight=ring["edge_weight"]) > 0.95


def test_weights_are_normalised_as_pyg_does():
    norm = pytest.importorskip("torch_geometric.nn.conv.gcn_conv").gcn_norm
    ring = weighted_ring(12)
    loops = torch.tensor([[3, 5], [3, 5]])
    edges = torch.cat([ring["edge_index"], loops], 1)
    weight = torch.cat([ring["edge_weight"], torch.tensor([0.5, 2.0])]).double()
    pairs, values = norm(edges, weight, 12)
    theirs = torch.zeros(12, 12, dtype=torch.float64).index_put_(
        (pairs[0], pairs[1]), values, accumulate=True
    )
    ours = normalised_adjacency(edges, 12, weight).toarray()
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)


def test_weights_of_one_change_nothing():
    edges = weighted_ring(12)["edge_index"]
    plain, ones = (normalised_adjacency(edges, 12, w) for w in (None, np.ones((edges.shape[1], 1))))
    assert (plain != ones).nnz == 0


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (lambda w: w[:-1], r"one number per edge, shape \(160,\)"),
        (lambda w: w[:, None].repeat(1, 3), "Features of edges are not used"),
        (lambda w: -w, "not negative"),
        (lambda w: w * torch.nan, "finite"),
        (lambda w: w * torch.arange(len(w)), "has the weights .* symmetric"),
    ],
)
def test_wrong_weights_are_refused(weight, words):
    ring = weighted_ring()
    with pytest.raises(InputError, match=words):
        train_graph(Data(**(ring | {"edge_weight": weight(ring["edge_weight"])})), max_iter=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("edge_attr", "edge_attr of the graph: features of edges are not used"),
        ("adj_t", "adj_t of the graph"),
        ("batch", "graph-level tasks"),
    ],
)
def test_what_is_not_used_is_refused_by_name(make, name, words):
    ring = weighted_ring()
    data = make(**ring, **{name: torch.ones(ring["edge_index"].shape[1], 1)})
    with pytest.raises(InputError, match=words):
        train_graph(data, max_iter=1)
    with pytest.raises(InputError, match=words):
        GCNClassifier().fit(data)


def test_collections_of_graphs_are_refused_by_name(make):
    ring = weighted_ring()
    with pytest.raises(InputTypeError, match=r"collection of 2 graphs; graph-level tasks"):
        train_graph([make(**ring), make(**ring)], max_iter=1)
    with pytest.raises(InputTypeError, match=r"give its graph, data\[0\]"):
        GCNClassifier().fit([make(**ring)])


def test_graphs_of_several_kinds_are_refused_by_name():
    geometric = pytest.importorskip("torch_geometric.data")
    with pytest.raises(InputTypeError, match="HeteroData has several kinds"):
        train_graph(geometric.HeteroData(), max_iter=1)
