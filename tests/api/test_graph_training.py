"""``train_graph``: what it takes, what it refuses, what it says."""

from __future__ import annotations

import os
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from convergent import train_graph
from dladmm import datasets
from dladmm.base.errors import InputError, InputTypeError
from dladmm.callbacks import Checkpoint
from dladmm.cli.demo import train_karate
from dladmm.compute.sparse import csr_tensor
from dladmm.reproduce.paper import figures
from dladmm.runs.chosen import chosen_settings
from dladmm.training.result import ConvergenceNotGuaranteed
from graph_problems import CPU, random_graph

L2 = {"name": "l2", "strength": 0.05}


@pytest.fixture(scope="module")
def karate():
    return datasets.load("karate")


def arrays(graph):
    return graph.x, graph.edge_index, graph.y, graph.train_mask


def test_the_karate_club_is_learnt_and_certified(karate):
    for seed in range(3):
        result = train_karate(seed, progress=False)
        assert result.certificate.certified, str(result.certificate)
        assert result.history["train_accuracy"][-1] == 1.0
        assert result.history["val_accuracy"][-1] >= 0.8
    logits = result.module(karate.x_dense(), karate.edge_index)
    hits = (logits.argmax(1) == karate.y)[karate.test_mask].double().mean()
    assert float(hits) == pytest.approx(result.history["val_accuracy"][-1])


