"""Layers at the edges of what their blocks cover: even kernels, large windows, masks, padding, repeated tokens."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dladmm import InputError
from dladmm.blocks import Affine, Anchor, Convolution, Elementwise, Embedding, MaxPool, Term, Work
from dladmm.blocks.base import Draw
from dladmm.blocks.dropout import Dropout
from dladmm.network.chain import Chain
from dladmm.regularizers import L2
from dladmm.solvers.subproblems import SubproblemOptions

F64 = torch.float64


def randn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, (3, 2), (2, 3), 5])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_a_convolution_of_torch_is_the_same_convolution_or_none(kernel, dilation, padding):
    """Even kernels with padding="same" pad more on one side, which the block cannot: with dilation 2 they do not."""
    layer = nn.Conv2d(2, 3, kernel, padding=padding, dilation=dilation).double()
    block, v = Convolution.from_module(layer), randn(0, 2, 2, 9, 10)
    sizes = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    uneven = padding == "same" and any((dilation * (k - 1)) % 2 for k in sizes)
    assert (block is None) == uneven
    if block is not None:
        params = {"W": layer.weight.detach(), "b": layer.bias.detach()}
        torch.testing.assert_close(block.forward(params, v), layer(v).detach())
        torch.testing.assert_close(block.to_module(params)(v), layer(v))


@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_other_padding_than_zeros_has_no_block(mode):
    assert Convolution.from_module(nn.Conv1d(2, 3, 3, padding=1, padding_mode=mode)) is None


@pytest.mark.parametrize("window", [(3,), (9,), (10,), (13,), (4, 4), (3, 5)])
@pytest.mark.parametrize("weight", [0.2, 5.0])
def test_the_argmin_of_pooling_over_windows_of_any_size_is_global(window, weight):
    """With the j largest entries at the new maximum s there is one candidate for every j: the best of them is it."""
    sizes = [2 * w + 1 for w in window]
    block, v, m = MaxPool(window), randn(0, 2, 2, *sizes), randn(1, 2, 2, *sizes)
    target = randn(2, *block.forward({}, v).shape)
    term, anchor = Term(weight, target, block.forward({}, v)), Anchor(0.8, m)
    block.update_input({}, v, anchor, term, Work(SubproblemOptions()))
    assert float(block.input_stationarity({}, v, anchor, term, Work(SubproblemOptions()))) < 1e-18
    torch.testing.assert_close(term.prediction, block.forward({}, v))
    windows, solved = (block._windows(x).reshape(-1, torch.Size(window).numel()) for x in (m, v))
    for entries, found, wanted in zip(windows, solved, target.flatten(), strict=True):
        ordered = entries.sort(descending=True).values

        def cost(x, wanted=wanted, entries=entries):
            return float(0.8 / 2 * (x - entries).square().sum() + weight / 2 * (wanted - x.max()) ** 2)

        candidates = []
        for j in range(1, len(entries) + 1):
            top = (0.8 * ordered[:j].sum() + weight * wanted) / (0.8 * j + weight)
            trial = torch.minimum(entries, top)
            trial[entries.argmax()] = top
            candidates.append(cost(trial))
        assert cost(found) <= min(candidates) + 1e-12


@pytest.mark.parametrize("activation", ["tanh", "relu", "sign"])
def test_an_entrywise_update_weighs_its_two_sides(activation):
    """``(nu/2)(z - m)^2 + (c/2)(a - f(z))^2`` with nu and c apart, as stiff links have them."""
    block, v = Elementwise(activation), randn(0, 6, 5)
    anchor = Anchor(0.4, randn(1, 6, 5))
    term = Term(2.5, randn(2, 6, 5), block.forward({}, v))
    block.update_input({}, v, anchor, term, Work(SubproblemOptions()))
    assert torch.equal(term.prediction, block.forward({}, v))
    grid = torch.linspace(-8, 8, 4001, dtype=F64)[:, None, None]
    cost = 0.4 * (grid - anchor.value) ** 2 + 2.5 * (term.target - block.forward({}, grid)) ** 2
    own = 0.4 * (v - anchor.value) ** 2 + 2.5 * (term.target - block.forward({}, v)) ** 2
    assert bool((own <= cost.amin(0) + 1e-9).all())


def dropout(p=0.4):
    return Dropout("tanh", nn.Dropout(p))


def test_masks_are_those_of_the_draw_and_never_the_same_twice():
    block, v = dropout(), randn(0, 40, 10)
    masks = []
    for seed in (1, 2, 1):
        block.draw(Draw(seed, 1.0))
        masks.append(block.forward({}, v) != 0)
    block.draw(None)
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    assert 0.5 < float(masks[0].double().mean()) < 0.7
    torch.testing.assert_close(block.forward({}, v), torch.tanh(v))
    block.draw(Draw(3, 0.5))
    assert 0.75 < float((block.forward({}, v) != 0).double().mean()) < 0.85
    kept = block.forward({}, v)
    torch.testing.assert_close(kept[kept != 0], (torch.tanh(v) / (1 - 0.2))[kept != 0])
    block.draw(None)


def test_whole_channels_are_dropped():
    block, v = Dropout("identity", nn.Dropout2d(0.5)), randn(0, 6, 8, 3, 3)
    block.draw(Draw(1, 1.0))
    kept = block.forward({}, v) != 0
    assert torch.equal(kept, kept[..., :1, :1].expand_as(kept))
    assert 0.2 < float(kept.double().mean()) < 0.8
    block.draw(None)


def test_an_update_under_a_mask_solves_what_is_kept_and_leaves_the_rest_at_the_anchor():
    block, v = dropout(), randn(0, 6, 5)
    anchor = Anchor(0.7, randn(1, 6, 5))
    block.draw(Draw(4, 1.0))
    factor = block._factor(v)
    term = Term(1.3, randn(2, 6, 5), block.forward({}, v))
    block.update_input({}, v, anchor, term, Work(SubproblemOptions()))
    torch.testing.assert_close(term.prediction, block.forward({}, v))
    dropped = factor == 0
    assert torch.equal(v[dropped], anchor.value[dropped])
    grid = torch.linspace(-8, 8, 4001, dtype=F64)[:, None, None]
    cost = 0.7 * (grid - anchor.value) ** 2 + 1.3 * (term.target - factor * torch.tanh(grid)) ** 2
    own = 0.7 * (v - anchor.value) ** 2 + 1.3 * (term.target - factor * torch.tanh(v)) ** 2
    assert bool((own <= cost.amin(0) + 1e-9).all())
    block.draw(None)


def test_two_blocks_of_one_sweep_have_masks_of_their_own():
    chain = Chain([Affine(5, 5), dropout(), Affine(5, 5), dropout(), Affine(5, 5)])
    with chain.drawing(7, 1.0):
        first, second = (chain.blocks[l].drawn.seed for l in (1, 3))
    with chain.drawing(8, 1.0):
        later = chain.blocks[1].drawn.seed
    assert len({first, second, later}) == 3
    assert chain.blocks[1].drawn is None
    assert isinstance(chain.blocks[1], Elementwise)


def test_the_row_of_padding_stays_with_a_penalty_too():
    block = Embedding(4, 2, padding=1)
    params = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)
    params["W"][1] = 3.0
    tokens = torch.tensor([[0.0, 1.0], [1.0, 2.0]], dtype=F64)
    prediction = block.forward(params, tokens)
    term = Term(1.3, prediction + 1, prediction.clone())
    before = params["W"].clone()
    block.update_parameters(params, tokens, term, L2(0.7), Work(SubproblemOptions()))
    assert torch.equal(params["W"][1], before[1])
    assert not torch.equal(params["W"][0], before[0])


@pytest.mark.parametrize("token", [-1.0, 4.0, 0.5, float("nan")])
def test_tokens_beyond_the_table_are_refused(token):
    block = Embedding(4, 2)
    block.check_input(torch.tensor([[0.0, 3.0]]), "X")
    with pytest.raises(InputError, match="whole numbers from 0 to 3"):
        block.check_input(torch.tensor([[0.0, token]]), "X")
