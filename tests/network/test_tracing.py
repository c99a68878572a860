"""Networks of any class: traced by torch.fx, cut where a single tensor is passed on, trained in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from convergent import train
from dladmm import InputError, InputTypeError, Recurrent, from_module
from dladmm.network.tracing import chain_layers


class Usual(nn.Module):
    """A CNN as tutorials write it; the layers are declared in another order than they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 3)
        self.hidden = nn.Linear(24, 12)
        self.second = nn.Conv2d(4, 6, 2)
        self.first = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = torch.tanh(self.second(x))
        x = x.view(x.size(0), -1)
        return self.head(self.hidden(x).relu())


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))
        )
        self.top = Top()

    def forward(self, x):
        return self.top(torch.flatten(self.features(x), 1))


class Top(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(36, 3)

    def forward(self, x):
        return self.last(F.leaky_relu(x, 0.2))


class WithResidual(nn.Module):
    """A path that parts and joins again, in the network's own forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.gain = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(144, 3)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = x + self.gain * torch.tanh(self.inner(x))
        return self.head(x.flatten(1))


class Reading(nn.Module):
    def __init__(self, kind, part) -> None:
        super().__init__()
        self.rnn, self.head, self.part = kind(6, 5, batch_first=True), nn.Linear(5, 3), part

    def forward(self, x):
        return self.head(self.part(self.rnn(x)))


def shown(module):
    return [type(layer).__name__ for layer in chain_layers(module)]


def test_the_layers_are_in_the_order_of_the_forward_pass():
    module = Usual()
    assert shown(module) == [
        "Conv2d",
        "ReLU",
        "MaxPool2d",
        "Conv2d",
        "Tanh",
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
    ]
    assert chain_layers(module)[0] is module.first
    chain = from_module(module)
    assert "MaxPool(2x2)" in repr(chain)
    assert "Generic" not in repr(chain)


def test_modules_inside_are_opened_where_they_are_chains():
    assert shown(Nested()) == ["Conv2d", "ReLU", "AvgPool2d", "Flatten", "LeakyReLU", "Linear"]
    assert chain_layers(Nested())[4].negative_slope == 0.2
    assert shown(nn.Sequential(nn.Linear(4, 36), Top())) == ["Linear", "LeakyReLU", "Linear"]


def test_paths_that_part_and_join_become_one_block():
    module = WithResidual()
    assert shown(module) == ["Conv2d", "ReLU", "WithResidualPart", "Flatten", "Linear"]
    assert {id(p) for layer in chain_layers(module) for p in layer.parameters()} == {
        id(p) for p in module.parameters()
    }


@pytest.mark.parametrize(
    ("kind", "part", "last"),
    [
        (nn.GRU, lambda found: found[0][:, -1], True),
        (nn.RNN, lambda found: found[0][:, -1, :], True),
        (nn.GRU, lambda found: found[1][-1], True),
        (nn.LSTM, lambda found: found[1][0][-1], True),
        (nn.LSTM, lambda found: found[0], False),
    ],
)
def test_recurrent_layers_and_what_is_taken_of_them(kind, part, last):
    module, x = Reading(kind, part), torch.randn(4, 7, 6)
    layers = chain_layers(module)
    assert [type(layer) for layer in layers] == [Recurrent, nn.Linear]
    assert layers[0].last is last
    torch.testing.assert_close(nn.Sequential(*layers)(x), module(x))


@pytest.mark.parametrize("network", [Usual, Nested, WithResidual])
@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_any_class_is_trained_in_place(network, mode):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    X = 0.3 * rng.normal(size=(60, 1, 6, 6)) + np.eye(6)[y][:, None, None, :]
    module = network()
    result = train(module, X, y, mode=mode, max_iter=15)
    assert result.certificate.monotone, str(result.certificate)
    assert result.history.last("train_accuracy") > 0.8
    x = torch.from_numpy(X).float()
    torch.testing.assert_close(module(x), result.module(x))
    again = train(module, X, y, max_iter=1, init="keep")
    assert again.history["loss"][0] < 1.2


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_a_recurrent_network_keeps_its_weights():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 7, 6)), rng.integers(0, 3, 30)
    module = Reading(nn.GRU, lambda found: found[0][:, -1])
    with torch.no_grad():
        expected = F.cross_entropy(module(torch.from_numpy(X).float()), torch.from_numpy(y))
    result = train(module, X, y, init="keep", max_iter=1, nu=1e6, rho=1e6, damping=1e6)
    assert result.history["loss"][0] == pytest.approx(float(expected), rel=0.05)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.layer(torch.relu(self.layer(x)))))


class Two(nn.Module):
    def forward(self, x, y):
        return x + y


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(F.dropout(x, 0.3))


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (Branching(), InputError, "forward pass of Branching cannot be traced"),
        (Twice(), InputError, "shares parameters with a layer before it"),
        (Two(), InputError, "Two must be a function of one tensor"),
        (Dropping(), InputError, "is random"),
        (nn.ModuleList([nn.Linear(2, 2)]), InputTypeError, "got ModuleList"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)),
            InputError,
            "leave the last activation to the loss",
        ),
    ],
)
def test_what_is_no_chain_is_refused_before_work_begins(module, error, message):
    with pytest.raises(error, match=message):
        train(module, np.ones((6, 4)), np.arange(6) % 3)
