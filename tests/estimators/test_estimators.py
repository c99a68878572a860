"""MLPClassifier and MLPRegressor as scikit-learn users meet them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_gaussian_quantiles
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dladmm import Callback, DataError, InputError, MLPClassifier, MLPRegressor, ModuleClassifier, Status
from dladmm.estimators.checks import WithinError
from scikit_checks import own_checks

quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OF_ALL_ROWS = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
)
"""Repeated rows make other batches and other folds: scikit-learn excepts its own stochastic estimators likewise."""

LONG = ("check_class_weight_classifiers",)
"""Runs of a thousand iterations, made with the default mode alone: class weights are row weights before any mode."""

CHECKS = [
    (f"{type(estimator).__name__}-{estimator.mode}-{name}", (e, c))
    for kind in (MLPClassifier, MLPRegressor)
    for estimator in (kind(), kind(mode="accelerated"))
    for name, e, c in own_checks(estimator, without=OF_ALL_ROWS if estimator.mode == "auto" else LONG)
]


@quiet
@pytest.mark.slow
@pytest.mark.parametrize("check", [c for _, c in CHECKS], ids=[name for name, _ in CHECKS])
def test_scikit_learns_own_checks(check):
    """A check that scikit-learn itself skips (array API off) is skipped."""
    estimator, run = check
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(estimator)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def fitted(iris):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return MLPClassifier((20,), mode="accelerated", max_iter=60, random_state=0).fit(*iris)


def test_attributes(iris, fitted):
    assert fitted.score(*iris) > 0.93
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert [c.shape for c in fitted.coefs_] == [(4, 20), (20, 3)]
    assert [b.shape for b in fitted.intercepts_] == [(20,), (3,)]
    assert fitted.n_features_in_ == 4
    assert fitted.n_iter_ == 60
    assert fitted.status_ is Status.MAX_ITER
    assert fitted.history_["lagrangian"][-1] < fitted.history_["lagrangian"][0]
    assert fitted.certificate_.monotone
    hidden = np.maximum(iris[0] @ fitted.coefs_[0] + fitted.intercepts_[0], 0)
    logits = hidden @ fitted.coefs_[1] + fitted.intercepts_[1]
    assert (logits.argmax(1) == fitted.predict(iris[0])).all()
    assert np.allclose(fitted.module_(torch.from_numpy(iris[0])).detach().numpy(), logits)
    assert np.allclose(np.exp(fitted.predict_log_proba(iris[0])).sum(1), 1)


@quiet
def test_strings_pandas_and_sparse(iris):
    import pandas as pd

    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    dense = MLPClassifier((8,), max_iter=20, random_state=0).fit(frame, names)
    assert dense.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert set(dense.predict(frame)) <= set(names)
    scattered = MLPClassifier((8,), max_iter=20, random_state=0).fit(sparse.csr_array(X), names)
    assert (scattered.predict(sparse.csr_array(X)) == dense.predict(frame)).all()


@quiet
def test_pipeline_grid_search_cross_validation_and_clone(iris):
    pipeline = make_pipeline(StandardScaler(), MLPClassifier(max_iter=20, random_state=0))
    search = GridSearchCV(pipeline, {"mlpclassifier__hidden_layer_sizes": [(5,), (10,)]}, cv=2).fit(*iris)
    assert search.best_score_ > 0.8
    assert cross_val_score(clone(search.best_estimator_), *iris, cv=2).mean() > 0.8


@quiet
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_logistic", "squared_hinge"])
def test_binary(loss):
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    clf = MLPClassifier((10,), loss=loss, max_iter=40, random_state=0).fit(X, y)
    assert clf.score(X, y) > 0.95
    assert clf.predict_proba(X).shape == (569, 2)


@quiet
@pytest.mark.parametrize("loss", [None, "huber"])
def test_regression_one_and_several_outputs(loss):
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    one = MLPRegressor((20,), loss=loss, max_iter=50, random_state=0).fit(X, y)
    assert one.predict(X).shape == y.shape
    assert one.score(X, y) > 0.4
    two = MLPRegressor((20,), loss=loss, max_iter=50, random_state=0).fit(X, np.c_[y, -y])
    assert two.predict(X).shape == (len(y), 2)
    assert two.score(X, np.c_[y, -y]) > 0.4


def test_convergence_warning_names_the_knob(iris):
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        MLPClassifier((5,), mode="accelerated", max_iter=2).fit(*iris)


@quiet
def test_warm_start_goes_on_from_the_weights(iris):
    """The first fit is that without it; later ones train the network that was fitted, however often."""
    settings = {"hidden_layer_sizes": (10,), "max_iter": 40, "random_state": 0}
    clf = MLPClassifier(warm_start=True, **settings).fit(*iris)
    cold = MLPClassifier(mode="streaming", **settings).fit(*iris)
    assert (clf.predict_proba(iris[0]) == cold.predict_proba(iris[0])).all()
    for _ in range(3):
        before = clf.coefs_
        clf.fit(*iris)
        assert [c.shape for c in clf.coefs_] == [c.shape for c in before]
        assert clf.n_networks_ == cold.n_networks_
        assert clf.score(*iris) > 0.95
        moved = np.linalg.norm(clf.coefs_[0] - before[0]) / np.linalg.norm(before[0])
        assert 0 < moved < 0.5
    with pytest.raises(InputError, match="same classes"):
        clf.fit(iris[0][:100], iris[1][:100])


@quiet
def test_warm_start_of_one_pass_at_a_time(iris):
    """As it is used: some passes, a look, some more; the loss of all rows falls from fit to fit."""
    clf = MLPClassifier((10,), mode="streaming", max_iter=5, warm_start=True, random_state=0)
    losses = [clf.fit(*iris).loss_ for _ in range(6)]
    assert losses[-1] < 0.7 * losses[0]
    assert losses[-1] == min(losses)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@quiet
@pytest.mark.filterwarnings("ignore::dladmm.training.standing.NoBetterThanConstant")
def test_early_stopping_holds_rows_back(iris):
    """Rows that are judged by are never learnt from: of labels that are noise nothing is learnt that can be seen."""
    settings = {"hidden_layer_sizes": (10,), "early_stopping": True, "n_iter_no_change": 5, "random_state": 0}
    for mode in ("auto", "streaming"):
        clf = MLPClassifier(mode=mode, max_iter=100, **settings).fit(*iris)
        assert clf.status_ is (Status.EARLY_STOPPED if mode == "auto" else Status.PASSES_MADE)
        assert clf.score(*iris) > 0.9
        assert clf.best_validation_score_ == max(clf.validation_scores_) > 0.85
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 10)), rng.integers(0, 2, 400)
    noise = rng.normal(size=60)
    one = MLPRegressor(mode="streaming", max_iter=200, **settings | {"hidden_layer_sizes": (100,)}).fit(
        X[:60], noise
    )
    assert one.history_.n_iter < 200
    for kind in (MLPClassifier, ModuleClassifier):
        clf = kind(early_stopping=True, validation_fraction=0.3, random_state=0).fit(X, y)
        assert clf.score(X, y) - np.mean(clf.validation_scores_) > 0.05
        assert abs(np.mean(clf.validation_scores_) - 0.5) < 0.08


def test_a_score_within_its_error_is_no_worse():
    stopping = WithinError("val_accuracy", 3, 100)
    assert [stopping._improves(value) for value in (0.9, 0.88, 0.86, 0.95, 0.92, float("nan"))] == [
        True, True, False, True, False, False,
    ]  # fmt: skip
    stopping._reset()
    assert stopping._improves(0.5)
    stopping = WithinError("val_loss", 3, 100)
    assert [stopping._improves(value) for value in (1.0, 1.09, 1.11, 0.5, 0.6)] == [
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("make", [MLPClassifier, ModuleClassifier])
def test_early_stopping_costs_next_to_nothing(make):
    """The flag once swapped the algorithm: .81 fell to .54."""
    X, y = make_gaussian_quantiles(n_samples=1500, n_features=10, n_classes=3, random_state=0)
    plain, stopped = (
        make(early_stopping=flag, random_state=0).fit(X[:1000], y[:1000]) for flag in (False, True)
    )
    score = plain.score(X[1000:], y[1000:])
    assert score > 0.78
    assert stopped.score(X[1000:], y[1000:]) > score - (0.0051 if make is MLPClassifier else 0.03)


@quiet
def test_sample_weight_moves_the_decision():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = (X[:, 0] + 0.8 * rng.normal(size=200) > 0).astype(int)
    plain = MLPClassifier((5,), max_iter=40, random_state=0).fit(X, y)
    heavy = MLPClassifier((5,), max_iter=40, random_state=0).fit(
        X, y, sample_weight=np.where(y == 1, 20.0, 1.0)
    )
    assert heavy.predict(X).mean() > plain.predict(X).mean() + 0.1
    with pytest.raises(ValueError, match="non-zero"):
        MLPClassifier().fit(X, y, sample_weight=np.zeros(200))
    with pytest.raises(InputError, match="negative entries"):
        MLPClassifier().fit(X, y, sample_weight=-np.ones(200))


class Interrupt(Callback):
    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == 4:
            raise KeyboardInterrupt


def test_interruption_keeps_a_usable_model_and_says_so(iris):
    clf = MLPClassifier((10,), max_iter=50, callbacks=[Interrupt()], random_state=0)
    with pytest.warns(UserWarning, match="Interrupted by the user"):
        clf.fit(*iris)
    assert clf.status_ is Status.INTERRUPTED
    assert clf.predict(iris[0]).shape == (150,)


@quiet
def test_float32_and_float64(iris):
    X_train, X_test, y_train, y_test = train_test_split(*iris, random_state=0)
    scores = [
        MLPClassifier((20,), max_iter=60, dtype=dtype, random_state=0)
        .fit(X_train, y_train)
        .score(X_test, y_test)
        for dtype in ("float32", "float64", "auto")
    ]
    assert np.ptp(scores) <= 0.06


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "accelerated-ish"}, "mode must be"),
        ({"loss": "squared"}, "loss must be a classification loss"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be"),
        ({"activation": "swish"}, "relu"),
        ({"rho": -1}, "rho must be a positive"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_bad_parameters(iris, parameters, message):
    with pytest.raises(InputError, match=message):
        MLPClassifier(**parameters).fit(*iris)


@quiet
def test_save_and_load(iris, fitted, tmp_path):
    X, y = iris
    fitted.save(tmp_path / "iris.dladmm")
    loaded = MLPClassifier.load(tmp_path / "iris.dladmm")
    assert np.array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.get_params() == fitted.get_params() | {"callbacks": [], "hidden_layer_sizes": [20]}
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.certificate_ == fitted.certificate_
    assert loaded.history_.to_dict() == fitted.history_.to_dict()
    assert loaded.fit(X, y).score(X, y) > 0.9
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    strings = MLPClassifier((4,), "tanh", loss="squared_hinge", max_iter=3, random_state=0).fit(X, names)
    strings.save(tmp_path / "names.dladmm")
    assert (MLPClassifier.load(tmp_path / "names.dladmm").predict(X) == strings.predict(X)).all()
    regressor = MLPRegressor((4,), max_iter=3, random_state=0).fit(X, y)
    regressor.save(tmp_path / "regressor.dladmm")
    assert np.array_equal(MLPRegressor.load(tmp_path / "regressor.dladmm").predict(X), regressor.predict(X))
    with pytest.raises(DataError, match="holds MLPRegressor, not a MLPClassifier"):
        MLPClassifier.load(tmp_path / "regressor.dladmm")
    with pytest.raises(InputError, match="not fitted yet"):
        MLPClassifier().save(tmp_path / "nothing")
