"""Every statement of verify.py by itself: one thing is changed and exactly its statement fails; formulas one by one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import sparse

import dladmm
from chaos.certificates import ACTIVATIONS, LOSSES, PENALTIES, honest
from convergent import train, train_graph
from dladmm import verify
from dladmm.activations import get_activation
from dladmm.losses import get_loss
from dladmm.network.graph import normalised_adjacency
from dladmm.regularizers import get_regularizer
from dladmm.training import certificate_file
from dladmm.training.certificate_file import digest_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 4)), np.arange(30) % 3
    result = train(
        dladmm.mlp([4, 5, 3], "tanh"),
        X,
        y,
        nu=0.3,
        regularizer="l2",
        dtype="float64",
        max_iter=6,
        random_state=0,
    )
    path = str(tmp_path_factory.mktemp("run") / "c")
    result.certificate.save(path)
    return *verify.read(path), {"X": X, "y": y}


def failures(run, change):
    """What fails after ``change(tensors, claims, data)``, which does not forget the checksum of the claims."""
    tensors, claims, data = copy.deepcopy(run)
    tensors = {name: t.copy() for name, t in tensors.items()}
    change(tensors, claims, data)
    claims["digest"] = digest_of(claims)
    return verify.verify(tensors, claims, data).failures


def nudge(x):
    """The next number up, in the first entry."""
    flat = x.reshape(-1)
    flat[0] = np.nextafter(flat[0], np.inf)


def test_an_honest_run_holds_in_every_statement(run):
    assert failures(run, lambda tensors, claims, data: None) == []
    report = verify.verify(*run)
    assert report.accepted
    assert any("stationarity at the end" in line for line in report.lines)


def test_data_and_tensors_are_known_to_the_last_bit(run):
    assert failures(run, lambda t, c, d: nudge(d["X"])) == ["the data (X, y) have the checksums stated"]
    assert failures(run, lambda t, c, d: nudge(t["u"])) == [
        "parameters and variables have the checksums stated"
    ]
    assert failures(run, lambda t, c, d: d.update(y=d["y"] + 0 * d["y"].astype(np.int32))) == []


def test_every_number_at_the_end_is_compared(run):
    for name, value in run[1]["end"].items():
        size = 1 + abs(run[1]["end"]["lagrangian"])

        def change(tensors, claims, data, name=name, value=value, size=size):
            claims["end"][name] = value + 1e-4 * size

        assert any(words.startswith(f"{name} at the end") for words in failures(run, change)), name


def test_a_lemma_2_residual_of_a_graph_is_compared_though_it_is_small():
    """A thousandth of a residual of 1e-6: what the graph's rounding is not in is compared to the last digits."""
    graph = honest(23511)
    claims = graph[1]
    assert verify.verify(*graph).accepted
    assert claims["graph"]
    assert claims["dtype"] == "float32"
    assert claims["end"]["dual_optimality"] < 1e-5

    def change(tensors, claims, data):
        claims["end"]["dual_optimality"] *= 1.001

    assert any(words.startswith("dual_optimality at the end") for words in failures(graph, change))


def test_pieces_of_an_iteration_are_compared_with_each_other(run):
    def one(column):
        def change(tensors, claims, data):
            claims["history"][column][2] *= 1.01

        return failures(run, change)

    assert "every iteration's Lagrangian is the sum of its recorded pieces" in one("dual")
    assert one("descent") == ["every recorded descent is the difference of two Lagrangians"]
    assert "all are finite float64" in failures(run, lambda t, c, d: t["u"].__setitem__((0, 0), np.inf))
    forgotten = copy.deepcopy(run[1]) | {"library": "x"}
    assert verify.verify(run[0], forgotten, run[2]).failures == ["the claims have the checksum they state"]


def test_steps_and_c2_are_those_of_the_moves(run):
    def change(tensors, claims, data):
        claims["moves"][2][0] *= 1.001

    assert failures(run, change) == ["steps and C2 are those of the moves, known of 6"]


def test_no_iteration_is_exempt_without_a_reason(run):
    def change(tensors, claims, data):
        claims["exempt"] = claims["verdict"]["exempt"] = [3]

    assert failures(run, change) == ["only starts without Lemma 2 and changes of rho are exempt ([3])"]


