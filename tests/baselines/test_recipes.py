"""What people add to a gradient method, and gradient methods on the objective of accelerated mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn import functional as F

from dladmm import Callback, InputError, baselines, datasets, mlp, train, train_graph
from dladmm.api.train import fresh_parameters
from dladmm.baselines.dropout import RandomDropout
from dladmm.callbacks import Checkpoint
from dladmm.network.graph import with_normalised_rows
from graph_problems import random_graph
from reference_gcn import dense_adjacency

CPU = torch.device("cpu")
SHARE, DECAY = 0.4, 0.03


def rows(n=40):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 5)), rng.integers(0, 3, n)


def masked(v, seed, draw):
    """v with the mask of this number, by the rule that the module states."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + draw)
    kept = torch.rand(v.shape, generator=generator) >= SHARE
    return v * kept / (1 - SHARE)


def leaves_of(chain, seed=2):
    start = fresh_parameters(chain, seed, 1.0, None, torch.float64, CPU)
    return [{name: p.clone().requires_grad_() for name, p in block.items()} for block in start]


def adam_of(leaves):
    every = [p for block in leaves for p in block.values()]
    return torch.optim.Adam(every, lr=0.01, weight_decay=DECAY), every


def assert_near(result, leaves):
    found = [p for block in result.state.params for p in block.values()]
    wanted = [p for block in leaves for p in block.values()]
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("batch_size", [None, 20])
def test_dropout_and_weight_decay_are_those_of_a_loop_written_out(batch_size):
    X, y = rows()
    settings = {"lr": 0.01, "dropout": SHARE, "weight_decay": DECAY, "random_state": 2, "dtype": "float64"}
    result = baselines.train(
        "adam", mlp([5, 7, 3]), X, y, batch_size=batch_size, max_iter=3, device="cpu", **settings
    )
    leaves = leaves_of(mlp([5, 7, 3]))
    optimizer, _ = adam_of(leaves)
    x, target = torch.from_numpy(X), torch.from_numpy(y)
    draw = 0
    for number in range(3):
        order = torch.randperm(40, generator=torch.Generator().manual_seed(2 * 1_000_003 + number))
        for batch in [slice(None)] if batch_size is None else order.split(20):
            optimizer.zero_grad()
            v = torch.relu(masked(x[batch], 2, draw) @ leaves[0]["W"].T + leaves[0]["b"])
            z = masked(v, 2, draw + 1) @ leaves[2]["W"].T + leaves[2]["b"]
            F.cross_entropy(z, target[batch]).backward()
            optimizer.step()
            draw += 2
    assert_near(result, leaves)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_on_a_graph_entries_of_the_features_are_dropped_before_they_spread(kind):
    pairs, x, y, mask = random_graph(np.random.default_rng(0), 12, 6, 3)
    raw = sparse.csr_array(np.abs(x) * (np.abs(x) > 0.4)) if kind == "sparse" else np.abs(x)
    result = baselines.train_graph(
        "adam", raw, pairs.T, y, mask, hidden=(4,), n_classes=3, lr=0.01, dropout=SHARE, weight_decay=DECAY, max_iter=3,
        normalise_rows=True, random_state=2, dtype="float64", device="cpu",
    )  # fmt: skip
    normalised = raw.toarray() if kind == "sparse" else raw
    normalised = torch.from_numpy(
        normalised / np.where(normalised.sum(1) == 0, 1, normalised.sum(1))[:, None]
    )
    A = torch.as_tensor(dense_adjacency(pairs, 12))
    leaves = [{"W": p["W"]} for p in leaves_of_graph(6, 4, 3)]
    optimizer, _ = adam_of(leaves)
    target, labelled = torch.from_numpy(y), torch.from_numpy(mask)
    for step in range(3):
        optimizer.zero_grad()
        dropped = normalised.clone()
        if kind == "sparse":  # a mask over the stored entries, row by row
            dropped[normalised != 0] = masked(normalised[normalised != 0], 2, 2 * step)
        else:
            dropped = masked(normalised, 2, 2 * step)
        v = torch.relu(A @ dropped @ leaves[0]["W"].T)
        z = A @ masked(v, 2, 2 * step + 1) @ leaves[1]["W"].T
        F.cross_entropy(z[labelled], target[labelled]).backward()
        optimizer.step()
    assert_near(result, leaves)


