"""Data frames with categories and missing values, passed to the estimators as they are."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score

from dladmm import DataError, InputError, MLPClassifier, MLPRegressor, ModuleClassifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SMALL = {"hidden_layer_sizes": (8,), "max_iter": 25, "random_state": 0}


def people(n=400, seed=0):
    """The outcome depends on a number, a category, and on where a value is missing."""
    rng = np.random.default_rng(seed)
    age, job = rng.integers(18, 90, n), rng.choice(["clerk", "nurse", "smith"], n)
    missing = rng.random(n) < 0.3
    income = np.where(missing, np.nan, rng.normal(size=n))
    score = (age - 50) / 15 + 2 * (job == "nurse") + 2 * missing - 1.3
    X = pd.DataFrame({"age": age, "job": job, "income": income})
    X.loc[rng.random(n) < 0.05, "job"] = None
    return X, np.where(score > 0, "yes", "no"), score


@pytest.mark.parametrize("dtype", ["str", "object", "category"])
@pytest.mark.parametrize("mode", ["auto", "accelerated"])
def test_a_data_frame_with_text_and_gaps_just_works(dtype, mode):
    X, y, _ = people()
    new, truth, _ = people(seed=1)
    X["job"], new["job"] = (frame["job"].astype(dtype) for frame in (X, new))
    clf = MLPClassifier(mode=mode, **SMALL).fit(X, y)
    assert clf.score(new, truth) > 0.92  # without the category, or without the column of gaps: at most 0.87
    assert clf.n_features_in_ == 3
    assert clf.feature_names_in_.tolist() == ["age", "job", "income"]
    assert clf.encoder_.outputs[1:4] == ["job=clerk", "job=nurse", "job=smith"]
    assert len(clf.encoder_.outputs) == 7
    assert clf.coefs_[0].shape[0] == (14 if mode == "auto" else 7)  # copies take values and ranks
    boosted = HistGradientBoostingClassifier(max_iter=50, random_state=0)
    assert clf.score(new, truth) > boosted.fit(X[["age", "income"]], y).score(new[["age", "income"]], truth)


def test_regression_and_a_row_at_a_time():
    X, _, score = people()
    reg = MLPRegressor(mode="accelerated", **SMALL).fit(X, score)
    assert reg.score(X, score) > 0.9
    np.testing.assert_allclose(reg.predict(X.iloc[:1]), reg.predict(X)[:1], rtol=1e-6)


def test_unknown_levels_and_columns_that_lack():
    X, y, _ = people()
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(X, y)
    new = X.iloc[:5].copy()
    new["job"] = "astronaut"
    assert set(clf.predict(new)) <= {"yes", "no"}
    with pytest.raises(ValueError, match="job"):
        clf.predict(X[["age", "income"]])
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(X[["job", "age", "income"]])


def test_text_where_numbers_were_is_named():
    X, y, _ = people()
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(X, y)
    X["age"] = "old"
    with pytest.raises(InputError, match="column 'age' of X is neither numbers nor categories"):
        clf.predict(X)


def test_missing_values_in_arrays():
    X, y, _ = people()
    values = X[["age", "income"]].to_numpy()
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(values, y)
    assert clf.coefs_[0].shape[0] == 3
    filled = MLPClassifier(mode="accelerated", **SMALL).fit(np.nan_to_num(values), y)
    without = filled.score(np.nan_to_num(values), y)
    assert clf.score(values, y) > without + 0.02  # zero hides where it was missing


def test_a_gap_that_training_never_had_is_filled_by_the_median():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) + np.array([5, 0, 0])
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(X, X[:, 0] > 5)
    gap = np.array([[np.nan, 0.0, 0.0]])
    median = np.array([[np.median(X[:, 0]), 0.0, 0.0]])
    np.testing.assert_array_equal(clf.predict_proba(gap), clf.predict_proba(median))
    with pytest.raises(ValueError, match="infinity"):
        clf.predict([[np.inf, 0, 0]])


def test_sparse_rows_with_nan_are_refused_by_name():
    X = sparse.csr_matrix(np.array([[1.0, np.nan], [0.0, 2.0]] * 20))
    with pytest.raises(InputError, match="SimpleImputer"):
        MLPClassifier(**SMALL).fit(X, np.arange(40) % 2)


def test_columns_that_are_said_to_be_categories():
    rng = np.random.default_rng(0)
    code, y = rng.integers(0, 6, 300), None
    y = np.isin(code, [1, 4])
    X = np.column_stack([rng.normal(size=300), code])
    for said in ([1], [False, True], np.array([1])):
        clf = MLPClassifier((), mode="accelerated", max_iter=50, categorical_features=said).fit(X, y)
        assert clf.score(X, y) == 1  # linear in the levels, not in the code
        assert clf.coefs_[0].shape[0] == 7
    frame = pd.DataFrame(X, columns=["v", "code"])
    clf = MLPClassifier((), mode="accelerated", max_iter=50, categorical_features=["code"]).fit(frame, y)
    assert clf.score(frame, y) == 1
    plain = MLPClassifier((), mode="accelerated", max_iter=50, categorical_features=None).fit(frame, y)
    assert plain.score(frame, y) < 0.9


@pytest.mark.parametrize("wrong", ["codes", 3, [5], ["no"], [True], [1.5]])
def test_wrong_categorical_features(wrong):
    with pytest.raises(InputError, match="categorical_features"):
        MLPClassifier(categorical_features=wrong, **SMALL).fit(np.ones((20, 2)), np.arange(20) % 2)


def test_identifiers_are_left_out_with_a_warning():
    X, y, _ = people()
    X["name"] = [f"Name {k}" for k in range(len(X))]
    with pytest.warns(UserWarning, match="column 'name' has 400 different texts in 400 rows and is left out"):
        clf = MLPClassifier(mode="accelerated", **SMALL).fit(X, y)
    assert clf.predict(X).shape == (400,)


@pytest.mark.filterwarnings("ignore:column 'name'")
@pytest.mark.parametrize("name", ["identifiers", "one word", "empty"])
@pytest.mark.parametrize("estimator", [MLPClassifier, MLPRegressor, ModuleClassifier])
def test_a_frame_whose_only_text_is_left_out_is_predicted_as_without_it(estimator, name, tmp_path):
    X, y, score = people()
    X = X[["age", "income"]]  # income has gaps
    target = score if estimator is MLPRegressor else y
    texts = {"identifiers": [f"Name {k}" for k in range(len(X))], "one word": "same", "empty": None}
    with_text = X.assign(name=texts[name])[["name", "age", "income"]]
    chosen = {} if estimator is ModuleClassifier else SMALL
    settings = {"mode": "accelerated", "max_iter": 5, "random_state": 0} | chosen
    one, other = (estimator(**settings).fit(frame, target) for frame in (with_text, X))
    for gaps in (X, X.fillna(0), X.assign(age=np.nan), X.iloc[:1]):
        for text in ("Name 7", "never seen", None, 3):
            found = one.predict(gaps.assign(name=text)[["name", "age", "income"]])
            assert (found == other.predict(gaps)).all()
    with pytest.raises(ValueError, match="same order"):
        one.predict(with_text[["age", "income", "name"]])
    one.save(tmp_path / "f")
    assert (estimator.load(tmp_path / "f").predict(with_text) == one.predict(with_text)).all()


@pytest.mark.filterwarnings("ignore:column 'x0'")
def test_an_array_whose_only_text_is_left_out_is_predicted_as_without_it():
    X, y, _ = people()
    numbers = X[["age", "income"]].to_numpy()
    texts = np.array([f"Name {k}" for k in range(len(X))], dtype=object)
    mixed = np.column_stack([np.full(len(X), "same", dtype=object), numbers])
    clf = MLPClassifier(mode="accelerated", categorical_features=[0], **SMALL).fit(mixed, y)
    without = MLPClassifier(mode="accelerated", **SMALL).fit(numbers, y).predict(numbers)
    for first in ("same", texts):
        mixed[:, 0] = first
        assert (clf.predict(mixed) == without).all()
        assert (clf.predict(mixed.tolist()) == without).all()


@pytest.mark.filterwarnings("ignore:column 'x1'")
def test_a_column_of_numbers_without_values_is_left_out_of_arrays_and_sparse_rows():
    X, y, _ = people()
    values = np.column_stack([X["age"], np.full(len(X), np.nan)])
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(values, y)
    later = np.column_stack([X["age"], np.ones(len(X))])
    for same in (later, sparse.csr_array(later), later.tolist()):
        assert (clf.predict(same) == clf.predict(values)).all()
    with pytest.raises(ValueError, match="features"):
        clf.predict(values[:, :1])
    with pytest.raises(ValueError, match="infinity"):
        clf.predict([[np.inf, 0]])


def test_save_load_pickle_and_clone(tmp_path):
    X, y, _ = people()
    clf = MLPClassifier(mode="accelerated", categorical_features=["job"], **SMALL).fit(X, y)
    clf.save(tmp_path / "f")
    for again in (MLPClassifier.load(tmp_path / "f"), pickle.loads(pickle.dumps(clf))):
        np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
        assert again.encoder_ == clf.encoder_
    assert clone(clf).categorical_features == ["job"]
    assert cross_val_score(clone(clf), X, y, cv=2).min() > 0.8


def test_warm_start_and_partial_fit_keep_the_inputs():
    X, y, _ = people()
    clf = MLPClassifier(mode="accelerated", warm_start=True, **SMALL).fit(X, y)
    encoder = clf.encoder_
    clf.fit(X.iloc[:100].assign(job="clerk"), y[:100])
    assert clf.encoder_ is encoder
    online = MLPClassifier(random_state=0)
    for start in range(0, 400, 100):
        online.partial_fit(X.iloc[start : start + 100], y[start : start + 100], classes=["no", "yes"])
    assert online.score(X, y) > 0.8


def test_networks_of_ones_own_take_tables_too():
    X, y, _ = people()
    clf = ModuleClassifier(max_iter=15, random_state=0).fit(X, y)
    assert clf.score(X, y) > 0.85


def test_a_damaged_table_in_a_file_is_refused(tmp_path):
    from dladmm.training.checkpoint import load_model, save_model

    X, y, _ = people()
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(X, y)
    clf.save(tmp_path / "f")
    saved = load_model(tmp_path / "f")
    for wrong in ({"version": 1, "columns": []}, {"version": 9}, "x"):
        extra = saved.extra | {"table": wrong}
        save_model(saved.module, tmp_path / "g", loss=saved.loss, extra=extra)
        with pytest.raises(DataError):
            MLPClassifier.load(tmp_path / "g")


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_what_cannot_be_taken_is_named_with_its_remedy():
    y = np.arange(60) % 2
    dates = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=60), "v": np.arange(60.0)})
    with pytest.raises(InputError, match="column 'day' of X holds dates; make it a number"):
        MLPClassifier(**SMALL).fit(dates, y)
    text = np.array([["x", "1"], ["y", "2"]] * 30)
    with pytest.raises(InputError, match=r"X holds text .*categorical_features"):
        MLPClassifier(**SMALL).fit(text, y)
    assert MLPClassifier(categorical_features=[0, 1], **SMALL).fit(text, y).score(text, y) == 1
    with pytest.raises(DataError, match="no column to learn from"):
        MLPClassifier(**SMALL).fit(np.full((60, 2), np.nan), y)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_an_array_in_the_place_of_the_data_frame_of_training():
    X, y, _ = people()
    clf = MLPClassifier(mode="accelerated", **SMALL).fit(X, y)
    np.testing.assert_array_equal(clf.predict_proba(X.to_numpy()), clf.predict_proba(X))
