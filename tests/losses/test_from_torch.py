"""Torch's losses, class weights and label smoothing, and functions that return a mean."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from dladmm import InputError, InputTypeError, MLPClassifier, datasets, train, train_graph
from dladmm.losses import (
    Absolute,
    BinaryLogistic,
    CallableLoss,
    CrossEntropy,
    Huber,
    Poisson,
    Squared,
    get_loss,
    loss_of_torch,
)

MODES = ("convergent", "accelerated", "streaming")
WEIGHT = torch.tensor([0.5, 2.0, 3.0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (nn.CrossEntropyLoss(), CrossEntropy()),
        (nn.CrossEntropyLoss, CrossEntropy()),
        (F.cross_entropy, CrossEntropy()),
        (nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1), CrossEntropy((0.5, 2.0, 3.0), 0.1)),
        (partial(F.cross_entropy, weight=WEIGHT, reduction="sum"), CrossEntropy((0.5, 2.0, 3.0))),
        (nn.MSELoss(reduction="sum"), Squared()),
        (F.mse_loss, Squared()),
        (nn.HuberLoss(delta=0.7), Huber(0.7)),
        (partial(F.huber_loss, delta=0.7), Huber(0.7)),
        (nn.SmoothL1Loss(beta=0.3), Huber(0.3)),
        (nn.SmoothL1Loss(beta=0.0), Absolute()),
        (F.smooth_l1_loss, Huber(1.0)),
        (nn.L1Loss(), Absolute()),
        (F.l1_loss, Absolute()),
        (nn.BCEWithLogitsLoss(), BinaryLogistic()),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), BinaryLogistic((3.0,))),
        (F.binary_cross_entropy_with_logits, BinaryLogistic()),
        (nn.PoissonNLLLoss(), Poisson()),
    ],
)
def test_torchs_losses_are_understood(given, expected):
    assert get_loss(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (nn.NLLLoss(), "NLLLoss is not understood: use nn.CrossEntropyLoss"),
        (F.nll_loss, "leave nn.LogSoftmax out"),
        (nn.BCELoss(), "use nn.BCEWithLogitsLoss"),
        (nn.KLDivLoss(), "KLDivLoss is not understood: understood are CrossEntropyLoss, MSELoss"),
        (F.kl_div, "kl_div is not understood"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(3)), "sample_weight"),
        (partial(F.huber_loss, sharpness=3), "huber_loss: .*sharpness"),
    ],
)
def test_other_losses_of_torch_are_refused_by_name(given, words):
    with pytest.raises((InputError, InputTypeError), match=words):
        train(nn.Sequential(nn.Linear(2, 2)), np.eye(2), [0, 1], loss=given, max_iter=1)


def test_a_function_of_ones_own_is_none_of_torchs():
    assert loss_of_torch(lambda z, y: z.sum(1)) is None


# Values, gradients and minimisers ----------------------------------------------------------------------------------


def drawn(n: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return z, torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT.double()])
def test_cross_entropy_is_torchs(weight, smoothing):
    z, y = drawn()
    module = nn.CrossEntropyLoss(weight, label_smoothing=smoothing, reduction="none")
    loss = get_loss(module)
    target = loss.encode(y, 3, torch.float64)
    torch.testing.assert_close(loss.rows(z, target), module(z, y))
    assert torch.equal(loss.decision(target), y), "accuracies compare with the labels, whatever they weigh"
    _check_calculus(loss, z, target)


@pytest.mark.parametrize("weight", [None, torch.tensor([4.0]).double(), WEIGHT.double()])
def test_binary_cross_entropy_is_torchs(weight):
    z, _ = drawn()
    y = torch.rand(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y[:20] = y[:20].round()
    module = nn.BCEWithLogitsLoss(pos_weight=weight, reduction="none")
    loss = get_loss(module)
    target = loss.encode(y, 3, torch.float64)
    torch.testing.assert_close(loss.rows(z, target), module(z, y).sum(1))
    _check_calculus(loss, z, target)


def _check_calculus(loss, z, target):
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.rows(leaf, target).sum(), leaf)
    torch.testing.assert_close(loss.gradient(z, target), gradient)
    direction = torch.randn(z.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ahead, behind = (loss.gradient(z + sign * 1e-5 * direction, target) for sign in (1, -1))
    curvature = ((ahead - behind) / 2e-5 * direction).sum(1)
    torch.testing.assert_close(loss.curvature(z, target, direction), curvature, rtol=1e-5, atol=1e-7)
    assert (curvature <= loss.H * direction.square().sum(1) * (1 + 1e-9)).all()
    for r in (0.3, torch.linspace(0.1, 5, len(z), dtype=torch.float64)[:, None]):
        found = loss.prox(z, target, r)
        assert (loss.gradient(found, target) + r * (found - z)).abs().max() < 1e-9


def test_specs_of_plain_losses_are_as_they_were():
    assert CrossEntropy().to_spec() == {"name": "cross_entropy"}
    assert BinaryLogistic().to_spec() == {"name": "binary_logistic"}
    for loss in (CrossEntropy((1.0, 2.0), 0.1), BinaryLogistic((3.0,))):
        assert get_loss(loss.to_spec()) == loss


@pytest.mark.parametrize(
    "make",
    [
        lambda: CrossEntropy((1.0, 0.0)),
        lambda: CrossEntropy((1.0, np.nan)),
        lambda: CrossEntropy(label_smoothing=1.5),
        lambda: CrossEntropy("ab"),
        lambda: BinaryLogistic(()),
        lambda: CrossEntropy((1.0, 2.0)).encode(torch.zeros(2), 3, torch.float32),
        lambda: BinaryLogistic((1.0, 2.0)).encode(torch.zeros(2, 3), 3, torch.float32),
    ],
)
def test_wrong_weights_are_refused(make):
    with pytest.raises((InputError, InputTypeError, ValueError)):
        make()


# Training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return (X[:600] / 16).astype(np.float32), y[:600]


def accuracy(network, X, y) -> float:
    with torch.no_grad():
        return float((network(torch.as_tensor(X)).argmax(1) == torch.as_tensor(y)).float().mean())


@pytest.mark.parametrize("mode", MODES)
def test_modules_and_names_train_the_same(digits, mode):
    results = []
    for loss in ("cross_entropy", nn.CrossEntropyLoss(), F.cross_entropy):
        network = nn.Sequential(nn.Linear(64, 10))
        train(network, *digits, loss=loss, mode=mode, max_iter=2)
        results.append(network[0].weight.detach())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("mode", MODES)
def test_class_weights_move_the_boundary(mode):
    """Of two classes that overlap, the one that counts nine times as much is found nearly always."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    X = (rng.normal(size=(400, 2)) + 0.7 * y[:, None]).astype(np.float32)
    found = {}
    for weight in (None, torch.tensor([1.0, 9.0])):
        network = nn.Sequential(nn.Linear(2, 2))
        train(network, X, y, loss=nn.CrossEntropyLoss(weight), mode=mode, max_iter=40)
        found[weight is None] = accuracy(network, X[y == 1], y[y == 1])
    assert found[False] > 0.93 > 0.85 > found[True]


