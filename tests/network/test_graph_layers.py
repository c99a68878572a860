"""PyG modules trained in place: GCNConv and SAGEConv, from PyG where it is installed and from stand-ins."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional as F

from dladmm import InputError, train_graph
from dladmm.blocks import NodeMap, Work
from dladmm.compute.sparse import SparseMatrix
from dladmm.solvers.subproblems import SubproblemOptions


class GCNConv(nn.Module):
    """A stand-in with PyG's attributes, dense inside."""

    improved, add_self_loops, normalize, flow = False, True, True, "source_to_target"

    def __init__(self, n_in, n_out, bias=True):
        super().__init__()
        self.lin = nn.Linear(n_in, n_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x, edge_index, edge_weight=None):
        A = torch.zeros(len(x), len(x))
        weight = torch.ones(edge_index.shape[1]) if edge_weight is None else edge_weight.float()
        A = A.index_put((edge_index[1], edge_index[0]), weight, accumulate=True) + torch.eye(len(x))
        root = A.sum(1).rsqrt()
        output = (root[:, None] * A * root) @ self.lin(x)
        return output if self.bias is None else output + self.bias


class SAGEConv(nn.Module):
    """The same for means over neighbours."""

    aggr, normalize, project, flow = "mean", False, False, "source_to_target"

    def __init__(self, n_in, n_out, root_weight=True, aggr="mean"):
        super().__init__()
        self.lin_l, self.root_weight, self.aggr = nn.Linear(n_in, n_out), root_weight, aggr
        if root_weight:
            self.lin_r = nn.Linear(n_in, n_out, bias=False)

    def forward(self, x, edge_index):
        A = torch.zeros(len(x), len(x)).index_put(
            (edge_index[1], edge_index[0]), torch.ones(edge_index.shape[1]), accumulate=True
        )
        output = self.lin_l(A @ x / A.sum(1, keepdim=True).clamp_min(1))
        return output + self.lin_r(x) if self.root_weight else output


def of_pyg(name):
    return getattr(pytest.importorskip("torch_geometric.nn"), name)


@pytest.fixture(params=["stand-in", "PyG"])
def convolution(request):
    own = {"GCNConv": GCNConv, "SAGEConv": SAGEConv}
    return own.__getitem__ if request.param == "stand-in" else of_pyg


class Network(nn.Module):
    def __init__(self, kind, n_in, n_out, **settings):
        super().__init__()
        self.first, self.last = kind(n_in, 16, **settings), kind(16, n_out, **settings)
        self.between = nn.Linear(16, 16)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.1, training=self.training)
        x = self.between(self.first(x, edge_index).relu())
        x = F.dropout(F.relu(x), 0.2, training=self.training)
        return self.last(x, edge_index)


