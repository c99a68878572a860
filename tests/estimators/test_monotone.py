"""``monotone_constraints``: no violation found by search, proved by the weights, and accuracy that is not lost."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dladmm import InputError, MLPClassifier, MLPRegressor
from dladmm.network.monotone import directions

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def truth(X):
    return 2 * np.sqrt(X[:, 0] + 2) - np.exp(X[:, 1]) + np.sin(3 * X[:, 2])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 3))
    return X, truth(X) + rng.normal(size=300)


def violations(predict, constraints, n_features, seed=0, n=4000, spread=5.0):
    """Pairs that differ in one feature, in which the prediction goes the wrong way by more than rounding."""
    rng = np.random.default_rng(seed)
    found = 0
    for j, sign in enumerate(constraints):
        if sign == 0:
            continue
        low = rng.normal(size=(n, n_features)) * rng.choice([0.1, 1, spread], size=(n, 1))
        high = low.copy()
        high[:, j] += rng.exponential(size=n) * rng.choice([1e-3, 1, 30], size=n)
        before, after = predict(low), predict(high)
        found += int((sign * (after - before) < -1e-10 * np.maximum(1, abs(before))).sum())
    return found


MODES = [
    ("auto", {}),
    ("accelerated", {"max_iter": 30}),
    ("accelerated", {"max_iter": 30, "regularizer": None}),
    ("streaming", {"max_iter": 10}),
]


@pytest.mark.parametrize(("mode", "more"), MODES)
@pytest.mark.parametrize("hidden", [(), (20,), (12, 10)])
def test_no_violation_is_found_and_the_weights_prove_it(rows, mode, more, hidden):
    X, y = rows
    asked = [1, -1, 0]
    reg = MLPRegressor(hidden, mode=mode, monotone_constraints=asked, random_state=0, dtype="float64", **more)
    reg.fit(X, y)
    assert violations(reg.predict, asked, 3) == 0
    assert [float(directions(reg.module_, j)[0]) for j in (0, 1)] == [1, -1]


def test_without_the_constraint_there_are_violations(rows):
    X, y = rows
    free = MLPRegressor((20,), mode="accelerated", max_iter=30, random_state=0, dtype="float64").fit(X, y)
    assert violations(free.predict, [1, -1, 0], 3) > 100
    assert torch.isnan(directions(free.module_, 0)).all()


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_logistic", "squared_hinge"])
def test_two_classes(rows, loss):
    X, y = rows
    asked = [1, -1, 0]
    clf = MLPClassifier(
        (12,),
        mode="accelerated",
        max_iter=20,
        loss=loss,
        monotone_constraints=asked,
        random_state=0,
        dtype="float64",
    ).fit(X, np.where(y > 0, "high", "low"))
    # the second class is "low": it is its probability that follows the constraint
    assert violations(lambda X: clf.predict_proba(X)[:, 1], asked, 3) == 0
    assert clf.n_features_in_ == 3


def test_a_constraint_that_is_true_costs_nothing(rows):
    X, y = rows
    new = np.random.default_rng(1).uniform(-2, 2, size=(500, 3))
    free, bound = (
        MLPRegressor(monotone_constraints=c, random_state=0).fit(X, y).score(new, truth(new))
        for c in (None, [1, -1, 0])
    )
    assert bound > 0.9
    assert bound > free - 0.02


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize(("mode", "more"), MODES)
def test_a_constraint_that_is_false_leaves_no_dependence(rows, mode, more):
    """Every step of training pushes against the constraint."""
    X, _ = rows
    y = 3 * X[:, 0] - X[:, 1]
    asked = [-1, 1, 0]
    reg = MLPRegressor((10,), mode=mode, monotone_constraints=asked, random_state=0, dtype="float64", **more)
    reg.fit(X, y)
    assert -0.1 < reg.score(X, y) < 0.1  # a constant, not the point that training began with
    assert violations(reg.predict, asked, 3) == 0


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "sigmoid", "softplus", "hard_tanh"])
def test_activations_that_never_fall(rows, activation):
    X, y = rows
    reg = MLPRegressor((8, 6), activation, mode="streaming", max_iter=5, monotone_constraints=[1, -1, 0])
    assert violations(reg.set_params(dtype="float64").fit(X, y).predict, [1, -1, 0], 3) == 0


def test_names_categories_and_gaps(rows):
    X, y = rows
    data = pd.DataFrame(X, columns=["a", "b", "c"])
    data["kind"] = np.where(X[:, 2] > 0, "u", "v")
    data.loc[::7, "a"] = np.nan
    reg = MLPRegressor((10,), mode="accelerated", max_iter=20, monotone_constraints={"b": -1, "a": 1}).fit(
        data, y
    )

    def predict(values):
        return reg.predict(pd.DataFrame(values, columns=["a", "b", "c"]).assign(kind="u"))

    assert violations(predict, [1, -1, 0], 3) == 0
    with pytest.raises(InputError, match="'kind', a category"):
        MLPRegressor(monotone_constraints={"kind": 1}).fit(data, y)


def test_save_and_load_keep_it(rows, tmp_path):
    X, y = rows
    reg = MLPRegressor((8,), mode="accelerated", max_iter=10, monotone_constraints=np.array([1, -1, 0])).fit(
        X, y
    )
    reg.save(tmp_path / "f")
    again = MLPRegressor.load(tmp_path / "f")
    assert again.monotone_constraints == [1, -1, 0]
    np.testing.assert_array_equal(again.predict(X), reg.predict(X))


def test_partial_fit_keeps_it_from_its_first_call_on(rows):
    X, y = rows
    reg = MLPRegressor((8,), monotone_constraints=[1, -1, 0], random_state=0, dtype="float64")
    for _ in range(3):
        reg.partial_fit(X, y)
        assert violations(reg.predict, [1, -1, 0], 3) == 0
    fitted = MLPRegressor((8,), mode="accelerated", max_iter=5, monotone_constraints=[1, -1, 0]).fit(X, y)
    with pytest.raises(InputError, match="but not by partial_fit after fit"):
        fitted.partial_fit(X, y)


def test_all_free_is_no_constraint(rows):
    X, y = rows
    asked, none = (
        MLPRegressor((6,), mode="accelerated", max_iter=5, monotone_constraints=c, random_state=0).fit(X, y)
        for c in ([0, 0, 0], None)
    )
    np.testing.assert_array_equal(asked.predict(X), none.predict(X))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"monotone_constraints": [1, 0]}, "has 2 entries, but X has 3 features"),
        ({"monotone_constraints": [1, 0, 2]}, "must be -1, 0 or 1 for every feature, got 2"),
        ({"monotone_constraints": [1, 0, "x"]}, "must be -1, 0 or 1"),
        ({"monotone_constraints": [True, 0, 0]}, "must be -1, 0 or 1"),
        ({"monotone_constraints": {"a": 1}}, "X has no column names"),
        ({"monotone_constraints": [1, 0, 0], "mode": "convergent"}, "cannot be kept with mode='convergent'"),
        ({"monotone_constraints": [1, 0, 0], "warm_start": True}, "cannot be kept with warm_start=True"),
    ],
)
def test_wrong_constraints(rows, settings, message):
    with pytest.raises(InputError, match=message):
        MLPRegressor((4,), **settings).fit(*rows)


def test_several_classes_are_refused(rows):
    X, y = rows
    with pytest.raises(InputError, match="needs two classes, got 3"):
        MLPClassifier((4,), monotone_constraints=[1, 0, 0]).fit(X, np.digitize(y, [-1, 1]))


def test_directions_are_read_from_weights():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))
        network[2].weight.copy_(torch.tensor([[1.0, -1.0], [-3.0, -1.0]]))
    assert directions(network, 0).tolist() == [1, -1]
    found = directions(network, 1)
    assert found[0] == 1
    assert torch.isnan(found[1])
    with pytest.raises(InputError, match="GELU"):
        directions(nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1)), 0)