def test_estimators_and_graphs_take_torchs_losses(digits):
    X, y = digits
    classifier = MLPClassifier(
        (20,), loss=nn.CrossEntropyLoss(label_smoothing=0.1), mode="streaming", max_iter=5
    )
    assert classifier.fit(X, y).score(X, y) > 0.9
    result = train_graph(datasets.load("karate"), hidden=(8,), loss=nn.CrossEntropyLoss(), max_iter=3)
    assert result.history.n_iter == 3


def sum_of_squares(z, t):
    return ((z - t) ** 2).sum() / 2


@pytest.mark.parametrize("mode", MODES)
def test_a_mean_over_rows_is_understood(digits, mode):
    """It was taken for a sum and trained nonsense, 8.9 % of the digits."""
    X, y = digits
    one_hot = np.eye(10, dtype=np.float32)[y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # H is estimated
        for fn in (lambda z, t: F.cross_entropy(z, t), lambda z, t: ((z - t) ** 2).mean()):
            network = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
            train(network, X, one_hot, loss=fn, mode=mode, max_iter=10)
            assert accuracy(network, X, y) > 0.8


def test_a_mean_is_the_sum_of_its_rows():
    z, y = drawn()
    t = F.one_hot(y, 3).double()
    loss = CallableLoss(lambda z, t: ((z - t) ** 2).sum(1).mean() / 2).understood(t)
    torch.testing.assert_close(loss.rows(z, t), Squared().rows(z, t))
    torch.testing.assert_close(loss.gradient(z, t), Squared().gradient(z, t))
    assert loss.understood(t) is loss
    plain = CallableLoss(sum_of_squares)
    assert plain.understood(t) is plain


def test_what_is_neither_a_sum_nor_a_mean_is_refused():
    with pytest.raises(InputError, match="neither a sum nor a mean"):
        CallableLoss(lambda z, t: ((z - t) ** 2).sum().sqrt() + 1).understood(torch.ones(4, 2))


def test_labels_for_a_loss_of_ones_own(digits):
    """The practical method hands them over as they are; the paper's algorithm needs targets of the outputs' shape."""
    result = train(
        nn.Sequential(nn.Linear(64, 10)), *digits, loss=lambda z, t: F.cross_entropy(z, t), max_iter=2
    )
    assert result.history["loss"][-1] < 2.0
    settings = {"loss": lambda z, t: F.cross_entropy(z, t), "max_iter": 1, "mode": "convergent"}
    with pytest.raises(InputError, match="kind='classification'"):
        train(nn.Sequential(nn.Linear(64, 10)), *digits, **settings)
