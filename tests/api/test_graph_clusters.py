"""Streaming on graphs by clusters: a batch of all of them is the whole graph; what cannot be streamed is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from convergent import train_graph
from dladmm import GCNClassifier, datasets
from dladmm.api.graph_clusters import clustered_graph
from dladmm.api.graph_problem import GivenGraph, GraphSettings
from dladmm.base.errors import InputError
from dladmm.callbacks import Checkpoint
from dladmm.losses import get_loss

QUICK = {"hidden": (8,), "mode": "streaming", "dtype": "float64", "random_state": 3}


@pytest.fixture(scope="module")
def graph():
    found = datasets.sbm(n_nodes=240, n_classes=3, n_features=20, labels_per_class=20, seed=1)
    return (
        found.x_dense().double().numpy(),
        np.asarray(found.edge_index),
        np.asarray(found.y),
        found.train_mask,
    )


def clusters(graph, batch_size, owner=None):
    x, edges, y, train = graph
    settings = GraphSettings(
        (8,), "relu", "all", get_loss("cross_entropy"), None, "auto", torch.float64, torch.device("cpu")
    )
    return clustered_graph(GivenGraph(x, edges, y, train), settings, batch_size, 0, owner)


def weights(result):
    return list(result.module.parameters())


@pytest.mark.parametrize("n_clusters", [1, 7])
def test_a_batch_of_all_clusters_is_the_whole_graph_step(graph, n_clusters):
    owner = None if n_clusters == 1 else np.arange(240) % n_clusters
    whole = train_graph(*graph, **QUICK, max_iter=20, self_training=False)
    parts = train_graph(*graph, **QUICK, max_iter=20, batch_size=240, partition=owner)
    for ours, theirs in zip(weights(parts), weights(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_a_batch_has_the_edges_of_its_nodes_normalised_by_its_own_degrees(graph):
    x, edges, y, train = graph
    batches = clusters(graph, 60)
    nodes = batches.nodes_of_pass(2)[1]
    batch = batches.batch(nodes)
    A = np.eye(len(nodes))
    place = {node: i for i, node in enumerate(nodes)}
    for source, target in edges.T:
        if source in place and target in place:
            A[place[source], place[target]] = A[place[target], place[source]] = 1
    scale = 1 / np.sqrt(A.sum(1))
    A = A * scale[:, None] * scale
    np.testing.assert_allclose(batch.x.numpy(), A @ x[nodes], atol=1e-12)
    held = batch.chain.blocks[-1].graph.adjacency.to_scipy().toarray()
    np.testing.assert_allclose(held, A, atol=1e-12)
    assert np.array_equal(batch.weight[:, 0].numpy() > 0, np.asarray(train)[nodes])
    assert float(batch.weight.sum()) == pytest.approx(len(nodes))
    assert np.array_equal(batch.target.argmax(1).numpy()[np.asarray(train)[nodes]], y[nodes][train[nodes]])


def test_every_batch_has_labels_and_a_pass_depends_on_seed_and_number_alone(graph):
    batches, again = clusters(graph, 40), clusters(graph, 40)
    assert batches.batches_per_pass() == 6
    assert batches.n_samples == 60
    for number in range(3):
        dealt = batches.nodes_of_pass(number)
        assert all(np.asarray(graph[3])[nodes].any() for nodes in dealt)
        together = np.concatenate(dealt)
        assert len(np.unique(together)) == len(together)
        assert all(np.array_equal(a, b) for a, b in zip(dealt, again.nodes_of_pass(number), strict=True))
    first, other = batches.nodes_of_pass(0), batches.nodes_of_pass(1)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    rest = list(batches.one_pass(1, skip=4))
    assert torch.equal(rest[0].x, list(batches.one_pass(1))[4].x)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_labels_of_nodes_outside_the_mask_are_never_looked_at(graph):
    x, edges, y, train = graph
    hidden = np.where(train, y, -1)
    told, untold = (
        train_graph(x, edges, labels, train, **QUICK, max_iter=3, batch_size=60, n_classes=3)
        for labels in (y, hidden)
    )
    assert all(map(torch.equal, weights(told), weights(untold)))


def test_isolated_nodes_and_a_graph_without_edges_are_streamed(graph):
    x, edges, y, train = graph
    lonely = edges[:, (edges[0] > 50) & (edges[1] > 50)]
    for given in (lonely, edges[:, :0]):
        result = train_graph(x, given, y, train, **QUICK, max_iter=5, batch_size=60)
        assert all(bool(W.isfinite().all()) for W in weights(result))
        assert result.history["loss"][-1] < result.history["loss"][0]


def test_a_resumed_clustered_run_is_bit_equal_to_an_unbroken_one(graph, tmp_path):
    settings = QUICK | {"batch_size": 60, "max_iter": 6}
    whole = train_graph(*graph, **settings)

    class Stop(Checkpoint):
        def on_epoch_end(self, trainer):
            super().on_epoch_end(trainer)
            if trainer.history.n_iter == 3:
                raise KeyboardInterrupt

    train_graph(*graph, **settings, callbacks=[Stop(tmp_path)])
    resumed = train_graph(*graph, **settings, callbacks=[Checkpoint(tmp_path, resume=True)])
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]
    assert all(map(torch.equal, weights(resumed), weights(whole)))


def test_clustered_networks_are_about_as_good_as_whole_graph_ones(graph):
    x, edges, y, train = graph
    scores = {
        size: (
            train_graph(*graph, **QUICK, batch_size=size, self_training=False).module(
                torch.from_numpy(x), torch.from_numpy(edges)
            )
        )
        for size in (None, 60)
    }
    whole, parts = (float((out.argmax(1).numpy() == y)[~np.asarray(train)].mean()) for out in scores.values())
    assert parts >= whole - 0.05


@pytest.mark.skipif("DLADMM_DATA" not in os.environ, reason="DLADMM_DATA is not set")
@pytest.mark.realdata
def test_clusters_of_pubmed_reach_what_whole_graph_steps_do():
    data = datasets.load("pubmed")
    result = train_graph(data, mode="streaming", batch_size=2000)
    output = result.module(data.x_dense(), data.edge_index)
    right = (output.argmax(1) == torch.as_tensor(data.y)).double()
    assert float(right[torch.as_tensor(data.test_mask)].mean()) > 0.765  # whole-graph steps: .79


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_the_estimator_and_validation_nodes(graph):
    x, edges, y, train = graph
    val = ~np.asarray(train)
    fitted = GCNClassifier((8,), mode="streaming", max_iter=3, random_state=0)
    fitted.fit(x, y, edge_index=edges, train_mask=train, val_mask=val)
    assert len(fitted.history_["val_accuracy"]) == 3
    result = train_graph(*graph, **QUICK, batch_size=60, max_iter=3, validation=val)
    assert result.history["val_accuracy"][-1] > 0


def test_what_cannot_be_streamed_is_refused_by_name(graph):
    for changes, words in (
        ({"rows": "train"}, "rows='train'"),
        ({"prox": "fista"}, "prox"),
        ({"self_training": True}, "self_training"),
        ({"partition": np.zeros(3, dtype=int)}, "cluster"),
    ):
        with pytest.raises(InputError, match=words):
            train_graph(*graph, **QUICK | changes, batch_size=60, max_iter=2)
    with pytest.raises(InputError, match="batch_size"):
        train_graph(*graph, hidden=(8,), mode="accelerated", batch_size=60)