def test_a_small_rise_is_seen(run):
    def change(tensors, claims, data):
        h = claims["history"]
        h["lagrangian"][2] = h["lagrangian"][1] * (1 + 1e-10)

    words = next(each for each in failures(run, change) if each.startswith("the verdict repeats"))
    assert "not descent_violations" in words
    assert "what is certified was seen: rho > 2H, descent, C2, Lemma 2" in failures(run, change)


def test_a_residual_beyond_the_recorded_steps_is_seen(run):
    """Steps of z_L made small in moves and sums alike: Lemma 2 ties the residual to them."""

    def change(tensors, claims, data):
        moves = claims["moves"][1]
        half, C1 = len(moves) // 2, claims["C1"]
        for i, rate in enumerate(moves[half:]):
            if abs(rate - C1) < 1e-9:
                moves[i] *= 1e-12
        claims["history"]["squared_steps"][1] = sum(moves[:half])

    assert any(words.startswith("every residual is one") for words in failures(run, change))


def test_H_C1_rho_and_nu_are_compared(run):
    def scaled(name, times):
        return lambda tensors, claims, data: claims.update({name: claims[name] * times})

    assert any(words.startswith("H, the Lipschitz") for words in failures(run, scaled("H", 1 + 1e-6)))
    assert any(words.startswith("C1 =") for words in failures(run, scaled("C1", 1 + 1e-6)))
    for name in ("rho", "nu"):
        assert any(words.startswith("rho and nu are the same") for words in failures(run, scaled(name, 1.01)))

    for name in ("rho", "nu"):

        def once(tensors, claims, data, name=name):
            claims["history"][name][2] *= 1.01

        assert any(words.startswith("rho and nu are the same") for words in failures(run, once))


CERTIFIED = "what is certified was seen: rho > 2H, descent, C2, Lemma 2"


def test_nothing_is_certified_of_a_failed_run_without_lemma_2_or_with_a_constraint(run, tmp_path):
    assert failures(run, lambda t, c, d: c.update(status="NON_FINITE")) == [CERTIFIED]
    assert CERTIFIED in failures(run, lambda t, c, d: t["u"].__imul__(1.01))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 4)), np.arange(30) % 3
    result = train(dladmm.mlp([4, 3]), X, y, regularizer="non_negative", max_iter=3)
    result.certificate.save(tmp_path / "c")
    other = (*verify.read(str(tmp_path / "c")), {"X": X, "y": y})
    assert failures(other, lambda t, c, d: None) == []
    assert CERTIFIED in failures(other, lambda t, c, d: c["verdict"].update(certified=True))


