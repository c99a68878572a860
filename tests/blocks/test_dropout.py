"""Dropout inside the network, positionwise layers and attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from dladmm import InputError, baselines, from_module, train
from dladmm.blocks import Anchor, Dropout, Generic, Term, Work
from dladmm.blocks.base import Draw
from dladmm.callbacks import Checkpoint
from dladmm.solvers.subproblems import SubproblemOptions

MODES = ("convergent", "accelerated", "streaming")


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return torch.tensor(X[:800] / 16, dtype=torch.float32), torch.tensor(y[:800])


def accuracy(module, X, y) -> float:
    with torch.no_grad():
        return float((module.eval()(X).argmax(1) == y).float().mean())


# Positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_linear_layers_act_at_every_position(digits, mode):
    """``Unflatten(1, (8, 8)), Linear(8, 16)`` crashed."""
    module = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 16), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
    )
    result = train(module, *digits, mode=mode, max_iter=10)
    assert accuracy(module, *digits) > 0.85
    torch.testing.assert_close(result.module(digits[0]), module(digits[0]))


def test_positions_end_where_samples_are_flat_again():
    X = np.random.default_rng(0).normal(size=(30, 4, 3)).astype(np.float32)
    module = nn.Sequential(
        nn.Linear(3, 2), nn.Flatten(), nn.Linear(8, 5), nn.Unflatten(1, (5, 1)), nn.Linear(1, 2)
    )
    train(module, X, np.arange(150).reshape(30, 5) % 2, mode="streaming", max_iter=2)
    chain = from_module(module, sample=torch.as_tensor(X[:2]))
    shown = repr(chain)
    assert shown.count("Positionwise") == 2
    assert "Affine(8, 5)" in shown


# Dropout ----------------------------------------------------------------------------------------------------------


def mlp(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 40), *middle, nn.Linear(40, 10))


@pytest.mark.parametrize("mode", MODES)
def test_dropout_of_nothing_is_nothing(digits, mode):
    """``Dropout(0.0)`` was "random"."""
    plain, same = mlp(nn.ReLU()), mlp(nn.ReLU(), nn.Dropout(0.0))
    for module in (plain, same):
        train(module, *digits, mode=mode, max_iter=2)
    assert torch.equal(plain[0].weight, same[0].weight)


@pytest.mark.parametrize("middle", [(nn.ReLU(), nn.Dropout(0.3)), (nn.Dropout(0.3), nn.Tanh())])
@pytest.mark.parametrize("mode", ["accelerated", "streaming"])
def test_dropout_is_trained_with(digits, mode, middle):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    results = []
    for _ in range(2):
        module = mlp(*middle)
        torch.set_rng_state(state)
        result = train(module, *digits, mode=mode, max_iter=10)
        assert torch.equal(torch.get_rng_state(), state), "torch's own generator is the caller's"
        results.append(module[0].weight.detach())
        assert accuracy(module, *digits) > 0.93
    assert torch.equal(*results), "the masks come from random_state"
    without = mlp(*(part for part in middle if not isinstance(part, nn.Dropout)))
    train(without, *digits, mode=mode, max_iter=10)
    assert not torch.equal(without[0].weight, results[0])
    assert any(isinstance(part, nn.Dropout) and part.p == 0.3 for part in result.module)
    assert torch.equal(result.module(digits[0]), result.module(digits[0])), "off at evaluation"


def test_dropout_keeps_a_network_from_learning_noise_by_heart():
    generator = torch.Generator().manual_seed(0)
    X, y = torch.randn(200, 64, generator=generator), torch.randint(0, 10, (200,), generator=generator)
    plain, dropped = mlp(nn.ReLU()), mlp(nn.ReLU(), nn.Dropout(0.7))
    for module in (plain, dropped):
        train(module, X, y, mode="streaming", max_iter=15)
    assert accuracy(plain, X, y) > 1.2 * accuracy(dropped, X, y)


@pytest.mark.parametrize("layer", [nn.Dropout(0.4), nn.Dropout2d(0.4)])
@pytest.mark.parametrize("name", ["tanh", "identity"])
def test_products_with_its_derivative_are_those_of_the_mask(layer, name):
    block = Dropout(name, layer)
    generator = torch.Generator().manual_seed(0)
    v, move, gradient = (torch.randn(50, 6, 3, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    assert torch.equal(block.forward({}, v), torch.tanh(v) if name == "tanh" else v)
    block.draw(Draw(7))
    output = block.forward({}, v)
    assert torch.equal(output, block.forward({}, v))
    assert 0.3 < float((output == 0).float().mean()) < 0.5
    whole_channels = (output == 0).flatten(2)
    assert bool((whole_channels.all(2) == whole_channels.any(2)).all()) == isinstance(layer, nn.Dropout2d)
    ahead, behind = (block.forward({}, v + sign * 1e-6 * move) for sign in (1, -1))
    torch.testing.assert_close(
        block.push_input({}, v, move, output), (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8
    )
    pulled = block.pull_back({}, v, output, gradient, Work(SubproblemOptions()))
    torch.testing.assert_close(
        (pulled * move).sum(), (gradient * block.push_input({}, v, move, output)).sum()
    )
    check_update(block, v, move, gradient)


def check_update(block, v, anchor_value, target):
    """No entry of the input's subproblem can be moved to a smaller value."""
    anchor, prediction = Anchor(0.7, anchor_value), block.forward({}, v)
    found, term = v.clone(), Term(1.3, target, prediction.clone())
    block.update_input({}, found, anchor, term, Work(SubproblemOptions()))
    torch.testing.assert_close(term.prediction, block.forward({}, found))

    def value(z):
        return 0.35 * (z - anchor_value) ** 2 + 0.65 * (target - block.forward({}, z)) ** 2

    for shift in (-1.0, -1e-3, 1e-3, 1.0):
        assert (value(found) <= value(found + shift) + 1e-9).all()


