"""ModuleClassifier: scikit-learn's own checks, and networks of images."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from torch import nn

import dladmm
from dladmm import InputError, InputTypeError, ModuleClassifier
from scikit_checks import own_checks


class TwoLayers:
    """A factory that prints the same in every process: parallel test runs compare the names of tests."""

    def __call__(self, n_features: int, n_classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(n_features, 12), nn.Tanh(), nn.Linear(12, n_classes))

    def __repr__(self) -> str:
        return "TwoLayers()"


def images(n_features: int, n_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(96, n_classes),
    )  # fmt: skip


OTHER_BATCHES = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
    "check_class_weight_classifiers",
)
"""Repeated rows make other batches; weights of 1 to 10^7 may end in a run that says it diverged (docs/streaming.md)."""

CHECKS = [
    (f"{name}-{of}", estimator, check)
    for name, made in {
        "default": ModuleClassifier(random_state=0),
        "two layers": ModuleClassifier(TwoLayers(), random_state=0),
    }.items()
    for of, estimator, check in own_checks(made, without=OTHER_BATCHES)
]


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("name", "estimator", "check"), CHECKS, ids=[name for name, _, _ in CHECKS])
def test_scikit_learn_agrees(name, estimator, check):
    check(estimator)


def test_a_cnn_on_flat_digits():
    X, y = load_digits(return_X_y=True)
    X, y = X[:900], np.array(list("abcdefghij"))[y[:900]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = clone(ModuleClassifier(images, max_iter=25, random_state=0)).fit(X[:600], y[:600])
    assert classifier.score(X[600:], y[600:]) > 0.85
    assert isinstance(classifier.module_[1], nn.Conv2d)
    torch.testing.assert_close(classifier.predict_proba(X[:5]).sum(1), np.ones(5), rtol=1e-6, atol=0)


def test_what_a_factory_must_return():
    X, y = load_digits(return_X_y=True)
    with pytest.raises(InputTypeError, match=r"must return an nn\.Module"):
        ModuleClassifier(lambda n, k: None).fit(X[:50], y[:50])
    with pytest.raises(InputError, match="last block must be linear"):
        ModuleClassifier(lambda n, k: nn.Sequential(nn.Linear(n, k), nn.Sigmoid()), mode="convergent").fit(
            X[:50], y[:50]
        )
    with pytest.raises(InputError):
        ModuleClassifier(lambda n, k: nn.Sequential(nn.Linear(n, k + 1), nn.ReLU(), nn.Linear(k, k))).fit(
            X[:50], y[:50]
        )


def recurrent(n_features: int, n_classes: int) -> nn.Module:
    layer = (
        nn.Unflatten(1, (8, n_features // 8)),
        dladmm.Recurrent(nn.GRU(n_features // 8, 10, batch_first=True)),
    )
    return nn.Sequential(*layer, nn.Linear(10, n_classes))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize(
    ("factory", "settings", "streams"),
    [
        (TwoLayers(), {}, True),
        (TwoLayers(), {"regularizer": "l1"}, True),
        (TwoLayers(), {"early_stopping": True}, True),
        (recurrent, {}, True),
        (recurrent, {"mode": "accelerated"}, False),
    ],
)
def test_every_network_is_streamed(factory, settings, streams):
    """And made once."""
    X, y = load_digits(return_X_y=True)
    made = []

    def counted(n_features, n_classes):
        made.append(factory(n_features, n_classes))
        return made[-1]

    classifier = ModuleClassifier(counted, max_iter=2, random_state=0, **settings).fit(X[:200], y[:200])
    assert classifier.certificate_.streaming == streams
    assert len(made) == 1
    classifier.set_params(warm_start=True).fit(X[:200], y[:200])
    assert classifier.certificate_.streaming == streams
    assert len(made) == 1


def test_random_state_repeats_a_run_of_a_module_that_starts_from_its_own_weights():
    class Skip(nn.Module):
        def __init__(self, n_in, n_out):
            super().__init__()
            self.a, self.b = nn.Linear(n_in, n_in), nn.Linear(n_in, n_out)

        def forward(self, x):
            return self.b(x + torch.relu(self.a(x)))

    X, y = load_iris(return_X_y=True)
    state = torch.get_rng_state()
    runs = [ModuleClassifier(Skip, max_iter=10, random_state=i).fit(X, y).predict_proba(X) for i in (0, 0, 1)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])
    assert torch.equal(torch.get_rng_state(), state)
