"""Streaming mode and ``partial_fit`` of the estimators."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from torch import nn

from convergent import train_graph
from dladmm import GCNClassifier, InputError, MLPClassifier, MLPRegressor, ModuleClassifier, datasets
from scikit_checks import own_checks

STREAM = {"mode": "streaming", "random_state": 0, "device": "cpu"}

REFUSED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": "mini-batches are other batches when rows are repeated",
    "check_sample_weight_equivalence_on_sparse_data": "mini-batches are other batches when rows are repeated",
    "check_class_weight_classifiers": "weights of 1 to 10^7 may end in a run that says it diverged (docs/streaming.md)",
}
"""Of scikit-learn's checks; its own stochastic estimators are excepted likewise."""

CHECKED = {"mode": "streaming", "dtype": "float64"}
"""Two checks ask for more digits than float32, the mode's own choice, has."""

CHECKS = [
    (f"{type(estimator).__name__}-{name}", estimator, check)
    for made in (MLPClassifier(**CHECKED), MLPRegressor(**CHECKED))
    for name, estimator, check in own_checks(made, without=REFUSED_CHECKS)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "estimator", "check"), CHECKS, ids=[name for name, _, _ in CHECKS])
def test_scikit_learns_own_checks(name, estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, random_state=0)


def network(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 40), nn.ReLU(), nn.Linear(40, n_out))


@pytest.mark.parametrize("make", [MLPClassifier, lambda **o: ModuleClassifier(network, **o)])
def test_classifiers_stream(digits, make):
    """No warning: the passes that were planned are done."""
    A, B, a, b = digits
    found = make(**STREAM, batch_size=64, max_iter=5).fit(A, a)
    assert found.score(B, b) > 0.96
    assert found.n_iter_ == 5
    assert len(found.history_["loss"]) == 5


def test_labels_of_any_type_and_sparse_rows(digits):
    A, B, a, b = digits
    names = np.array([f"digit {i}" for i in range(10)])
    dense = MLPClassifier(**STREAM, max_iter=3).fit(A, names[a])
    assert (dense.predict(B) == names[b]).mean() > 0.95
    thin = MLPClassifier(**STREAM, max_iter=3).fit(sparse.csr_matrix(A), names[a])
    assert (thin.predict(sparse.csr_matrix(B)) == names[b]).mean() > 0.95


def test_sparse_rows_stay_sparse(digits, monkeypatch):
    A, _, a, _ = digits
    rows = []
    toarray = sparse.csr_matrix.toarray
    monkeypatch.setattr(
        sparse.csr_matrix, "toarray", lambda m, *o, **k: rows.append(m.shape[0]) or toarray(m, *o, **k)
    )
    MLPClassifier(**STREAM, max_iter=2, batch_size=50).fit(sparse.csr_matrix(A), a)
    assert max(rows) <= 52


def test_the_default_number_of_passes(digits):
    A, _, a, _ = digits
    assert MLPClassifier().max_iter is None
    found = MLPClassifier((5,), **STREAM, batch_size=400).fit(A[:800], a[:800])
    assert found.n_iter_ == 100
    images = ModuleClassifier(
        lambda n_in, n_out: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 1, 7), nn.Flatten(), nn.Linear(4, n_out)
        ),
        batch_size=20,
    )
    assert images.fit(A[:800], a[:800]).n_iter_ == 10
    found = MLPClassifier((5,), mode="convergent", tol=0.0)
    with pytest.warns(ConvergenceWarning, match="now 200"):
        assert found.fit(A[:30], a[:30]).n_iter_ == 200


def test_batch_size_belongs_to_the_mode(digits):
    A, _, a, _ = digits
    with pytest.raises(InputError, match="batch_size is a setting of mode='streaming'"):
        MLPClassifier(mode="accelerated", batch_size=5).fit(A, a)
    for setting in ({"rho": 1.0}, {"max_memory": "1MB"}, {"w_solver": "quadratic"}):
        with pytest.raises(InputError, match=next(iter(setting))):
            MLPClassifier(**STREAM, **setting).fit(A, a)


