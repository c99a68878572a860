"""Embeddings: whole numbers come in, and the table is solved as least squares on one-hot inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dladmm import InputError, load_model, train
from dladmm.blocks import Affine, Embedding, Term, Work
from dladmm.regularizers import get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions

MODES = ("convergent", "accelerated", "streaming")
N_TOKENS = 30


@pytest.fixture(scope="module")
def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Which of three groups of words a sentence of six words has most of."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    X = rng.integers(0, N_TOKENS, (400, 6))
    X[:, :3] = 10 * y[:, None] + rng.integers(0, 10, (400, 3))
    return rng.permuted(X, axis=1), y


def network(width: int = 5, **settings) -> nn.Sequential:
    table = nn.Embedding(N_TOKENS, width, **settings)
    return nn.Sequential(table, nn.Flatten(), nn.Linear(6 * width, 16), nn.ReLU(), nn.Linear(16, 3))


def accuracy(module, X, y) -> float:
    with torch.no_grad():
        return float((module.eval()(torch.as_tensor(X)).argmax(1) == torch.as_tensor(y)).float().mean())


@pytest.mark.parametrize("mode", MODES)
def test_whole_numbers_come_in(tokens, mode):
    """``nn.Embedding`` was given floats, and raised."""
    module = network()
    before = module[0].weight.detach().clone()
    result = train(module, *tokens, mode=mode, max_iter=30)
    assert accuracy(module, *tokens) > 0.8
    assert not torch.allclose(module[0].weight, before)
    if mode == "convergent":
        assert result.certificate.monotone
        assert result.certificate.sufficient_descent


def problem(padding: int | None = None):
    generator = torch.Generator().manual_seed(0)
    block = Embedding(8, 3, padding)
    v = torch.randint(0, 7, (40, 5), generator=generator).double()
    params = block.initial_parameters(generator, 1.0)
    target = torch.randn(40, 5, 3, generator=generator, dtype=torch.float64)
    return block, v, params, Term(1.7, target, block.forward(params, v))


@pytest.mark.parametrize("penalty", [None, {"name": "l2", "strength": 3.0}])
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_its_update_is_that_of_a_linear_layer_on_one_hot_rows(penalty, damping):
    block, v, params, term = problem()
    options = SubproblemOptions(w_solver="exact", damping=damping)
    one_hot = torch.nn.functional.one_hot(v.long().flatten(), 8).double()[:, :7]  # token 7 never occurs
    affine, table = Affine(7, 3, bias=False), {"W": params["W"][:7].T.contiguous()}
    rows = Term(term.weight, term.target.reshape(-1, 3), term.prediction.reshape(-1, 3).clone())
    # The mean diagonal of a Gram matrix, to which the damping is relative, counts token 7 as well
    same = SubproblemOptions(w_solver="exact", damping=damping * 7 / 8)
    affine.update_parameters(table, one_hot, rows, get_regularizer(penalty), Work(same))
    kept = params["W"][7].clone()
    (step,) = block.update_parameters(params, v, term, get_regularizer(penalty), Work(options))
    torch.testing.assert_close(params["W"][:7], table["W"].T, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(term.prediction, block.forward(params, v))
    if penalty is None:
        assert torch.equal(params["W"][7], kept)
    if penalty is None and damping == 0.0:
        for token in range(7):
            chosen = term.target[v == token]
            torch.testing.assert_close(params["W"][token], chosen.mean(0))
    assert step.rate is not None


def test_a_weight_of_two_is_a_sample_given_twice():
    block, v, params, term = problem()
    again = [torch.cat([each, each[:10]]) for each in (v, term.target, term.prediction)]
    copied = {"W": params["W"].clone()}
    counts = torch.ones(40, 1, dtype=torch.float64)
    counts[:10] = 2
    options = SubproblemOptions(w_solver="exact", damping=0.3)
    none = get_regularizer(None)
    block.update_parameters(params, v, term, none, Work(options, counts=counts))
    block.update_parameters(copied, again[0], Term(term.weight, again[1], again[2]), none, Work(options))
    torch.testing.assert_close(params["W"], copied["W"])


@pytest.mark.parametrize("mode", MODES)
def test_the_row_of_padding_stays(tokens, mode):
    module = network(padding_idx=4)
    train(module, *tokens, mode=mode, max_iter=3)
    assert torch.equal(module[0].weight[4], torch.zeros(5))
    assert module[0].padding_idx == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_frozen_table_stays(tokens, mode):
    module = network()
    module[0].weight.requires_grad_(False)
    before = module[0].weight.clone()
    train(module, *tokens, mode=mode, max_iter=3)
    assert torch.equal(module[0].weight, before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: X + 0.5, "whole numbers from 0 to 29"),
        (lambda X: X + 25, "got numbers from 25 to"),
        (lambda X: X - 1, "whole numbers from 0"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_other_numbers_are_refused(tokens, change, words, mode):
    X, y = tokens
    with pytest.raises(InputError, match=words):
        train(network(), change(X), y, mode=mode, max_iter=1)


def test_what_an_embedding_cannot_be_is_refused(tokens):
    X, y = tokens
    with pytest.raises(InputError, match="max_norm"):
        train(network(max_norm=1.0), X, y, max_iter=1, mode="convergent")
    with pytest.raises(InputError, match="must be the first layer"):
        train(
            nn.Sequential(nn.Linear(6, 6), nn.Embedding(3, 2), nn.Flatten(), nn.Linear(12, 3)),
            X,
            y,
            max_iter=1,
            mode="convergent",
        )
    with pytest.raises(InputError, match="other tokens"):
        train(network(), X, y, mode="accelerated", dropout=0.2, max_iter=1)


def test_a_file_holds_an_embedding(tokens, tmp_path):
    result = train(network(), *tokens, mode="streaming", max_iter=2)
    result.save(tmp_path / "net")
    X = torch.as_tensor(tokens[0])
    torch.testing.assert_close(load_model(tmp_path / "net").module(X), result.module(X))