def leaves_of_graph(features, hidden, classes):
    from dladmm.compute.sparse import SparseMatrix
    from dladmm.network.graph_chain import gcn

    eye = SparseMatrix.of(sparse.csr_array(np.eye(2)), torch.float64, CPU, symmetric=True)
    return leaves_of(gcn([features, hidden, classes], eye))


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_resumed_run_drops_what_the_unbroken_one_does(batch_size, tmp_path):
    X, y = rows()

    def run(max_iter, **more):
        return baselines.train(
            "adam", mlp([5, 7, 3]), X, y, dropout=0.5, batch_size=batch_size, max_iter=max_iter, eps_abs=0.0,
            eps_rel=0.0, device="cpu", **more,
        )  # fmt: skip

    run(2, callbacks=[Checkpoint(tmp_path)])
    resumed, whole = run(4, callbacks=[Checkpoint(tmp_path, resume=True)]), run(4)
    for mine, theirs in zip(resumed.state.params, whole.state.params, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


class Kept(Callback):
    """The problem that a run solves: its inputs and its penalty."""

    def on_train_begin(self, trainer):
        x = trainer.engine.x
        self.x = x if x.layout == torch.strided else x.to_dense()
        self.penalty = trainer.engine.penalty.strength


def test_the_objective_is_the_one_of_accelerated_mode():
    X, y = rows()
    X = X * 50 + 7
    ours, theirs = Kept(), Kept()
    settings = {"max_iter": 1, "device": "cpu", "dtype": "float64"}
    train(mlp([5, 7, 3]), X, y, mode="accelerated", dropout=0.0, callbacks=[ours], **settings)
    baselines.train("adam", mlp([5, 7, 3]), X, y, objective="accelerated", callbacks=[theirs], **settings)
    assert ours.penalty == theirs.penalty
    assert ours.penalty > 0
    torch.testing.assert_close(ours.x, theirs.x)
    data, settings = datasets.load("karate"), settings | {"hidden": (8,)}
    ours, theirs = Kept(), Kept()
    train_graph(data, mode="accelerated", self_training=False, callbacks=[ours], **settings)
    baselines.train_graph("adam", data, objective="accelerated", callbacks=[theirs], **settings)
    assert ours.penalty == theirs.penalty
    torch.testing.assert_close(ours.x, theirs.x)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adam", {"dropout": 1.0}, "dropout must be a number from 0 to below 1"),
        ("adam", {"dropout": True}, "dropout must be a number from 0 to below 1"),
        ("adam", {"weight_decay": -1.0}, "weight_decay"),
        ("lbfgs", {"dropout": 0.5}, "lbfgs compares values of one objective"),
        ("lbfgs", {"weight_decay": 0.1}, "lbfgs has no weight_decay"),
        ("admm", {"dropout": 0.5}, "admm has no dropout"),
        ("adam", {"objective": "paper"}, "objective must be 'accelerated' or None"),
        ("adam", {"objective": "accelerated", "regularizer": "l2"}, "has its own regularizer"),
    ],
)
def test_what_does_not_fit_is_refused(name, arguments, message):
    X, y = rows(6)
    with pytest.raises(InputError, match=message):
        baselines.train(name, mlp([5, 7, 3]), X, y, device="cpu", **arguments)


def test_rows_are_divided_by_their_sums_in_every_form():
    x = np.array([[1.0, 3.0], [0.0, 0.0], [2.0, 2.0]])
    wanted = np.array([[0.25, 0.75], [0.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(with_normalised_rows(x), wanted)
    np.testing.assert_allclose(with_normalised_rows(torch.from_numpy(x)), wanted)
    for given in (sparse.csr_array(x), torch.from_numpy(x).to_sparse()):
        np.testing.assert_allclose(with_normalised_rows(given).toarray(), wanted)
    karate = datasets.load("karate")
    other = replace(karate, x=3 * karate.x_dense())
    found = with_normalised_rows(other)
    np.testing.assert_allclose(found.x.sum(1), np.ones(karate.n_nodes), rtol=1e-6)
    assert found.y is karate.y


def test_no_two_masks_are_equal_and_none_is_drawn_without_need():
    dropout = RandomDropout(0.5, 1)
    v = torch.ones(50)
    first, second = dropout.drop(v), dropout.drop(v)
    assert not torch.equal(first, second)
    assert dropout.draws == 2
    assert set(first.unique().tolist()) == {0.0, 2.0}
