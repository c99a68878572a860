"""Targets for nodes without labels, the penalty in units of the labels' signal, and where neither applies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from convergent import train_graph
from dladmm import GCNClassifier, datasets
from dladmm.api.graph_penalty import class_signal, graph_penalty
from dladmm.api.graph_problem import GivenGraph, GraphSettings, graph_problem
from dladmm.api.self_training import near_problem, self_trained, spread_labels
from dladmm.api.train_graph import fresh_parameters
from dladmm.base.errors import InputError
from dladmm.engine.options import make_options
from dladmm.losses import get_loss

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    return datasets.sbm(n_nodes=300, n_classes=3, n_features=30, labels_per_class=5, seed=2)


def problem_of(data, hidden=(6,), *, x=None, scaled=False):
    settings = GraphSettings(
        hidden, "relu", "all", get_loss("cross_entropy"), None, "auto", torch.float64, CPU, scaled=scaled
    )
    features = data.x if x is None else x
    given = GivenGraph(features, data.edge_index, data.y, data.train_mask, n_classes=data.n_classes)
    return graph_problem(given, settings)


def parameters(problem):
    return fresh_parameters(problem.chain, 0, 1.0, None, torch.float64, CPU)


@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_the_nodes_that_labels_see_have_the_loss_of_the_whole_graph(data, hidden, layout):
    x = sparse.csr_array(data.x_dense().double().numpy())
    whole = problem_of(data, hidden, x=x if layout == "sparse" else x.toarray())
    near = near_problem(whole, whole.risk)
    assert len(near.risk.target) < len(whole.risk.target)
    params = parameters(whole)
    values = [float(p.risk.value(p.chain.predict(params, p.x))) for p in (whole, near)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_targets_are_probabilities_keep_the_labels_and_weigh_as_much_as_they(data):
    problem = problem_of(data)
    risk = spread_labels(problem, _learned(data))
    labelled = torch.as_tensor(data.train_mask)
    assert risk is not None
    assert torch.equal(risk.target[labelled], problem.risk.target[labelled])
    torch.testing.assert_close(risk.target.sum(1), torch.ones(300, dtype=torch.float64))
    assert float(risk.weight[~labelled].sum()) == pytest.approx(float(risk.weight[labelled].sum()))


def test_one_step_of_spreading_literally(data, monkeypatch):
    monkeypatch.setattr("dladmm.api.self_training.SPREADING_STEPS", 1)
    problem, learned = problem_of(data), _learned(data)
    risk = spread_labels(problem, learned)
    A = problem.chain.blocks[-1].graph.adjacency.to_scipy().toarray()
    P = problem.risk.loss.probabilities(problem.chain.predict(learned, problem.x)).numpy()
    labelled = np.asarray(data.train_mask)
    P[labelled] = np.eye(3)[np.asarray(data.y)[labelled]]
    F = 0.5 * A @ P + 0.5 * P
    F /= F.sum(1, keepdims=True)
    F *= P.mean(0) / F.mean(0)
    F = (F / F.sum(1, keepdims=True)) ** 2
    F /= F.sum(1, keepdims=True)
    np.testing.assert_allclose(risk.target.numpy()[~labelled], F[~labelled], atol=1e-12)


def _learned(data):
    problem = problem_of(data)
    gradient = problem.risk.gradient(torch.zeros_like(problem.risk.target))
    params = parameters(problem)
    hidden = problem.chain.forward(params, problem.x)[0]
    A = problem.chain.blocks[-1].graph.adjacency
    params[1]["W"] = -0.2 * gradient.T @ (A @ hidden)
    return params


def test_edges_between_different_classes_suggest_no_targets(data):
    """A graph in which every edge joins nodes of different classes."""
    y = np.asarray(data.y)
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 300, (2, 3000))
    apart = replace(data, edge_index=torch.from_numpy(pairs[:, y[pairs[0]] != y[pairs[1]]]))
    problem, params = problem_of(apart), _learned(apart)
    assert spread_labels(problem, params) is None
    same, kept = self_trained(problem, params, 0, lambda near, start: start)
    assert same is problem
    assert kept is params


def test_accuracy_on_few_labels_is_no_worse_with_targets(data):
    test = ~np.asarray(data.train_mask)
    scores = [
        GCNClassifier((16,), random_state=0, self_training=used).fit(data).score(data, mask=test)
        for used in (False, None)
    ]
    assert scores[1] >= scores[0] - 0.01


def test_the_penalty_follows_the_unit_of_unscaled_features_and_their_labels(data):
    x = data.x_dense().double().numpy()
    signal = class_signal(problem_of(data, x=x))
    assert class_signal(problem_of(data, x=1000 * x)) == pytest.approx(1000 * signal, rel=1e-9)
    scaled = [class_signal(problem_of(data, x=unit * x, scaled=True)) for unit in (1.0, 1e-6, 1e6)]
    assert scaled == pytest.approx([scaled[0]] * 3, rel=1e-6)


def test_the_signal_is_that_of_the_linear_network_literally(data):
    problem = problem_of(data, x=data.x_dense().double().numpy())
    A = problem.chain.blocks[-1].graph.adjacency.to_scipy().toarray()
    labelled = np.asarray(data.train_mask)
    E = (1 / 3 - np.eye(3)[np.asarray(data.y)]) * labelled[:, None]
    values = np.linalg.svd(E.T @ A @ problem.x.numpy(), compute_uv=False)
    # Of two, torch's median is the lower
    assert class_signal(problem) == pytest.approx(np.sort(values)[-2], rel=1e-9)


def test_the_penalty_stops_growing_with_the_labels():
    options = make_options(mode="accelerated")
    few, many = (graph_penalty(options, "auto", n, 5, lambda n=n: n / 100).quadratic for n in (100.0, 1000.0))
    assert few == pytest.approx(0.25)
    assert many == pytest.approx(0.25)
    assert graph_penalty(options, "l2", 100.0, 5, lambda: 1.0).quadratic == 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "convergent"}, "convergent"),
        ({"rows": "train"}, "rows='train'"),
        ({"loss": "squared_hinge"}, "soft labels"),
        ({"hidden": ()}, "hidden layer"),
    ],
)
def test_self_training_that_cannot_be_is_refused_by_name(data, changes, words):
    with pytest.raises(InputError, match=words):
        train_graph(
            data, **{"mode": "accelerated", "hidden": (6,), "max_iter": 2} | changes, self_training=True
        )
