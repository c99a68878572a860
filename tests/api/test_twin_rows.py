"""Rows that stand more than once: which of them a fold keeps together, and what a repeated table gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from dladmm import MLPClassifier
from dladmm.api.cross_fit import folds_of
from dladmm.api.twin_rows import bundles


def real_rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 4))


def test_rows_without_twins_are_bundles_of_one_in_their_order():
    assert torch.equal(bundles(real_rows(50), np.arange(50) % 3), torch.arange(50))


@pytest.mark.parametrize("times", [2, 3])
def test_all_copies_of_a_repeated_row_are_together(times):
    X, y = real_rows(40), np.arange(40) % 2
    found = bundles(np.tile(X, (times, 1)), np.tile(y, times))
    assert torch.equal(found, torch.arange(40).repeat(times))


def test_repeated_measurements_of_one_x_are_together_whatever_their_y():
    X = np.repeat(real_rows(30), 2, axis=0)
    assert torch.equal(bundles(X, np.arange(60.0)), torch.arange(30).repeat_interleave(2))


def test_few_twins_are_left_alone():
    X = np.concatenate([real_rows(90), real_rows(90)[:10]])
    assert torch.equal(bundles(X, np.zeros(100)), torch.arange(100))


def test_an_oversampled_class_is_kept_together():
    X = real_rows(110)
    X = np.concatenate([X[:100], np.tile(X[100:], (10, 1))])
    found = bundles(X, np.repeat([0, 1], 100))
    assert torch.equal(found[:100], torch.arange(100))
    assert torch.equal(found[100:], (100 + torch.arange(10)).repeat(10))


def yes_or_no(n: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, columns)).astype(float)


def test_twins_by_chance_are_parted():
    X, y = yes_or_no(400, 3), np.random.default_rng(1).integers(0, 2, 400)
    assert torch.equal(bundles(X, y), torch.arange(400))


def test_a_table_of_chance_twins_that_was_doubled_is_kept_together_in_pairs():
    X, y = yes_or_no(101, 3), np.random.default_rng(1).integers(0, 2, 101)
    found = bundles(np.tile(X, (2, 1)), np.tile(y, 2))
    assert torch.equal(torch.bincount(found), torch.full((101,), 2))
    whole = np.column_stack([np.tile(X, (2, 1)), np.tile(y, 2)])
    for number in range(101):
        assert len(np.unique(whole[found == number], axis=0)) == 1


def test_zero_and_minus_zero_are_the_same_value():
    X = np.concatenate([real_rows(20), real_rows(20)])
    X[:20, 0], X[20:, 0] = 0.0, -0.0
    assert torch.equal(bundles(X, np.zeros(40)), torch.arange(20).repeat(2))


@given(st.integers(1, 5), st.integers(3, 8), st.integers(0, 1000))
def test_a_fold_has_all_rows_of_a_bundle_and_classes_are_dealt_out_evenly(times, copies, seed):
    y = torch.arange(60) % 3
    bundle, labels = torch.arange(60).repeat(times), y.repeat(times)
    fold = folds_of(labels, bundle, copies, torch.Generator().manual_seed(seed))
    assert torch.equal(fold, fold[:60].repeat(times))
    per_class = torch.stack([torch.bincount(fold[labels == c], minlength=copies) for c in range(3)])
    assert int(per_class.max() - per_class.min()) <= times


def test_a_doubled_table_gives_a_network_as_good():
    """Twins in different folds had made the out-of-fold loss praise learning by heart: log loss .18 instead of .10."""
    X, y = load_breast_cancer(return_X_y=True)
    X, x_test, y, y_test = train_test_split(X, y, train_size=200, random_state=0, stratify=y)
    once = MLPClassifier(random_state=0).fit(X, y)
    twice = MLPClassifier(random_state=0).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    losses = [log_loss(y_test, each.predict_proba(x_test)) for each in (once, twice)]
    assert losses[1] < losses[0] + 0.03
    assert twice.score(x_test, y_test) > once.score(x_test, y_test) - 0.02