def test_every_row_counts_in_a_checksum():
    rows = np.random.default_rng(0).normal(size=(2500, 2))
    whole = certificate_file.hash_of("X", np.dtype(np.float64), rows)
    assert whole == verify.hash_of("X", "<f8", rows)
    assert whole == certificate_file.hash_of("X", np.dtype(np.float64), sparse.csr_array(rows))
    rows[-1, -1] += 1.0
    assert whole != certificate_file.hash_of("X", np.dtype(np.float64), rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_matrix_of_a_graph_is_that_of_the_library(weighted):
    rng = np.random.default_rng(0)
    edges = np.concatenate([rng.integers(0, 12, (2, 30)), [[3, 5], [3, 5]]], axis=1)  # two loops among them
    pairs = np.sort(edges, axis=0)
    edges = edges[:, np.unique(pairs[0] * 12 + pairs[1], return_index=True)[1]]
    data = {"edge_index": edges} | (
        {"edge_weight": rng.uniform(0.5, 3.0, edges.shape[1])} if weighted else {}
    )
    found = verify.Adjacency(data, 12, "float64").times(np.eye(12))
    expected = normalised_adjacency(edges, 12, data.get("edge_weight")).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("number", range(len(LOSSES)))
def test_losses_are_those_of_the_library(number):
    loss = get_loss(LOSSES[number])
    rng = np.random.default_rng(number)
    z = rng.normal(size=(40, 3)) * 3
    y = rng.random((40, 3))
    if loss.name == "cross_entropy":
        y /= y.sum(1, keepdims=True)
    if loss.name == "squared_hinge":
        y = np.where(y > 0.5, 1.0, -1.0)
    if loss.name == "poisson":
        y *= 8
    rows, gradient, H = verify.loss_of(loss.to_spec(), z, y)
    at, target = torch.from_numpy(z), torch.from_numpy(y)
    np.testing.assert_allclose(rows, loss.rows(at, target), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gradient, loss.gradient(at, target), rtol=1e-10, atol=1e-10)
    assert pytest.approx(loss.H) == H


@pytest.mark.parametrize("number", range(len(ACTIVATIONS)))
def test_activations_and_their_distances_are_those_of_the_library(number):
    f = get_activation(ACTIVATIONS[number])
    rng = np.random.default_rng(number)
    z = np.concatenate([rng.normal(size=50) * 2, np.repeat(np.linspace(-1, 1, 5), 8)])
    m, a = rng.normal(size=(2, 90))
    value, slope = verify.activation(f.to_spec(), z)
    at = torch.from_numpy(z)
    np.testing.assert_allclose(value, f(at), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slope, f.derivative(at), rtol=1e-10, atol=1e-12)  # at the kinks too
    if f.continuous:
        found = verify.distance(f.to_spec(), z, m, a, 0.6)
        np.testing.assert_allclose(
            found, f.stationarity(at, *map(torch.from_numpy, (m, a)), 0.6), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("number", range(1, len(PENALTIES)))
def test_penalties_are_those_of_the_library(number):
    penalty = get_regularizer(PENALTIES[number])
    rng = np.random.default_rng(number)
    W, g = rng.normal(size=(2, 6, 4))
    W = np.abs(W) if penalty.is_constraint else W
    W[0] = 0.0
    value, distance = verify.penalty_of(penalty.to_spec(), W, g)
    at = torch.from_numpy(W)
    assert value == pytest.approx(float(penalty.value(at)), rel=1e-12)
    np.testing.assert_allclose(distance, penalty.stationarity(at, torch.from_numpy(g)), rtol=1e-12)


@pytest.mark.parametrize("kind", ["one output", "small weights of yes", "labels of some nodes"])
def test_what_few_runs_have_is_recomputed_too(kind, tmp_path):
    """Two classes told by one output; weights below 1, which leave H as it is; nodes without a label."""
    rng = np.random.default_rng(0)
    X, y, more = rng.normal(size=(30, 3)), np.arange(30) % 2, {"loss": "binary_logistic"}
    data = {"X": X, "y": y}
    outputs = 1
    if kind == "small weights of yes":
        more = {"loss": {"name": "binary_logistic", "pos_weight": [0.5, 0.25]}}
        outputs = 2
    if kind == "labels of some nodes":
        mask, edges = np.arange(30) % 3 > 0, rng.integers(0, 30, (2, 60))
        data |= {"train_mask": mask, "y": np.where(mask, y, -1), "edge_index": edges}
        result = train_graph(X, edges, data["y"], mask, hidden=[4], n_classes=2, max_iter=4)
    else:
        result = train(dladmm.mlp([3, 4, outputs]), X, y, max_iter=4, **more)
    assert result.certificate.certified
    result.certificate.save(tmp_path / "c")
    tensors, claims = verify.read(str(tmp_path / "c"))
    report = verify.verify(tensors, claims, data)
    assert report.accepted, report.failures
    assert 0 < claims["end"]["accuracy"] < 1 or kind != "one output"


@pytest.mark.parametrize("column", ["risk", "penalty", "coupling"])
def test_a_piece_of_an_objective_on_the_way_is_compared_with_it(column, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.arange(30) % 3
    result = train(dladmm.mlp([3, 4, 3]), X, y, max_iter=4, regularizer="l2")
    result.certificate.save(tmp_path / "c")
    tensors, claims = verify.read(str(tmp_path / "c"))
    claims["history"][column][1] *= 1.01
    claims["digest"] = verify.digest_of(claims)
    report = verify.verify(tensors, claims, {"X": X, "y": y})
    assert report.failures == ["every iteration's Lagrangian is the sum of its recorded pieces"]
