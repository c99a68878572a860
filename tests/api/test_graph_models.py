"""Networks on graphs that are trained as they are: of PyG where it is installed, and modules of one's own."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dladmm import InputError, InputTypeError, train_graph
from dladmm.api.graph_model import Edges
from dladmm.api.graph_problem import GivenGraph


class Means(nn.Module):
    """A layer of messages: the mean over a node's sources beside its own features."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.theirs, self.own = nn.Linear(n_in, n_out, bias=False), nn.Linear(n_in, n_out)

    def forward(self, x, edge_index, edge_weight=None):
        source, target = edge_index
        weight = torch.ones(len(source)).to(x) if edge_weight is None else edge_weight
        total = torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])
        count = torch.zeros(len(x)).to(x).index_add(0, target, weight)
        return self.theirs(total / count.clamp_min(1e-9)[:, None]) + self.own(x)


class Residual(nn.Module):
    """Residual layers with norms and dropout around convolutions of any kind."""

    def __init__(self, make, n_in=3, n_out=3, width=16, depth=2):
        super().__init__()
        self.into, self.out = nn.Linear(n_in, width), nn.Linear(width, n_out)
        self.layers = nn.ModuleList(make(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))

    def forward(self, x, edge_index):
        x = self.into(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.dropout(layer(norm(x), edge_index).relu(), 0.2, self.training)
        return self.out(x)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Means(2, 8), Means(8, 2)

    def forward(self, x, edge_index, edge_weight=None):
        return self.last(torch.tanh(self.first(x, edge_index, edge_weight)), edge_index, edge_weight)


def of_pyg(name, **settings):
    def make(n_in, n_out):
        pyg = pytest.importorskip("torch_geometric.nn")
        if name == "GINConv":
            return pyg.GINConv(nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU(), nn.Linear(n_out, n_out)))
        return getattr(pyg, name)(n_in, n_out, **settings)

    return make


KINDS = {
    "own": Means,
    "GCN": of_pyg("GCNConv"),
    "SAGE": of_pyg("SAGEConv"),
    "SAGE, largest": of_pyg("SAGEConv", aggr="max"),
    "GAT": of_pyg("GATConv", heads=4, concat=False),
    "GATv2": of_pyg("GATv2Conv"),
    "GIN": of_pyg("GINConv"),
    "Cheb": of_pyg("ChebConv", K=2),
    "Transformer": of_pyg("TransformerConv"),
}


@pytest.fixture(scope="module")
def graph() -> dict[str, torch.Tensor]:
    """Three communities with some directed edges; features say little of the community."""
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    pairs = rng.integers(0, 150, (2, 4000))
    kept = ((y[pairs[0]] == y[pairs[1]]) | (rng.random(4000) < 0.1)) & (pairs[0] != pairs[1])
    x = np.eye(3)[y] + 1.5 * rng.normal(size=(150, 3))
    return {
        "data": torch.tensor(x, dtype=torch.float32),
        "edge_index": torch.tensor(pairs[:, kept]),
        "y": torch.tensor(y),
        "train_mask": torch.arange(150) < 60,
    }


def outputs(network, graph):
    with torch.no_grad():
        return network.eval()(graph["data"], graph["edge_index"])