def test_weights_warm_start_and_early_stopping(digits):
    A, B, a, b = digits
    weight = np.where(a == 3, 0.0, 1.0)
    blind = MLPClassifier(**STREAM, max_iter=3).fit(A, a, sample_weight=weight)
    assert (blind.predict(B) == 3).sum() == 0
    heavy = MLPClassifier(**STREAM, max_iter=3).fit(A, a, sample_weight=np.where(a == 3, 30.0, 1.0))
    plain = MLPClassifier(**STREAM, max_iter=3).fit(A, a)
    assert heavy.predict_proba(B)[:, 3].mean() > plain.predict_proba(B)[:, 3].mean()
    warm = MLPClassifier(**STREAM, max_iter=1, warm_start=True).fit(A, a)
    first = warm.loss_
    assert warm.fit(A, a).loss_ < first
    early = MLPClassifier(**STREAM, max_iter=60, early_stopping=True, n_iter_no_change=8).fit(A, a)
    assert early.n_iter_ < 60
    assert early.score(B, b) > 0.95


@pytest.mark.parametrize("scale", [1.0, 1e3, 0.1])
def test_regression_in_any_unit(scale):
    X, y = load_diabetes(return_X_y=True)
    found = MLPRegressor(**STREAM, max_iter=20).fit(X[:300], scale * y[:300])
    assert found.score(X[300:], scale * y[300:]) > 0.4


def chunks(A, a, size=200):
    return ((A[i : i + size], a[i : i + size]) for i in range(0, len(A), size))


@pytest.mark.parametrize("make", [MLPClassifier, lambda **o: ModuleClassifier(network, **o)])
def test_partial_fit_learns_from_call_to_call(digits, make):
    A, B, a, b = digits
    online, scores = make(random_state=0, device="cpu"), []
    for X, y in chunks(A, a):
        assert online.partial_fit(X, y, classes=np.arange(10)) is online
        scores.append(online.score(B, b))
    assert scores[0] > 0.7
    assert scores[-1] > 0.95
    assert online.n_iter_ == len(scores) == len(online.history_["loss"])


def test_running_sums_are_carried(digits):
    """What was summed before counts: a network that goes on without it goes on otherwise."""
    A, _, a, _ = digits
    online = MLPClassifier(random_state=0, device="cpu")
    for X, y in chunks(A[:600], a[:600]):
        online.partial_fit(X, y, classes=np.arange(10))
    steps = online._online.trainer.method.step_number
    assert steps == 3 * 6
    forgetful = pickle.loads(pickle.dumps(online))
    del forgetful._online
    carried = pickle.loads(pickle.dumps(online))
    X, y = A[600:800], a[600:800]
    for each in (online, carried, forgetful):
        each.partial_fit(X, y)
    assert all(np.array_equal(p, q) for p, q in zip(online.coefs_, carried.coefs_, strict=True))
    assert not np.allclose(online.coefs_[0], forgetful.coefs_[0])


def test_partial_fit_of_single_classes_and_sparse_rows(digits):
    A, B, a, b = digits
    online = MLPClassifier(random_state=0, device="cpu")
    online.partial_fit(sparse.csr_matrix(A[:300]), a[:300], classes=np.arange(10))
    ones = A[a == 1]
    online.partial_fit(sparse.csr_matrix(ones), np.ones(len(ones), dtype=int))
    assert online.score(B, b) > 0.5
    sevens = MLPClassifier(random_state=0, device="cpu").partial_fit(
        A[:5], np.full(5, 7), classes=np.arange(10)
    )
    assert sevens.predict(A[:5]).shape == (5,)


def test_partial_fit_weights(digits):
    A, B, a, _ = digits
    online = MLPClassifier(random_state=0, device="cpu")
    online.partial_fit(A, a, classes=np.arange(10), sample_weight=np.where(a == 3, 0.0, 1.0))
    assert (online.predict(B) == 3).sum() == 0


