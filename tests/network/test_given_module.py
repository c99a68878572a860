"""Modules that bring something along: trained weights, frozen layers, hooks, parametrisations."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from convergent import train
from dladmm import InputError, ModuleClassifier, Recurrent
from dladmm.network.given_module import StartsFromWeights, trained_layer

MODES = ("convergent", "accelerated", "streaming")


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    X, y = load_digits(return_X_y=True)
    return torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)


def accuracy(network: nn.Module, X: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((network(X).argmax(1) == y).float().mean())


@pytest.fixture(scope="module")
def pretrained(digits) -> nn.Module:
    """An MLP that Adam has brought to some 94 % of the digits."""
    X, y = digits
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    adam = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        adam.zero_grad()
        nn.functional.cross_entropy(network(X), y).backward()
        adam.step()
    assert accuracy(network, X, y) > 0.93
    return network


# What was trained is started from ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_trained_network_is_started_from(pretrained, digits, mode):
    """It had 93.6 % before and 80.8 % after one iteration, when weights were drawn anew without a word."""
    X, y = digits
    network = copy.deepcopy(pretrained)
    with pytest.warns(StartsFromWeights, match=r"layer '0'.*init='fresh'"):
        train(network, X, y, mode=mode, max_iter=1)
    assert accuracy(network, X, y) > accuracy(pretrained, X, y) - 0.01


def test_a_new_network_is_drawn_from_the_seed(digits):
    X, y = digits
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(64, 10))
        train(network, X, y, mode="accelerated", max_iter=1)
        results.append(network[0].weight.detach())
    assert torch.equal(*results)


def test_fresh_draws_anew_without_a_warning(pretrained, digits):
    network = copy.deepcopy(pretrained)
    train(network, *digits, mode="accelerated", init="fresh", max_iter=1)
    assert not torch.allclose(network[0].weight, pretrained[0].weight, atol=0.1)


def test_the_rule_knows_torchs_own_draws():
    for seed in range(60):
        torch.manual_seed(seed)
        layers = (nn.Linear(3, 2), nn.Linear(100, 50), nn.Conv2d(3, 8, 3, groups=1), nn.GRU(5, 6))
        assert trained_layer(nn.Sequential(*layers)) is None


@pytest.mark.parametrize(
    "change", [lambda W: W.mul_(0.9), lambda W: W.add_(0.01), lambda W: W.normal_(std=0.02)]
)
def test_the_rule_sees_a_change(change):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 2))
    with torch.no_grad():
        change(network[0].weight)
    assert trained_layer(network) == "0"


def test_module_classifier_starts_from_what_the_factory_loads(pretrained, digits):
    X, y = (t.numpy() for t in digits)
    classifier = ModuleClassifier(lambda n, k: copy.deepcopy(pretrained), mode="streaming", max_iter=1)
    with pytest.warns(StartsFromWeights):
        classifier.fit(X, y)
    assert classifier.score(X, y) > 0.93


# What is frozen stays ---------------------------------------------------------------------------------------------


def frozen_copy(network: nn.Module, *names: str) -> nn.Module:
    copied = copy.deepcopy(network)
    for name in names:
        copied.get_parameter(name).requires_grad_(False)
    return copied


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "names", [("0.weight", "0.bias"), ("0.weight",), ("2.bias",), ("2.weight", "2.bias")]
)
def test_frozen_parameters_stay_to_the_bit(pretrained, digits, mode, names):
    network = frozen_copy(pretrained.double(), *names)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    result = train(network, *digits, mode=mode, init="keep", max_iter=3)
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) == (name in names), name
        assert p.requires_grad == (name not in names)
    frozen = [p.requires_grad for p in result.module.parameters()]
    assert frozen == [p.requires_grad for p in network.parameters()]


def test_a_frozen_backbone_gets_a_drawn_head(pretrained, digits):
    """Its head is as torch draws it, so it is drawn from the seed; the backbone is nobody's to draw."""
    X, y = digits
    torch.manual_seed(0)
    backbone = frozen_copy(pretrained, "0.weight", "0.bias")
    network = nn.Sequential(backbone[0], nn.ReLU(), nn.Linear(32, 10)).float()
    train(network, X, y, mode="streaming", max_iter=5)
    assert torch.equal(network[0].weight, pretrained[0].weight.float())
    assert accuracy(network, X, y) > 0.93


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("mode", MODES)
def test_frozen_convolution_recurrent_and_positionwise_layers(mode):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 6, 4)), rng.integers(0, 2, 40)
    torch.manual_seed(0)
    layers = {
        "convolution": nn.Sequential(nn.Conv1d(6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)),
        "recurrent": nn.Sequential(Recurrent(nn.GRU(4, 5, batch_first=True)), nn.Linear(5, 2)),
        "positions": nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)),
    }
    for network in layers.values():
        network[0].requires_grad_(False)
        before = copy.deepcopy(network[0].state_dict())
        train(network, X, y, mode=mode, max_iter=2, init="fresh")
        assert all(torch.equal(p, before[name]) for name, p in network[0].state_dict().items())


def test_a_network_without_anything_to_train_is_refused(digits):
    network = nn.Sequential(nn.Linear(64, 10)).requires_grad_(False)
    with pytest.raises(InputError, match="nothing is left to train"):
        train(network, *digits, max_iter=1)


# What a chain would leave out -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)), "weight by SpectralNorm"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)), "weight by WeightNorm"),
        (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(64, 10)), "weight by Orthogonal"),
        (lambda: nn.utils.spectral_norm(nn.Linear(64, 10)), r"forward hooks \(SpectralNorm\)"),
    ],
)
def test_parametrised_layers_are_refused_by_name(digits, layer, words):
    with pytest.raises(InputError, match=rf"0 \(.*Linear\) has .*{words}"):
        train(nn.Sequential(layer()), *digits, max_iter=1)


def test_forward_hooks_are_refused_by_name(digits):
    def double(module, inputs, output):
        return 2 * output

    network = nn.Sequential(nn.Linear(64, 10))
    network[0].register_forward_hook(double)
    with pytest.raises(InputError, match=r"forward hooks \(double\)"):
        train(network, *digits, max_iter=1)


def test_lazy_layers_without_a_size_are_refused(digits):
    with pytest.raises(InputError, match="pass a row through it first"):
        train(nn.Sequential(nn.LazyLinear(10)), *digits, max_iter=1)


@pytest.mark.parametrize("before", [[], [nn.Flatten()]])
def test_dropout_of_the_inputs_is_an_option_and_no_layer(before):
    x, y = torch.randn(12, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    x = x if before else x.flatten(1)
    network = nn.Sequential(*before, nn.Dropout(0.2), nn.Linear(4, 3))
    with pytest.raises(InputError, match="begins with dropout of its inputs"):
        train(network, x, y, mode="accelerated", max_iter=1)