def test_every_way_to_hand_in_a_graph_gives_the_same_network(karate):
    x, edges, y, mask = arrays(karate)
    dense = karate.x_dense()
    matrix = sparse.csr_array(dense.numpy())
    unknown = y.clone()
    unknown[~mask] = -1
    data = types.SimpleNamespace(x=dense, edge_index=edges, y=y, train_mask=mask)
    ways = [
        train_graph(karate, hidden=(8,), max_iter=5, n_classes=4),
        train_graph(data, hidden=(8,), max_iter=5, n_classes=4),
        train_graph(dense, edges, y, mask, hidden=(8,), max_iter=5, n_classes=4),
        train_graph(
            dense.numpy(), edges.numpy(), y.numpy(), mask.numpy(), hidden=(8,), max_iter=5, n_classes=4
        ),
        train_graph(matrix, edges, unknown, mask, hidden=(8,), max_iter=5, n_classes=4),
        train_graph(
            csr_tensor(matrix, torch.float32, CPU), edges, y, mask, hidden=(8,), max_iter=5, n_classes=4
        ),
        train_graph(dense.to_sparse(), edges, y, mask, hidden=(8,), max_iter=5, n_classes=4),
    ]
    assert x.shape == dense.shape
    for other in ways[1:]:
        for ours, theirs in zip(ways[0].module.parameters(), other.module.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_history_speaks_of_labelled_nodes_only(karate):
    result = train_graph(karate, hidden=(8,), max_iter=3, validation="test", dtype="float64")
    logits = result.module(karate.x_dense(torch.float64), karate.edge_index).detach()
    for mask, loss, accuracy in (
        (karate.train_mask, "loss", "train_accuracy"),
        (karate.test_mask, "val_loss", "val_accuracy"),
    ):
        expected = torch.nn.functional.cross_entropy(logits[mask], karate.y[mask])
        assert result.history[loss][-1] == pytest.approx(float(expected), rel=1e-9)
        hits = (logits.argmax(1) == karate.y)[mask].double().mean()
        assert result.history[accuracy][-1] == pytest.approx(float(hits))


def test_labels_outside_the_mask_are_never_looked_at(karate):
    shuffled = torch.where(karate.train_mask, karate.y, (karate.y + 1) % 4)
    _, edges, _, mask = arrays(karate)
    runs = [
        train_graph(karate.x_dense(), edges, y, mask, max_iter=5, n_classes=4) for y in (karate.y, shuffled)
    ]
    for one, other in zip(runs[0].module.parameters(), runs[1].module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_rows_train_says_that_the_theory_does_not_cover_it(karate):
    result = train_graph(karate, hidden=(8,), rows="train", max_iter=5)
    assert not result.certificate.covered
    assert not result.certificate.certified
    assert "follow the forward pass" in str(result.certificate)
    assert "is guaranteed" not in str(result.certificate)


def test_mu_is_nu(karate):
    runs = [train_graph(karate, hidden=(8,), max_iter=3, **o) for o in ({"mu": 0.2}, {"nu": 0.2})]
    assert runs[0].history["lagrangian"] == runs[1].history["lagrangian"]


def test_a_small_rho_is_warned_of(karate):
    with pytest.warns(ConvergenceNotGuaranteed):
        train_graph(karate, hidden=(8,), rho=1e-3, max_iter=2)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_real_targets_on_nodes(loss):
    pairs, x, _, labelled = random_graph(np.random.default_rng(0), 40, 5, 3)
    y = np.random.default_rng(1).normal(size=(40, 2))
    y[~labelled] = np.nan
    result = train_graph(x, pairs.T, y, labelled, hidden=(8,), loss=loss, max_iter=50, dtype="float64")
    assert result.certificate.certified, str(result.certificate)


@pytest.mark.parametrize(
    "regularizer", [None, L2, {"name": "l1", "strength": 0.01}, {"name": "non_negative"}]
)
@pytest.mark.parametrize("activation", ["relu", "tanh", "sign", {"name": "leaky_relu", "slope": 0.2}])
def test_activations_and_penalties(karate, regularizer, activation):
    result = train_graph(
        karate, hidden=(8,), activation=activation, regularizer=regularizer, max_iter=20, dtype="float64"
    )
    found = result.certificate
    assert all((found.monotone, found.sufficient_descent, found.agrees)), str(found)
    # a constraint is no continuous penalty, which the theorems need
    assert found.certified == (regularizer != {"name": "non_negative"}), str(found)


def test_no_hidden_layer_and_many(karate):
    for hidden in ((), (8, 6, 5)):
        result = train_graph(karate, hidden=hidden, max_iter=10, dtype="float64")
        assert result.certificate.certified, str(result.certificate)


X, EDGES, Y, MASK = (
    np.ones((4, 2)),
    np.array([[0, 1], [1, 2]]),
    np.array([0, 1, 1, 0]),
    np.array([1, 1, 0, 1]) > 0,
)
CASES = [
    ("no edges", {"edge_index": None}, InputError, "edge_index missing"),
    ("no labels", {"y": None}, InputError, "y missing"),
    ("no mask", {"train_mask": None}, InputError, "train_mask is missing"),
    ("mask of indices", {"train_mask": np.array([0, 1])}, InputTypeError, "boolean mask"),
    ("float mask", {"train_mask": np.ones(4)}, InputTypeError, "boolean mask, got dtype float64"),
    ("short mask", {"train_mask": MASK[:2]}, InputError, "one entry per node"),
    ("empty mask", {"train_mask": MASK & False}, InputError, "train_mask selects no node"),
    ("edge out of range", {"edge_index": np.array([[0], [4]])}, InputError, "x has 4 rows"),
    ("edges of floats", {"edge_index": EDGES * 1.0}, InputTypeError, "whole numbers"),
    ("weighted", {"edge_weight": np.array([0.5, -2.0])}, InputError, "edge_weight must"),
    ("labels short", {"y": Y[:2]}, InputError, "one entry per node, 4"),
    ("label too large", {"y": np.array([0, 9, 1, 0]), "n_classes": 2}, InputError, "class labels from 0 to 1"),
    ("label negative", {"y": np.array([-1, 1, 1, 0])}, InputError, "class labels"),
    ("label NaN", {"y": np.array([np.nan, 1, 1, 0])}, InputError, "NaN"),
    ("one class", {"y": Y * 0}, InputError, "one class only"),
    ("x NaN", {"data": X * np.nan}, InputError, "x contains NaN"),
    ("x flat", {"data": X[:, 0]}, InputError, "\\(nodes, features\\)"),
    ("rows", {"rows": "some"}, InputError, "rows must be one of"),
    ("prox", {"prox": "newton"}, InputError, "prox must be"),
    ("validation name", {"validation": "train"}, InputError, "'val', 'test', a mask or None"),
    ("no val mask", {"validation": "val"}, InputError, "needs val_mask, which the graph does not have"),
    ("empty validation", {"validation": MASK & False}, InputError, "validation selects no node"),
    ("mu and nu", {"mu": 1.0, "nu": 1.0}, InputError, "two names"),
    ("hidden 0", {"hidden": (0,)}, InputError, "whole numbers >= 1"),
    ("activation", {"activation": "swoosh"}, InputError, "activation"),
    ("option", {"learning_rate": 1.0}, InputError, "unknown option"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "exception", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_input_is_refused_with_a_clear_message(changes, exception, message):
    given = {
        "data": X,
        "edge_index": EDGES,
        "y": Y,
        "train_mask": MASK,
        "max_iter": 1,
        "hidden": (3,),
    } | changes
    with pytest.raises(exception, match=message):
        train_graph(given.pop("data"), **given)


def test_a_graph_and_arrays_together_are_refused(karate):
    with pytest.raises(InputError, match="not both"):
        train_graph(karate, EDGES)


REAL = os.environ.get("DLADMM_DATA", "")
needs_data = pytest.mark.skipif(not REAL or not Path(REAL).is_dir(), reason="DLADMM_DATA is not set")


@needs_data
@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_the_lagrangian_falls_on_citation_graphs(name):
    """The paper's figure has rho = 1 = 2H; anything above is certified."""
    settings = {"hidden": (16,), "mu": 0.01, "max_iter": 15, "random_state": 0, "diagnostics_every": 15}
    certified = train_graph(datasets.load(name), rho=1.01, **settings)
    assert certified.certificate.certified, str(certified.certificate)
    with pytest.warns(ConvergenceNotGuaranteed):
        at_the_border = train_graph(datasets.load(name), rho=1.0, **settings)
    assert at_the_border.certificate.monotone
    assert not at_the_border.certificate.covered


@needs_data
@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_within_a_point_of_the_papers_row(name):
    """One initialisation; docs/results/ has ten."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
        result = train_graph(datasets.load(name), validation="test", random_state=0, **chosen_settings(name))
    paper, _ = figures()["tab:gcn performance"]["dladmm"][name]
    assert result.history["val_accuracy"][-1] >= paper - 0.01


@pytest.mark.usefixtures("short_teachers")
@pytest.mark.parametrize("rows", ["all", "train"])
@pytest.mark.parametrize("options", [{}, {"w_solver": "quadratic"}, {"mode": "accelerated"}])
def test_a_resumed_run_is_bit_equal_to_an_unbroken_one(rows, options, tmp_path):
    graph = datasets.load("sbm", n_nodes=90, n_classes=3, seed=0)
    settings = {"hidden": (9, 7), "rows": rows, "max_iter": 8, **options}
    whole = train_graph(graph, **settings)
    train_graph(graph, **settings | {"max_iter": 3}, callbacks=[Checkpoint(tmp_path)])
    resumed = train_graph(graph, **settings, callbacks=[Checkpoint(tmp_path, resume=True)])
    assert whole.history.n_iter > 3
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]
    assert all(torch.equal(a, b) for a, b in zip(whole.state.W, resumed.state.W, strict=True))
