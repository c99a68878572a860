"""``preset="authors"`` is the authors' published GCN script, and each of its differences is an option with a name."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

import dladmm
from dladmm.base.errors import InputError
from dladmm.engine import rho_rules
from dladmm.engine.options import PRESETS
from graph_problems import random_graph
from reference_authors import ReferenceScript

L4 = {"name": "l4", "strength": 0.4}


@pytest.fixture(scope="module")
def graph():
    pairs, x, y, train = random_graph(np.random.default_rng(5), 40, 6, 3)
    test = ~train & (np.arange(40) % 3 == 0)
    return pairs, x, y, train, test


def trained(graph, **options):
    pairs, x, y, train, test = graph
    settings = {"hidden": (5,), "dtype": "float64", "device": "cpu", "n_classes": 3, "max_iter": 6}
    settings |= {"preset": "authors", "zeroed": test}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dladmm.ConvergenceNotGuaranteed)
        return dladmm.train_graph(x, pairs.T, y, train, **settings | options)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("prox", ["authors", "exact"])
@pytest.mark.parametrize("penalty", [None, L4], ids=["no penalty", "l4"])
def test_the_run_is_that_of_the_script(graph, penalty, prox, monkeypatch):
    monkeypatch.setattr(rho_rules, "TENFOLD_EVERY", 2)
    pairs, x, y, train, test = graph
    start = trained(graph, max_iter=1, rho=1e-15, nu=1e-15, rho_rule=None)  # next to nothing moves
    W = [p["W"].T.numpy() for p in start.state.params]
    result = trained(graph, regularizer=penalty, **({} if prox == "authors" else {"prox": prox}))
    strength = 0.0 if penalty is None else 0.4
    reference = ReferenceScript(pairs, x, y, train, test, W, strength, every=2, exact=prox == "exact")
    for _ in range(6):
        reference.iterate()
    state = result.state
    assert (state.rho, state.nu) == pytest.approx((1.0, 1.0))
    assert reference.rho == 1.0
    for name, ours, theirs in (
        ("W1", state.params[0]["W"].T, reference.W1),
        ("W2", state.params[1]["W"].T, reference.W2),
        ("Z1", state.outputs[0], reference.Z1),
        ("Z2", state.outputs[1][torch.from_numpy(train)], reference.Z2),
        ("U", state.u[torch.from_numpy(train)], reference.U),
    ):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_only_labelled_rows_of_z_move(graph):
    result, (_, _, _, train, test) = trained(graph), graph
    Z1 = result.state.outputs[0]
    start = trained(graph, max_iter=1).state.outputs[0]
    others = torch.from_numpy(~train)
    assert Z1[others].equal(start[others])
    assert not Z1[torch.from_numpy(test)].any()
    assert not Z1[~others].equal(start[~others])


def test_the_lagrangian_counts_the_rows_that_move(graph):
    """It falls between changes of rho, and so only labelled rows may count in the relaxed link."""
    result = trained(graph, rho=2.0, nu=1.0, rho_rule=None, max_iter=15, prox="exact")
    values = result.history["lagrangian"][1:]
    assert all(after <= before + 1e-12 for before, after in pairwise(values))
    assert not result.certificate.covered
    assert "rows='all'" in result.certificate.__str__()


def test_rows_of_a_split_start_at_zero_where_the_graph_names_it():
    data = dladmm.datasets.load("karate")
    test = ~data.train_mask
    named = type(data)(**data.__dict__ | {"test_mask": test})
    with pytest.warns(dladmm.ConvergenceNotGuaranteed):
        result = dladmm.train_graph(named, hidden=(4,), preset="authors", max_iter=2, device="cpu")
    assert not result.state.outputs[0][test].any()


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_rho_and_nu_grow_tenfold_every_fifty_iterations_to_one():
    data = dladmm.datasets.load("karate")
    with pytest.warns(dladmm.ConvergenceNotGuaranteed):
        result = dladmm.train_graph(
            data, hidden=(3,), preset="authors", max_iter=201, eps_abs=0.0, eps_rel=0.0,
            diagnostics_every=201, device="cpu",
        )  # fmt: skip
    rho, nu = result.history["rho"], result.history["nu"]
    assert [rho[k] for k in (0, 49, 50, 99, 100, 150, 200)] == pytest.approx(
        [1e-3, 1e-3, 1e-2, 1e-2, 0.1, 1, 1]
    )
    assert nu == pytest.approx(rho)
    assert result.certificate.exempt == (1, 51, 101, 151)


def test_glorots_bound():
    options = {"hidden": (30,), "preset": "authors", "max_iter": 1, "rho": 1e-15, "nu": 1e-15}
    data = dladmm.datasets.load("karate")
    with pytest.warns(dladmm.ConvergenceNotGuaranteed):
        result = dladmm.train_graph(data, rho_rule=None, device="cpu", **options)
    W = result.state.params[0]["W"]
    bound = (6 / (W.shape[0] + W.shape[1])) ** 0.5
    assert 0.9 * bound < float(W.abs().max()) <= bound * (1 + 1e-5)
    assert float(W.std()) == pytest.approx(bound / 3**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "fixed", "mode": "accelerated"}, "rows='fixed' is a setting of mode='convergent'"),
        ({"zeroed": "test", "mode": "accelerated"}, "zeroed is a setting of mode='convergent'"),
        ({"w_penalty": "gradient", "mode": "accelerated"}, "w_penalty='gradient' is a setting"),
        ({"preset": "authors", "regularizer": "l1"}, "w_penalty='gradient' needs a penalty with a gradient"),
        ({"preset": "authors", "zeroed": "none"}, "zeroed must be 'val', 'test', a mask or None"),
        ({"init_rule": "lecun"}, "init_rule must be one of"),
        ({"w_penalty": "both"}, "w_penalty must be one of"),
        ({"last_alpha0": -1.0}, "last_alpha0 must be a positive number"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        dladmm.train_graph(dladmm.datasets.load("karate"), hidden=(3,), max_iter=1, device="cpu", **options)


def test_the_preset_is_for_graphs():
    X, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    with pytest.raises(InputError, match="preset='authors' is for graphs"):
        dladmm.train(torch.nn.Sequential(torch.nn.Linear(2, 2)), X, y, preset="authors", device="cpu")
    with pytest.raises(InputError, match="w_penalty='gradient' is for graphs"):
        dladmm.train(torch.nn.Sequential(torch.nn.Linear(2, 2)), X, y, w_penalty="gradient", device="cpu")
    assert PRESETS["authors"].max_iter == 500