def accuracy(network, graph) -> float:
    right = outputs(network, graph).argmax(1) == graph["y"]
    return float(right[60:].float().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_any_network_is_trained_in_place(graph, kind):
    torch.manual_seed(0)
    network = Residual(KINDS[kind])
    before = copy.deepcopy(network.state_dict())
    result = train_graph(**graph, model=network, validation=~graph["train_mask"], max_iter=40)
    assert result.module is network
    assert accuracy(network, graph) > 0.7
    assert result.history["val_accuracy"][-1] == pytest.approx(accuracy(network, graph), abs=1e-6)
    changed = {key for key, p in network.state_dict().items() if not torch.equal(p, before[key])}
    assert {"into.weight", "norms.0.weight", "norms.1.running_mean", "out.weight", "out.bias"} <= changed


def test_frozen_parameters_stay(graph):
    torch.manual_seed(0)
    network = Residual(Means)
    network.layers[0].requires_grad_(False)
    network.into.bias.requires_grad_(False)
    before = copy.deepcopy(network.state_dict())
    train_graph(**graph, model=network, max_iter=3)
    for key, p in network.named_parameters():
        assert torch.equal(p, before[key]) == (key.startswith("layers.0") or key == "into.bias")


def test_log_softmax_at_the_end_changes_nothing_but_the_outputs_shift(graph):
    class Ended(Residual):
        def forward(self, x, edge_index):
            return F.log_softmax(super().forward(x, edge_index), dim=1)

    found = []
    for kind in (Residual, Ended):
        torch.manual_seed(0)
        network = kind(Means)
        train_graph(**graph, model=network, max_iter=5, dtype="float64")
        found.append(outputs(network.float(), graph).log_softmax(1))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_edge_weights_go_to_networks_that_take_them():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    pairs = torch.tensor([(i, (i + step) % 40) for i in range(40) for step in (1, 2)]).T
    edges = torch.cat([pairs, pairs.flip(0)], 1)
    weight = torch.where(y[edges[0]] == y[edges[1]], 1.0, 0.01)
    x = F.one_hot(y, 2).float() + 0.3 * torch.randn(40, 2, generator=generator)
    given = {"edge_index": edges, "y": y, "train_mask": torch.arange(40) < 12, "edge_weight": weight}
    torch.manual_seed(0)
    network = Weighted()
    train_graph(x, **given, model=network, max_iter=30)
    with torch.no_grad():
        assert (network(x, edges, weight).argmax(1) == y).float().mean() == 1.0
    with pytest.raises(InputError, match="Residual is not given the edge_weight"):
        train_graph(x, **given, model=Residual(Means, 2, 2), max_iter=2)


def test_a_batch_of_all_clusters_is_the_whole_graph_step(graph):
    found = []
    for parts in ({}, {"batch_size": 150, "partition": np.arange(150) % 7}):
        torch.manual_seed(0)
        network = Residual(Means)
        torch.manual_seed(1)  # dropout draws from torch's own generator
        train_graph(**graph, model=network, max_iter=5, dtype="float64", **parts)
        found.append(outputs(network.float(), graph))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_clusters_of_directed_edges(graph):
    network = Residual(Means)
    train_graph(**graph, model=network, batch_size=50, max_iter=30)
    assert accuracy(network, graph) > 0.75


@pytest.mark.parametrize("weighted", [False, True])
def test_the_edges_among_some_nodes(weighted):
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 20, (2, 90))
    weight = rng.random(90) if weighted else None
    edges = Edges(GivenGraph(None, pairs, np.zeros(20), None, edge_weight=weight))
    for nodes in (np.array([1, 4, 5, 11, 19]), np.arange(20), np.array([7])):
        place = {node: i for i, node in enumerate(nodes)}
        for _ in range(2):  # what one call noted must not stay for the next
            source, target, kept = edges.among(nodes)
        expected = [
            (place[a], place[b], None if weight is None else weight[k])
            for k, (a, b) in enumerate(pairs.T)
            if a in place and b in place
        ]
        found = zip(source, target, [None] * len(source) if kept is None else kept, strict=True)
        assert sorted(found) == sorted(expected)


def batches_of(graph, **fields):
    """What a loader gives: subgraphs of 30 nodes that stand first, and of their neighbours."""
    found = []
    edges = graph["edge_index"]
    for first in torch.arange(60).split(30):
        near = torch.unique(edges[0][torch.isin(edges[1], first)])
        nodes = torch.cat([first, near[~torch.isin(near, first)]])
        place = torch.full((150,), -1)
        place[nodes] = torch.arange(len(nodes))
        kept = place[edges][:, (place[edges] >= 0).all(0)]
        found.append(
            SimpleNamespace(
                x=graph["data"][nodes],
                edge_index=kept,
                y=graph["y"][nodes],
                **{name: make(nodes) for name, make in fields.items()},
            )
        )
    return found


@pytest.mark.parametrize("counted", ["batch_size", "train_mask"])
def test_a_loader_of_batches(graph, counted):
    make = {"batch_size": lambda nodes: 30, "train_mask": lambda nodes: graph["train_mask"][nodes]}
    loader = batches_of(graph, **{counted: make[counted]})
    torch.manual_seed(0)
    network = Residual(Means)
    result = train_graph(loader, model=network, max_iter=30)
    assert result.module is network
    assert accuracy(network, graph) > 0.75


def test_labels_outside_the_counted_nodes_of_a_batch_are_not_learned_from(graph):
    found = []
    for wrong in (False, True):
        loader = batches_of(graph, batch_size=lambda nodes: 30)
        for batch in loader:
            batch.y = torch.where((torch.arange(len(batch.y)) >= 30) & wrong, 0, batch.y)
        torch.manual_seed(0)
        network = Residual(Means)
        train_graph(loader, model=network, max_iter=3)
        found.append(outputs(network, graph))
    assert torch.equal(*found)


