"""Scores are scikit-learn's, without its import."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from dladmm.cli import measures as scores


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_scores_of_classes_are_those_of_scikit_learn(seed, n_classes, rows, tied):
    rng = np.random.default_rng(seed)
    truth, chosen = rng.integers(n_classes, size=(2, rows))
    chances = rng.dirichlet(np.full(n_classes, 0.3), size=rows)
    chances = np.round(chances, 1) + 0.1 if tied else chances
    chances /= chances.sum(1, keepdims=True)
    every = range(n_classes)
    confusion = scores.confusion_matrix(truth, chosen, n_classes)
    assert confusion.tolist() == metrics.confusion_matrix(truth, chosen, labels=every).tolist()
    recall = metrics.recall_score(truth, chosen, labels=np.unique(truth), average="macro", zero_division=0)
    assert scores.balanced_accuracy(confusion) == pytest.approx(recall, rel=1e-12)
    expected = metrics.log_loss(truth, chances, labels=every)
    assert scores.log_loss(truth, chances) == pytest.approx(expected, rel=1e-12)
    if len(np.unique(truth)) == n_classes > 1:
        found = [scores.auc(truth == k, chances[:, k]) for k in every]
        if n_classes == 2:
            assert found[1] == pytest.approx(metrics.roc_auc_score(truth, chances[:, 1]), rel=1e-12)
        else:
            expected = metrics.roc_auc_score(truth, chances, multi_class="ovr", labels=every)
            assert np.mean(found) == pytest.approx(expected, rel=1e-12)


def test_a_certain_mistake_has_a_finite_log_loss():
    chances = np.array([[1.0, 0.0], [0.0, 1.0]])
    for truth in ([0, 1], [1, 0], [0, 0]):
        found = scores.log_loss(np.array(truth), chances)
        assert found == pytest.approx(metrics.log_loss(truth, chances, labels=[0, 1]), rel=1e-12)
        assert np.isfinite(found)


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_the_explained_share_is_that_of_scikit_learn(seed, rows, outputs):
    rng = np.random.default_rng(seed)
    truth, predicted = rng.normal(size=(2, rows, outputs))
    constant, right = rng.random((2, outputs)) < 0.3
    truth[:, constant] = 2.0
    predicted[:, right] = truth[:, right]
    expected = metrics.r2_score(truth, predicted)
    assert scores.r_squared(truth, predicted) == pytest.approx(expected, rel=1e-12)


def test_a_run_on_a_named_data_set_does_not_wait_for_scikit_learn(tmp_path):
    program = (
        "import sys; from dladmm.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('sklearn' in sys.modules, file=sys.stderr)"
    )
    words = "train", "mlp", "--dataset", "digits", "--max-iter", "1", "--out", str(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().endswith("False"), done.stderr
    assert (tmp_path / "run" / "metrics.json").exists()