def test_what_partial_fit_refuses(digits):
    A, _, a, _ = digits
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        MLPClassifier().partial_fit(A, a)
    online = MLPClassifier((8,), random_state=0, device="cpu").partial_fit(
        A[:100], a[:100], classes=np.arange(10)
    )
    before = online.coefs_[0].copy()
    with pytest.raises(InputError, match=r"labels \[12\] that are not among classes"):
        online.partial_fit(A[:3], [1, 2, 12])
    with pytest.raises(ValueError, match="features"):
        online.partial_fit(A[:3, :5], a[:3])
    with pytest.raises(ValueError, match="infinity"):  # gaps (NaN) are filled
        online.partial_fit(np.full((3, 64), np.inf), a[:3])
    with pytest.raises(ValueError, match="not the same as on last call"):
        online.partial_fit(A[:3], a[:3], classes=np.arange(4))
    assert np.array_equal(before, online.coefs_[0]), "nothing is lost"
    with pytest.raises(InputError, match="one class only"):
        MLPClassifier().partial_fit(A[:3], [1, 1, 1], classes=[1])
    with pytest.raises(InputError, match="2 columns, before it had 1"):
        MLPRegressor((3,), device="cpu").partial_fit(A, A[:, 0]).partial_fit(A, A[:, :2])


def test_fit_starts_anew_and_partial_fit_goes_on_from_it(digits, tmp_path):
    A, B, a, b = digits
    online = MLPClassifier(**STREAM, max_iter=3)
    fresh = clone(online).fit(A, a)
    online.partial_fit(A[:200], a[:200], classes=np.arange(10)).fit(A, a)
    assert np.array_equal(online.coefs_[0], fresh.coefs_[0])
    online.partial_fit(A[:100], a[:100])
    assert online.score(B, b) > 0.95
    online.save(tmp_path / "file")
    loaded = MLPClassifier.load(tmp_path / "file")
    assert np.array_equal(loaded.predict(B), online.predict(B))
    assert loaded.partial_fit(A[:100], a[:100]).score(B, b) > 0.95


def test_regressors_learn_on():
    X, y = load_diabetes(return_X_y=True)
    online = MLPRegressor(random_state=0, device="cpu")
    for _ in range(10):
        online.partial_fit(X[:300], y[:300])
    assert online.score(X[300:], y[300:]) > 0.4


def test_whole_graph_steps():
    karate = datasets.load("karate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = GCNClassifier((16,), mode="streaming", max_iter=50, random_state=0, device="cpu").fit(karate)
    assert found.score(karate) > 0.7
    assert found.n_iter_ == 50
    refused = {"rows": {"rows": "train"}, "prox": {"prox": "fista"}}
    for name, setting in refused.items():
        with pytest.raises(InputError, match=name):
            train_graph(karate, mode="streaming", **setting)
    weight = torch.tensor(found.coefs_[0])
    assert bool(torch.isfinite(weight).all())


# Networks of signs ------------------------------------------------------------------------------------------------


def test_signs_are_trained_by_batches_that_are_normalised_inside(tmp_path):
    X, y = load_digits(return_X_y=True)
    fitted = MLPClassifier((30,), "sign", weights="binary", max_iter=5, random_state=0).fit(X, y)
    kinds = [type(layer).__name__ for layer in fitted.module_]
    assert kinds == ["Linear", "BatchNorm1d", "Staircase", "Linear"]
    assert set(np.unique(fitted.coefs_[0])) == {-1.0, 1.0}
    assert fitted.score(X, y) > 0.85
    fitted.save(tmp_path / "signs")
    again = MLPClassifier.load(tmp_path / "signs")
    assert again.weights == "binary"
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    fitted.partial_fit(X[:500], y[:500])
    assert set(np.unique(fitted.coefs_[0])) == {-1.0, 1.0}


def test_signs_with_sample_weights_are_not_normalised():
    X, y = load_digits(return_X_y=True)
    weight = np.linspace(0.5, 1.5, len(X[:200]))
    fitted = MLPClassifier((8,), "sign", mode="streaming", max_iter=1, random_state=0)
    fitted.fit(X[:200], y[:200], sample_weight=weight)
    assert [type(layer).__name__ for layer in fitted.module_] == ["Linear", "Staircase", "Linear"]


def test_monotone_networks_have_real_weights():
    X, y = load_digits(return_X_y=True)
    with pytest.raises(InputError, match="beside weights"):
        MLPClassifier(weights="binary", monotone_constraints=[1] * 64).fit(X[:50], y[:50] > 4)


def test_balanced_classes_need_all_rows():
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InputError, match="class_weight"):
        MLPClassifier((4,), class_weight="balanced").partial_fit(X, y, classes=[0, 1])
    MLPClassifier((4,), class_weight={0: 2.0}).partial_fit(X, y, classes=[0, 1])