def test_a_penalty_counts_the_labelled_nodes_of_a_pass(graph):
    """The same graph as one batch, or listed twice with a penalty twice as strong."""
    one = SimpleNamespace(
        x=graph["data"], edge_index=graph["edge_index"], y=graph["y"], train_mask=graph["train_mask"]
    )
    found = []
    for loader, strength, passes in (([one], 3.0, 6), ([one, one], 6.0, 3)):
        torch.manual_seed(0)
        network = Residual(Means)
        torch.manual_seed(1)
        train_graph(loader, model=network, max_iter=passes, regularizer={"name": "l2", "strength": strength})
        found.append(outputs(network, graph))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_loaders_of_pyg(graph):
    loaders = pytest.importorskip("torch_geometric.loader")
    from torch_geometric.data import Data

    data = Data(x=graph["data"], edge_index=graph["edge_index"], y=graph["y"], train_mask=graph["train_mask"])
    network = Residual(KINDS["SAGE"])
    train_graph(loaders.DataLoader([data, data], batch_size=1), model=network, max_iter=10)
    assert accuracy(network, graph) > 0.7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's own, of the samplers that are installed
        try:
            loader = loaders.NeighborLoader(data, [10, 10], input_nodes=data.train_mask, batch_size=20)
            next(iter(loader))
        except ImportError:
            pytest.skip("NeighborLoader needs pyg-lib or torch-sparse")
        train_graph(loader, model=network, max_iter=2)


class Pooled(Residual):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index).mean(0, keepdim=True)


class Cached(Residual):
    cached = True


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda: Residual(Means), {"mode": "accelerated"}, "mode='streaming' alone"),
        (lambda: Residual(Means), {"hidden": (8,)}, "hidden cannot be used with model"),
        (lambda: Residual(Means), {"self_training": True}, "self_training cannot be used with model"),
        (lambda: Pooled(Means), {}, "graph-level tasks"),
        (lambda: Residual(Means, 3, 5), {"n_classes": 3}, "5 outputs for 3 classes"),
        (lambda: Residual(Means, 4), {}, "does not go through Residual"),
        (lambda: Residual(Means).requires_grad_(False), {}, "no parameters to train"),
        (lambda: Cached(Means), {"batch_size": 50}, "cached=False"),
        (lambda: nn.Linear(3, 3), {}, "function of x and edge_index"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(graph, make, settings, words):
    with pytest.raises(InputError, match=words):
        train_graph(**graph, model=make(), max_iter=1, **settings)


def test_what_cannot_be_loaded_is_refused_by_name(graph):
    loader = batches_of(graph, batch_size=lambda nodes: 30)
    with pytest.raises(InputTypeError, match="read once only"):
        train_graph(iter(loader), model=Residual(Means), max_iter=1)
    with pytest.raises(InputError, match="batch_size cannot be used with a loader"):
        train_graph(loader, model=Residual(Means), max_iter=1, batch_size=20)
    with pytest.raises(InputError, match="validation cannot be used with a loader"):
        train_graph(loader, model=Residual(Means), max_iter=1, validation="val")
    none = batches_of(graph, train_mask=lambda nodes: torch.zeros(len(nodes), dtype=torch.bool))
    with pytest.raises(InputError, match="no batch with a labelled node"):
        train_graph(none, model=Residual(Means), max_iter=1)
    with pytest.raises(InputTypeError, match="collection of 2 graphs"):
        train_graph(loader, max_iter=1)


def test_layers_that_keep_their_first_graph_are_tried_on_a_copy(graph):
    class Keeping(Means):
        kept = None

        def forward(self, x, edge_index):
            self.kept = edge_index if self.kept is None else self.kept
            return super().forward(x, self.kept)

    network = Residual(Keeping)
    train_graph(**graph, model=network, max_iter=30, dtype="float64")
    assert all(layer.kept is None for layer in network.layers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [{}, {"batch_size": 50}])
def test_networks_are_trained_on_a_gpu(graph, settings):
    """Edges come to the device of the features, whole graphs and clusters alike."""
    torch.manual_seed(0)
    network = Residual(Means)
    train_graph(
        **graph, model=network, validation=~graph["train_mask"], max_iter=40, device="cuda", **settings
    )
    network.cpu()
    assert accuracy(network, graph) > 0.7