def test_masks_differ_from_sweep_to_sweep_and_block_to_block():
    chain = from_module(
        nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 9), nn.Dropout(0.5), nn.Linear(9, 2))
    )
    v = torch.ones(20, 9)
    masks = []
    for number in (1, 2):
        with chain.drawing(number):
            masks += [block.forward({}, v) for block in chain if block.draws]
    assert all(not torch.equal(masks[i], masks[j]) for i in range(4) for j in range(i))
    assert all(torch.equal(block.forward({}, v), v) for block in chain if block.draws)


def test_a_resumed_run_draws_the_same_masks(digits, tmp_path):
    settings = {"mode": "streaming", "max_iter": 4}
    whole = train(mlp(nn.ReLU(), nn.Dropout(0.3)), *digits, **settings)

    class Stop(Checkpoint):
        def on_epoch_end(self, trainer):
            super().on_epoch_end(trainer)
            if trainer.history.n_iter == 2:
                raise KeyboardInterrupt

    train(mlp(nn.ReLU(), nn.Dropout(0.3)), *digits, callbacks=[Stop(tmp_path)], **settings)
    resumed = train(
        mlp(nn.ReLU(), nn.Dropout(0.3)), *digits, callbacks=[Checkpoint(tmp_path, resume=True)], **settings
    )
    for one, other in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("layers", "settings", "words"),
    [
        (
            (nn.Linear(64, 9), nn.Dropout(0.5), nn.Linear(9, 10)),
            {"mode": "convergent"},
            "convergent mode needs a function",
        ),
        ((nn.Dropout(0.5), nn.Linear(64, 10)), {"mode": "streaming"}, "give the option dropout"),
        ((nn.Linear(64, 9), nn.Dropout(1.0), nn.Linear(9, 10)), {"mode": "streaming"}, "drops everything"),
        ((nn.Linear(64, 9), nn.AlphaDropout(0.5), nn.Linear(9, 10)), {"mode": "convergent"}, "is random"),
    ],
)
def test_what_cannot_be_dropped_is_refused(digits, layers, settings, words):
    with pytest.raises(InputError, match=words):
        train(nn.Sequential(*layers), *digits, max_iter=1, **settings)


def test_other_methods_refuse_dropout(digits):
    with pytest.raises(InputError, match="another method"):
        baselines.train("adam", mlp(nn.Dropout(0.5)), *digits, max_iter=1)


# Attention --------------------------------------------------------------------------------------------------------


def attention(dropout: float = 0.2, **settings) -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True, **settings)
    return nn.Sequential(nn.Unflatten(1, (8, 8)), layer, nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize(("mode", "passes"), [("accelerated", 4), ("streaming", 6)])
def test_a_transformer_layer_trains(digits, mode, passes):
    X, y = digits[0][:300], digits[1][:300]
    module = attention()
    before = {name: p.detach().clone() for name, p in module[1].named_parameters()}
    train(module, X, y, mode=mode, max_iter=passes)
    assert accuracy(module, X, y) > 0.8
    assert any(not torch.equal(p, before[name]) for name, p in module[1].named_parameters())
    assert module[1].dropout.p == 0.2
    assert module[1].self_attn.dropout == 0.2


def test_a_transformer_layer_without_dropout_trains_in_convergent_mode(digits):
    X, y = digits[0][:60], digits[1][:60]
    result = train(attention(0.0), X, y, mode="convergent", max_iter=2)
    assert result.certificate.monotone
    with pytest.raises(InputError, match="convergent mode needs a function"):
        train(attention(0.1), X, y, mode="convergent", max_iter=2)


def test_a_whole_encoder_is_its_layers(digits):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8))
    module = nn.Sequential(nn.Unflatten(1, (8, 8)), encoder, nn.Flatten(), nn.Linear(64, 10))
    assert [type(block) for block in from_module(module)][1:3] == [Generic, Generic]
    train(module, digits[0][:100], digits[1][:100], mode="streaming", max_iter=1)


def test_samples_that_would_attend_to_each_other_are_refused(digits):
    module = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.TransformerEncoderLayer(8, 2), nn.Flatten(), nn.Linear(64, 10)
    )
    with pytest.raises(InputError, match="batch_first=True"):
        train(module, *digits, max_iter=1)
