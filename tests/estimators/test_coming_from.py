"""What people who know scikit-learn and skorch type: names, class weights, several labels, curves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.metrics import balanced_accuracy_score, f1_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier as Theirs
from torch import nn

from dladmm import (
    GCNClassifier,
    InputError,
    InputTypeError,
    MLPClassifier,
    MLPRegressor,
    ModuleClassifier,
    ModuleRegressor,
)
from dladmm.estimators.names import ANSWERS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


# Names ---------------------------------------------------------------------------------------------------------


def test_every_parameter_of_scikit_learns_mlp_is_taken_or_answered():
    for name in Theirs().get_params():
        assert name in MLPClassifier().get_params() or name in ANSWERS, name


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor, ModuleClassifier, GCNClassifier])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alpha", "regularizer="),
        ("solver", "mode chooses"),
        ("learning_rate_init", "no learning rate"),
        ("max_epochs", "max_iter"),
        ("hidden_channels", "hidden_layer_sizes"),
    ],
)
def test_other_names_are_answered_with_the_name_here(kind, name, words):
    with pytest.raises(TypeError, match=f"{kind.__name__} has no parameter '{name}'.*{words}"):
        kind(**{name: 1})
    with pytest.raises(InputTypeError, match=words):
        kind().set_params(**{name: 1})


def test_unknown_names_are_refused_as_ever():
    with pytest.raises(TypeError, match="has no parameter 'wide'"):
        MLPClassifier(wide=3)
    assert clone(MLPClassifier((3,), class_weight="balanced")).class_weight == "balanced"


def test_logistic_and_auto_are_understood(iris):
    kept = {"max_iter": 3, "random_state": 0}
    ours = MLPClassifier((5,), "sigmoid", **kept).fit(*iris)
    theirs = MLPClassifier((5,), "logistic", batch_size="auto", **kept).fit(*iris)
    assert np.array_equal(ours.predict_proba(iris[0]), theirs.predict_proba(iris[0]))
    with pytest.raises(InputError, match="batch_size must be a whole number >= 1, 'auto' or None, got 'all'"):
        MLPClassifier(batch_size="all").fit(*iris)


# Class weights -------------------------------------------------------------------------------------------------


def unbalanced():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 4))
    y = np.where(X[:, 0] + rng.normal(size=1200) > 2.2, "rare", "usual")
    return X, y


@pytest.mark.parametrize("mode", ["auto", "accelerated", "streaming"])
def test_balanced_classes_count_alike(mode):
    X, y = unbalanced()
    kept = {"mode": mode, "max_iter": 30, "random_state": 0}
    plain = MLPClassifier((10,), **kept).fit(X, y)
    balanced = MLPClassifier((10,), class_weight="balanced", **kept).fit(X, y)
    before, after = (balanced_accuracy_score(y, each.predict(X)) for each in (plain, balanced))
    assert after > before + 0.1


def test_class_weights_are_sample_weights():
    X, y = unbalanced()
    kept = {"mode": "accelerated", "max_iter": 5, "random_state": 0}
    own = np.random.default_rng(1).uniform(1, 2, len(y))
    by_class = MLPClassifier((5,), class_weight={"rare": 7.0}, **kept).fit(X, y, own)
    by_row = MLPClassifier((5,), **kept).fit(X, y, own * np.where(y == "rare", 7.0, 1.0))
    assert np.array_equal(by_class.predict_proba(X), by_row.predict_proba(X))


def test_grid_search_over_class_weights(iris):
    search = GridSearchCV(
        MLPClassifier((5,), max_iter=5, random_state=0), {"class_weight": [None, "balanced"]}, cv=2
    )
    assert search.fit(*iris).best_score_ > 0.5


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ({"rare": -1.0}, "finite numbers >= 0"),
        ({"often": 1.0}, r"class_weight has \['often'\], not among the labels"),
        ("equal", "must be a dictionary, 'balanced' or None, got 'equal'"),
        ([1, 2], "must be a dictionary"),
    ],
)
def test_class_weights_that_cannot_be(weight, words):
    with pytest.raises(InputError, match=words):
        MLPClassifier(class_weight=weight).fit(*unbalanced())


def test_partial_fit_takes_a_dictionary_and_refuses_balanced():
    X, y = unbalanced()
    clf = MLPClassifier((5,), class_weight={"rare": 20.0}, random_state=0)
    for part in np.array_split(np.arange(len(y)), 4):
        clf.partial_fit(X[part], y[part], classes=["rare", "usual"])
    assert (clf.predict(X) == "rare").mean() > 1.5 * (y == "rare").mean()
    with pytest.raises(InputError, match="needs all rows, and partial_fit sees some"):
        MLPClassifier(class_weight="balanced").partial_fit(X, y, classes=["rare", "usual"])


# Several labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "accelerated", "streaming", "convergent"])
def test_several_labels_per_row(mode, tmp_path):
    X, Y = make_multilabel_classification(600, n_features=10, n_classes=4, random_state=0)
    much = {"accelerated": {"max_iter": 60}, "convergent": {"max_iter": 100}}.get(mode, {})
    clf = MLPClassifier((20,), mode=mode, random_state=0, **much).fit(X[:400], Y[:400])
    predicted = clf.predict(X[400:])
    assert predicted.shape == (200, 4)
    assert set(np.unique(predicted)) == {0, 1}
    floor = 0.5 if mode == "convergent" else 0.75
    assert f1_score(Y[400:], predicted, average="micro") > floor
    p = clf.predict_proba(X[400:])
    assert p.shape == (200, 4)
    assert ((p > 0.5) == predicted).all()
    assert abs(p.sum(1) - 1).max() > 0.1  # each label by itself
    accuracy = (clf.predict(X[:400]) == Y[:400]).all(1).mean()
    assert clf.score(X[:400], Y[:400]) == accuracy
    clf.save(tmp_path / "f")
    assert np.array_equal(MLPClassifier.load(tmp_path / "f").predict(X), clf.predict(X))
    if mode in ("accelerated", "convergent"):
        assert clf.history_.last("train_accuracy") == pytest.approx(accuracy, abs=0.01)


def test_what_a_run_with_several_labels_says_of_itself():
    from dladmm import mlp, train

    X, Y = make_multilabel_classification(100, n_features=5, n_classes=3, random_state=0)
    result = train(mlp([5, 6, 3]), X, Y, loss="multilabel", mode="accelerated", max_iter=3)
    assert "MAX_ITER after 3 iterations" in repr(result)
    assert MLPClassifier((5,), max_iter=3, random_state=0).fit(X, Y).history_.last("val_accuracy") is not None


def test_several_labels_call_by_call_and_with_early_stopping():
    X, Y = make_multilabel_classification(300, n_features=10, n_classes=3, random_state=1)
    clf = MLPClassifier((20,), random_state=0)
    for _ in range(10):
        clf.partial_fit(X, Y, classes=np.arange(3))
    assert f1_score(Y, clf.predict(X), average="micro") > 0.7
    stopped = MLPClassifier((20,), early_stopping=True, max_iter=40, random_state=0).fit(X, Y)
    assert f1_score(Y, stopped.predict(X), average="micro") > 0.7
    with pytest.raises(InputError, match="y has 2 columns of labels, 3 were expected"):
        clf.partial_fit(X, Y[:, :2])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "squared_hinge"}, "several labels per row"),
        ({"class_weight": "balanced"}, "class_weight is for one label per row"),
    ],
)
def test_what_several_labels_refuse(settings, words):
    X, Y = make_multilabel_classification(100, random_state=0)
    with pytest.raises(InputError, match=words):
        MLPClassifier(**settings).fit(X, Y)


# Curves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "accelerated"])
def test_curves_under_the_names_of_scikit_learn(iris, mode):
    clf = MLPClassifier((10,), mode=mode, max_iter=20, random_state=0).fit(*iris)
    assert clf.loss_curve_ == [v for v in clf.history_["loss"] if v is not None]
    assert clf.best_loss_ == min(clf.loss_curve_)
    if mode == "auto":
        assert clf.best_validation_score_ == max(clf.validation_scores_) > 0.8
    else:
        assert clf.validation_scores_ is None
        assert clf.best_validation_score_ is None
    with pytest.raises(AttributeError):
        _ = MLPClassifier().loss_curve_


def test_validation_scores_of_a_regression(iris):
    model = MLPRegressor((10,), early_stopping=True, random_state=0).fit(iris[0][:, :3], iris[0][:, 3])
    scores = model.validation_scores_
    assert scores == model.history_["val_r2"]
    assert 0.8 < model.best_validation_score_ == max(scores) < 1


def test_the_history_is_a_data_frame(iris):
    import pandas as pd

    clf = MLPClassifier((10,), max_iter=20, random_state=0).fit(*iris)
    frame = pd.DataFrame(clf.history_)
    assert len(frame) == clf.history_.n_iter
    assert frame["loss"].iloc[-1] == clf.history_["loss"][-1]
    assert frame["iteration"].tolist() == list(range(1, len(frame) + 1))


# Modules -------------------------------------------------------------------------------------------------------


def network(n_features, n_outputs):
    return nn.Sequential(nn.Linear(n_features, 20), nn.Tanh(), nn.Linear(20, n_outputs))


def test_module_regressor(iris, tmp_path):
    X, y = iris[0][:, :3], 1e5 * iris[0][:, 3]
    model = ModuleRegressor(network, loss="huber", max_iter=60, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.85
    assert model.predict(X).shape == y.shape
    two = ModuleRegressor(network, max_iter=60, random_state=0).fit(X, np.c_[y, -y])
    assert two.predict(X).shape == (len(y), 2)
    assert ModuleRegressor(max_iter=20, random_state=0).fit(X, y).score(X, y) > 0.5
    online = ModuleRegressor(network, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            online.partial_fit(X, y)
    with pytest.raises(InputTypeError, match="module_factory must be a function"):
        ModuleRegressor(3).fit(X, y)


def test_module_classifier_weighs_classes_too():
    X, y = unbalanced()
    balanced = ModuleClassifier(network, class_weight="balanced", max_iter=30, random_state=0).fit(X, y)
    assert balanced_accuracy_score(y, balanced.predict(X)) > 0.7


@pytest.mark.usefixtures("short_teachers")
def test_verbose_shows_progress_everywhere(iris, capsys):
    from dladmm import datasets, mlp, train, train_graph

    for run in (
        lambda verbose: train(mlp([4, 5, 3]), *iris, max_iter=2, mode="accelerated", verbose=verbose),
        lambda verbose: train_graph(datasets.load("karate"), hidden=(4,), max_iter=2, verbose=verbose),
        lambda verbose: MLPClassifier((5,), max_iter=2, verbose=verbose).fit(*iris),
    ):
        run(False)
        assert capsys.readouterr().err == ""
        run(True)
        assert "loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("estimator", "given", "message"),
    [
        (
            MLPClassifier,
            {"max_iters": 3},
            "MLPClassifier has no parameter 'max_iters': did you mean 'max_iter'",
        ),
        (
            ModuleClassifier,
            {"module__width": 3},
            "goes into the function that is given as module_factory",
        ),
        (GCNClassifier, {"qqqq": 1}, "GCNClassifier has no parameter 'qqqq': there are activation"),
    ],
)
def test_a_name_that_nobody_has_is_answered_with_the_nearest(estimator, given, message):
    with pytest.raises(TypeError, match=message):
        estimator(**given)