class Weighted(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.last = kind(2, 8), kind(8, 2)

    def forward(self, x, edge_index, edge_weight=None):
        return self.last(torch.tanh(self.first(x, edge_index, edge_weight)), edge_index, edge_weight)


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


def accuracy(network, graph) -> float:
    with torch.no_grad():
        found = network.eval()(graph["data"], graph["edge_index"]).argmax(1)
    return float((found == graph["y"])[60:].float().mean())


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv"])
def test_a_module_of_convolutions_is_trained_in_place(convolution, graph, name):
    torch.manual_seed(0)
    network = Network(convolution(name), 3, 3)
    before = copy.deepcopy(network.state_dict())
    result = train_graph(**graph, model=network, validation=~graph["train_mask"], max_iter=40)
    assert result.module is network
    assert accuracy(network, graph) > 0.8
    assert result.history["val_accuracy"][-1] == pytest.approx(accuracy(network, graph), abs=1e-6)
    assert all(not torch.equal(p, before[key]) for key, p in network.state_dict().items() if key != "step")


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv"])
def test_frozen_convolutions_stay(convolution, graph, name):
    network = Network(convolution(name), 3, 3)
    network.first.requires_grad_(False)
    before = copy.deepcopy(network.first.state_dict())
    train_graph(**graph, model=network, max_iter=3)
    assert all(torch.equal(p, before[key]) for key, p in network.first.state_dict().items())
    network.last.lin_l.weight.requires_grad_(
        False
    ) if name == "SAGEConv" else network.last.bias.requires_grad_(False)
    with pytest.raises(InputError, match="frozen in part"):
        train_graph(**graph, model=network, max_iter=3)


def test_a_linear_layer_between_may_be_frozen_in_part(graph):
    network = Network(GCNConv, 3, 3)
    network.between.weight.requires_grad_(False)
    before = network.between.weight.clone(), network.between.bias.clone()
    train_graph(**graph, model=network, max_iter=3)
    assert torch.equal(network.between.weight, before[0])
    assert not torch.equal(network.between.bias, before[1])


def test_settings_of_convolutions(convolution, graph):
    sage = convolution("SAGEConv")
    train_graph(**graph, model=Network(sage, 3, 3, root_weight=False), max_iter=2)
    with pytest.raises(InputError, match="aggr='max'; only 'mean'"):
        train_graph(**graph, model=Network(sage, 3, 3, aggr="max"), max_iter=2)
    train_graph(**graph, model=Network(convolution("GCNConv"), 3, 3, bias=False), max_iter=2)


def test_edge_weights_go_where_the_module_passes_them(convolution):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    pairs = torch.tensor([(i, (i + step) % 40) for i in range(40) for step in (1, 2)]).T
    edges = torch.cat([pairs, pairs.flip(0)], 1)
    weight = torch.where(y[edges[0]] == y[edges[1]], 1.0, 0.01)
    x = F.one_hot(y, 2).float() + 0.3 * torch.randn(40, 2, generator=generator)
    given = {"edge_index": edges, "y": y, "train_mask": torch.arange(40) < 12, "edge_weight": weight}
    torch.manual_seed(0)
    network = Weighted(convolution("GCNConv"))
    train_graph(x, **given, model=network, max_iter=30)
    with torch.no_grad():
        assert (network(x, edges, weight).argmax(1) == y).float().mean() == 1.0
    with pytest.raises(InputError, match="GCNConv is not given the edge_weight"):
        train_graph(x, **given, model=Network(convolution("GCNConv"), 2, 2), max_iter=2)


class Softmaxed(Network):
    def forward(self, x, edge_index):
        return F.log_softmax(self.first(x, edge_index), dim=1)


def global_mean_pool(x, batch):
    return x.mean(0)


torch.fx.wrap("global_mean_pool")


class Pooled(Network):
    def forward(self, x, edge_index):
        return self.between(global_mean_pool(self.first(x, edge_index), None))


class GATConv(SAGEConv):
    pass


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda: Network(GCNConv, 3, 3), {"mode": "accelerated"}, "mode='streaming' alone"),
        (lambda: Network(GCNConv, 3, 3), {"hidden": (8,)}, "hidden cannot be used with model"),
        (lambda: Network(GCNConv, 3, 3), {"batch_size": 10}, "batch_size cannot be used with model"),
        (lambda: Softmaxed(GCNConv, 3, 3), {}, "leave the softmax"),
        (lambda: Pooled(GCNConv, 3, 3), {}, "graph-level tasks"),
        (lambda: Network(GATConv, 3, 3), {}, "not known as a graph convolution; GCNConv and SAGEConv"),
        (lambda: Network(GCNConv, 3, 5), {"n_classes": 3}, "5 outputs for 3 classes"),
        (lambda: nn.Linear(3, 3), {}, "function of x and edge_index"),
    ],
)
def test_what_cannot_be_taken_in_is_refused_by_name(graph, make, settings, words):
    with pytest.raises(InputError, match=words):
        train_graph(**graph, model=make(), max_iter=1, **settings)


@pytest.mark.parametrize("beside", [False, True])
def test_a_map_over_nodes_and_its_adjoint_belong_together(beside):
    """``<S v, g> = <v, S^T g>``, also where a node's own features stand beside those of its neighbours."""
    entries = np.array([[0.0, 0.5, 0.0], [0.25, 0.0, 2.0], [0.0, 0.0, 1.0]])
    block = NodeMap(
        SparseMatrix.of(sparse.csr_array(entries), torch.float64, torch.device("cpu")), beside=beside
    )
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    output = block.forward({}, v)
    g = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    pulled = block.pull_back({}, v, output, g, Work(SubproblemOptions()))
    torch.testing.assert_close((output * g).sum(), (v * pulled).sum())
    torch.testing.assert_close(block.push_input({}, v, v, output), output)
