"""``mode="auto"``: which way a network is trained, and cross-fitted copies on tables of every sort."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from dladmm import Callback, InputError, MLPClassifier, MLPRegressor, NoBetterThanConstant, Status
from dladmm.api.cross_fit import COPIES, COPIES_OF_SMALL, batch_rows, constants_for, copies_for, folds_of
from dladmm.engine.rounds import Rounds, looks
from dladmm.estimators.choosing import CROSS_FITTED, mode_of
from dladmm.network.soft_clip import LIMIT
from dladmm.network.table_inputs import TableInputs


def blobs(rows: int, classes: int, features: int = 6, seed: int = 0, spread: float = 3.0):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    return rng.normal(size=(classes, features))[y] * spread + rng.normal(size=(rows, features)), y


def waves(rows: int = 300, seed: int = 0):
    X = np.random.default_rng(seed).normal(size=(rows, 4))
    return X, 3 * np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 5


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# The rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rows", "features", "expected"),
    [
        ({}, 1, 3, CROSS_FITTED),
        ({}, 49_999, 3, CROSS_FITTED),
        ({}, 50_000, 3, "streaming"),
        ({}, 100, 2001, "streaming"),
        ({"batch_size": 8, "max_iter": 3, "callbacks": [Callback()], "verbose": True}, 100, 3, CROSS_FITTED),
        ({"regularizer": "l2"}, 100, 3, CROSS_FITTED),
        ({"regularizer": None}, 100, 3, CROSS_FITTED),
        ({"regularizer": "l1"}, 100, 3, "streaming"),
        ({"max_memory": "10MB"}, 1000, 30, "streaming"),
        ({"regularizer": "l2"}, 50_000, 3, "streaming"),
        ({"early_stopping": True}, 100, 3, CROSS_FITTED),
        ({"early_stopping": True}, 50_000, 3, "streaming"),
        ({"warm_start": True}, 100, 3, "streaming"),
        ({"activation": "sign"}, 100, 3, "streaming"),
        ({"activation": "sign"}, 3, 3, "streaming"),
        ({"activation": "sign", "warm_start": True}, 100, 3, "streaming"),
        ({"weights": "binary"}, 100, 3, "streaming"),
        ({"activation": "tanh"}, 100, 3, CROSS_FITTED),
    ],
)
def test_the_rule(settings, rows, features, expected):
    X = np.broadcast_to(np.zeros(1), (rows, features))
    assert mode_of(MLPClassifier(**settings), X, 2) == expected


def test_sparse_rows():
    assert mode_of(MLPClassifier(), sparse.csr_array((100, 3)), 2) == CROSS_FITTED
    assert mode_of(MLPClassifier(), sparse.csr_array((40_000, 1000)), 2) == "streaming"


def test_settings_are_checked_as_in_other_modes():
    X, y = blobs(40, 2)
    for bad in ({"max_iter": 0}, {"batch_size": 0}, {"callbacks": [3]}, {"dtype": "float16"}):
        with pytest.raises((InputError, TypeError), match=next(iter(bad))):
            MLPClassifier(**bad).fit(X, y)


def test_weights_of_zero_may_not_leave_one_class():
    X, y = blobs(60, 2)
    with pytest.raises(InputError, match="one class only"):
        MLPClassifier().fit(X, y, sample_weight=(y == 0).astype(float))
    most = np.arange(60) > 5  # weights of 0 and 1 only leave rows out
    kept = MLPClassifier((5,), random_state=0).fit(X, y, sample_weight=most.astype(float))
    assert (
        kept.predict_proba(X) == MLPClassifier((5,), random_state=0).fit(X[most], y[most]).predict_proba(X)
    ).all()


def test_weights_count():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    weight = np.where(y == 1, 10.0, 1.0)
    plain, heavy, twice = (
        MLPClassifier(random_state=0).fit(X, y, sample_weight=w).predict_proba(X)[:, 1]
        for w in (None, weight, 2 * weight)
    )
    assert heavy.mean() > plain.mean() + 0.2
    assert np.allclose(heavy, twice)  # what counts is the proportion
    A, b = waves()
    odd = b + 100 * (np.arange(300) % 3 == 0)
    found = MLPRegressor(random_state=0).fit(
        A, odd, sample_weight=np.where(np.arange(300) % 3 == 0, 1e-9, 1.0)
    )
    assert found.score(A, b) > 0.8


# What comes out ----------------------------------------------------------------------------------------------------


def test_the_network_is_an_ordinary_one():
    X, y = load_iris(return_X_y=True)
    clf = MLPClassifier((20,), random_state=0).fit(X, y)
    assert clf.status_ is Status.EARLY_STOPPED
    assert clf.n_networks_ == COPIES_OF_SMALL
    assert [c.shape for c in clf.coefs_] == [(8, 160), (160, 3)]  # every feature by its value and by its rank
    first = clf.module_[0]
    assert isinstance(first, TableInputs)
    inputs = first(torch.from_numpy(X)).numpy()
    assert np.abs(inputs).max() < LIMIT
    logits = np.maximum(inputs @ clf.coefs_[0] + clf.intercepts_[0], 0) @ clf.coefs_[1] + clf.intercepts_[1]
    assert np.allclose(np.log(clf.predict_proba(X)), logits - np.log(np.exp(logits).sum(1))[:, None])
    assert clf.score(X, y) > 0.95
    assert clf.n_iter_ >= clf.history_.n_iter  # passes, of which a row of the history may hold several
    assert clf.certificate_.streaming
    assert "monitor" in str(clf.certificate_)
    kept = [v for v in clf.history_["val_loss"] if v is not None]
    assert len(kept) == clf.history_.n_iter
    assert clf.loss_ == clf.history_["loss"][-1]
    assert 0.9 < clf.history_["val_accuracy"][-1] <= clf.history_["train_accuracy"][-1] + 0.05


def test_saved_loaded_pickled_and_exported(tmp_path):
    X, y = blobs(90, 3)
    clf = MLPClassifier((7, 5), random_state=0).fit(X, np.array(["a", "b", "c"])[y])
    clf.save(tmp_path / "f")
    again = MLPClassifier.load(tmp_path / "f")
    assert (again.predict_proba(X) == clf.predict_proba(X)).all()
    assert (again.predict(X) == clf.predict(X)).all()
    assert again.n_networks_ == COPIES_OF_SMALL
    assert (pickle.loads(pickle.dumps(clf)).predict(X) == clf.predict(X)).all()
    traced = torch.export.export(clf.module_, (torch.from_numpy(X),))
    assert torch.allclose(traced.module()(torch.from_numpy(X)), clf.module_(torch.from_numpy(X)))


def test_a_fitted_network_can_learn_on():
    X, y = blobs(200, 4)
    clf = MLPClassifier((10,), random_state=0).fit(X[:100], y[:100])
    before = clf.score(X, y)
    clf.partial_fit(X[100:], y[100:])
    assert clf.score(X, y) > before - 0.05
    with pytest.raises(InputError, match="hidden_layer_sizes"):
        clf.set_params(hidden_layer_sizes=(11,), warm_start=True).fit(X, y)


def test_the_seed_says_everything():
    X, y = blobs(120, 3)
    first, second, other = (MLPClassifier((8,), random_state=s).fit(X, y).predict_proba(X) for s in (1, 1, 2))
    assert (first == second).all()
    assert not np.allclose(first, other)
    state = torch.random.get_rng_state()
    clone(MLPClassifier((8,), random_state=1)).fit(X, y)
    assert torch.equal(torch.random.get_rng_state(), state)  # the caller's generator is left alone


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_change_nothing(unit):
    X, y = waves()
    plain = MLPRegressor(random_state=0).fit(X, y)
    scaled = MLPRegressor(random_state=0).fit(X * unit, y * unit)
    assert plain.score(X, y) > 0.8
    assert np.allclose(scaled.predict(X * unit) / unit, plain.predict(X), rtol=1e-6, atol=1e-6)
    shifted = MLPRegressor(random_state=0).fit(X + 1e6, y - 1e6)
    assert np.allclose(shifted.predict(X + 1e6) + 1e6, plain.predict(X), atol=0.05)


def test_several_outputs_and_another_loss():
    X, y = waves()
    both = np.c_[y, 1000 - 10 * y]
    found = MLPRegressor(random_state=0, loss="huber").fit(X, both)
    assert found.predict(X).shape == both.shape
    assert found.score(X, both) > 0.8
    constant = MLPRegressor(random_state=0).fit(X, np.full(len(X), 7.0)).predict(X)
    assert np.allclose(constant, 7.0, rtol=1e-12)


@pytest.mark.parametrize("loss", ["binary_logistic", "squared_hinge"])
def test_other_losses_of_classes(loss):
    X, y = blobs(150, 2)
    clf = MLPClassifier((10,), loss=loss, random_state=0).fit(X, y)
    assert clf.score(X, y) > 0.9
    assert np.allclose(clf.predict_proba(X).sum(1), 1)


def test_every_copy_has_the_penalty():
    """A stronger one gives smaller weights; a constraint holds; one with kinks leaves zeros, in one network."""
    X, y = load_breast_cancer(return_X_y=True)
    sizes, settings = [], {"hidden_layer_sizes": (20,), "random_state": 0}
    for strength in (0.0, 10.0, 100.0):
        clf = MLPClassifier(regularizer={"name": "l2", "strength": strength}, **settings).fit(X, y)
        sizes.append(sum(float(np.square(c).sum()) for c in clf.coefs_))
        assert clf.n_networks_ == COPIES_OF_SMALL
        assert clf.score(X, y) > 0.93
        assert clf.loss_ < 0.3  # the penalty is no part of it
    assert sizes[2] < 0.5 * sizes[1] < 0.5 * sizes[0]
    kept = MLPClassifier(regularizer="non_negative", **settings).fit(X, y)
    assert kept.n_networks_ == COPIES_OF_SMALL
    assert min(c.min() for c in kept.coefs_) >= 0
    thin = MLPClassifier(regularizer={"name": "l1", "strength": 10.0}, **settings).fit(X, y)
    assert thin.n_networks_ == 1
    assert (thin.coefs_[0] == 0).mean() > 0.9
    assert thin.score(X, y) > 0.95


@pytest.mark.parametrize("rows", [1, 2, 5, 11])
def test_from_one_row_on(rows):
    warnings.simplefilter("ignore", NoBetterThanConstant)  # so few rows may say nothing
    X, y = waves(rows)
    found = MLPRegressor((5,), random_state=0).fit(X, y)
    assert found.n_networks_ == COPIES_OF_SMALL
    assert np.isfinite(found.predict(X)).all()
    if rows > 1:
        A, b = blobs(rows + 100, 2)
        clf = MLPClassifier((5,), random_state=0).fit(A[:rows], b[:rows])
        assert clf.n_networks_ == COPIES_OF_SMALL
        assert clf.score(A[rows:], b[rows:]) > 0.6


# Tables of every sort ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [20, 33, 200])
def test_few_rows(rows):
    X, y = blobs(rows + 200, 2, spread=1.5)
    clf = MLPClassifier(random_state=0).fit(X[:rows], y[:rows])
    assert clf.score(X[rows:], y[rows:]) > 0.75
    assert log_loss(y[rows:], clf.predict_proba(X[rows:])) < 0.6


def test_a_hundred_classes():
    X, y = blobs(2000, 100, features=10)
    clf = MLPClassifier(random_state=0).fit(X[:1000], y[:1000])
    assert clf.score(X[1000:], y[1000:]) > 0.85


def test_one_class_in_a_hundred_and_a_class_that_some_folds_lack():
    X, y = blobs(606, 2, spread=4.0)
    rare = np.r_[np.flatnonzero(y == 0)[:300], np.flatnonzero(y == 1)[:3]]
    clf = MLPClassifier(random_state=0).fit(X[rare], y[rare])
    rest = np.setdiff1d(np.arange(606), rare)
    assert clf.predict_proba(X[rest][y[rest] == 1])[:, 1].mean() > 0.5
    assert clf.score(X[rare], y[rare]) > 0.98
    single = np.r_[y[:100], 2]  # one row of its class: three copies see it
    assert MLPClassifier(random_state=0).fit(X[:101], single).classes_.tolist() == [0, 1, 2]


def test_constant_duplicate_and_heavy_tailed_columns():
    X, y = blobs(400, 3)
    clean = MLPClassifier(random_state=0).fit(X[:200], y[:200]).score(X[200:], y[200:])
    rng = np.random.default_rng(0)
    tail = np.exp(4 * rng.normal(size=400))
    odd = np.c_[X, np.full(400, 5.0), X[:, 0], tail, np.zeros(400)]
    found = MLPClassifier(random_state=0).fit(odd[:200], y[:200])
    assert found.score(odd[200:], y[200:]) > clean - 0.03
    moved = odd[200:].copy()
    moved[:, 6] += 1e4  # constant in training: counts for nothing
    assert (found.predict_proba(moved) == found.predict_proba(odd[200:])).all()
    assert np.isfinite(found.predict_proba(1e30 * odd)).all()
    assert np.isfinite(found.predict_proba(np.full((1, 10), np.nan))).all()  # gaps are filled by the medians


def test_deep_networks_learn():
    X, y = load_breast_cancer(return_X_y=True)
    A, B, a, b = train_test_split(X, y, random_state=0, stratify=y)
    assert MLPClassifier((50,) * 8, random_state=0).fit(A, a).score(B, b) > 0.93


def test_sparse_rows_are_those_of_the_dense_table():
    X, y = blobs(100, 2)
    X[X < 0] = 0
    dense, thin = (MLPClassifier(random_state=0).fit(x, y) for x in (X, sparse.csr_array(X)))
    assert (dense.predict_proba(X) == thin.predict_proba(sparse.csr_array(X))).all()


def test_callbacks_see_the_rounds_and_may_stop_the_run():
    class Stop(Callback):
        def on_epoch_end(self, trainer):
            if trainer.history.n_iter == 2:
                trainer.request_stop(Status.EARLY_STOPPED)

    X, y = blobs(500, 4)
    assert MLPClassifier(random_state=0, callbacks=[Stop()]).fit(X, y).n_iter_ == 2


# Pieces ------------------------------------------------------------------------------------------------------------


def test_folds_are_even_in_every_class():
    y = torch.arange(103) % 3
    fold = folds_of(y, torch.arange(103), COPIES, torch.Generator().manual_seed(0))
    for label in range(3):
        counts = torch.bincount(fold[y == label], minlength=COPIES)
        assert int(counts.max() - counts.min()) <= 1
    assert torch.bincount(folds_of(None, torch.arange(10), COPIES, torch.Generator())).tolist() == [
        3,
        3,
        2,
        2,
    ]


def test_batches_and_copies_follow_the_number_of_rows():
    assert [batch_rows(n) for n in (20, 256, 800, 1024, 40_000)] == [32, 32, 100, 128, 128]
    assert [copies_for(n) for n in (20, 999, 1000, 40_000)] == [8, 8, 4, 4]


def test_large_tables_slow_down():
    assert constants_for(4999, "classification").slowing is None
    assert [constants_for(5000, kind).slowing for kind in ("classification", "regression")] == [100, 1000]


def test_classes_with_as_many_columns_as_rows_are_damped_more():
    assert constants_for(100, "classification", 1.0).damping == 10
    assert constants_for(100, "classification", 0.99).damping == 1
    assert constants_for(100, "regression", 9.0).damping == 1
    seen = []

    def noted(n_rows, kind, columns_per_row):
        seen.append(columns_per_row)
        return constants_for(n_rows, kind, columns_per_row)

    X = np.random.default_rng(0).standard_normal((24, 30))
    y = (X[:, 0] > 0).astype(int)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", NoBetterThanConstant)
        patch.setattr("dladmm.api.cross_fit.constants_for", noted)
        for times in (1, 2):  # a table appended to itself is as wide as it was
            MLPClassifier((4,), max_iter=1, random_state=0).fit(np.tile(X, (times, 1)), np.tile(y, times))
    assert seen == [2.5, 2.5]


def test_rounds_hold_the_passes_between_two_looks():
    assert looks(20, 16) == [1, 2, 3, 4, 5, 8, 11, 16, 20]
    assert looks(12, 1) == [4, 5, 7, 10, 12]
    assert looks(2, 1) == [2]
    x = torch.arange(6.0)[:, None]
    batches = Rounds(x, x, None, 3, 12, 0)
    assert batches.ends == [2, 3, 4, 5, 8, 11, 12]
    assert batches.batches_per_pass() is None
    first = list(batches.one_pass(0))
    assert len(first) == 6  # two passes of three batches
    assert sorted(torch.cat([b.x for b in first[:3]])[:, 0].tolist()) == list(range(6))
    assert [b.x.tolist() for b in batches.one_pass(0, skip=4)] == [b.x.tolist() for b in first[4:]]
    assert len(list(batches.one_pass(5))) == 9
    assert batches.passes_until(3) == 4
