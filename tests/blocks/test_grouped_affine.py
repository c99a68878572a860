"""Copies of an affine block side by side, against a loop over the copies in float64."""

from __future__ import annotations

import pytest
import torch

from dladmm import InputError
from dladmm.blocks import Affine, Anchor, Block, GroupedAffine, Term, Work
from dladmm.regularizers import L2
from dladmm.solvers.metric import FullMetric, padded
from dladmm.solvers.subproblems import SubproblemOptions

COPIES, N_IN, N_OUT, ROWS = 3, 4, 2, 7
BLOCK = GroupedAffine(COPIES, N_IN, N_OUT)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def params():
    return BLOCK.initial_parameters(torch.Generator().manual_seed(0), 1.0) | {"b": drawn(COPIES * N_OUT)}


def by_copy(params, k):
    return {name: p.chunk(COPIES)[k] for name, p in params.items()}


def work(counts=None, **options):
    return Work(SubproblemOptions(**options), counts=counts, order=(False,))


def test_forward_is_that_of_every_copy(params):
    v = drawn(ROWS, COPIES * N_IN)
    parts = [Affine(N_IN, N_OUT).forward(by_copy(params, k), v.chunk(COPIES, 1)[k]) for k in range(COPIES)]
    assert torch.allclose(BLOCK.forward(params, v), torch.cat(parts, 1), atol=1e-14)
    assert torch.allclose(BLOCK.to_module(params)(v), torch.cat(parts, 1), atol=1e-14)
    assert torch.allclose(
        BLOCK.write_forward(params, v, drawn(ROWS, COPIES * N_OUT)), torch.cat(parts, 1), atol=1e-14
    )


def test_push_and_pull_are_autograds(params):
    v, move, gradient = (
        drawn(ROWS, COPIES * N_IN),
        drawn(ROWS, COPIES * N_IN),
        drawn(ROWS, COPIES * N_OUT),
    )
    output = BLOCK.forward(params, v)
    pushed = Block.push_input(BLOCK, params, v, move, output)  # the base class asks autograd
    assert torch.allclose(BLOCK.push_input(params, v, move, output), pushed, atol=1e-13)
    leaf = v.clone().requires_grad_()
    (pulled,) = torch.autograd.grad(BLOCK.forward(params, leaf), leaf, gradient)
    assert torch.allclose(BLOCK.pull_back(params, v, output, gradient, work()), pulled, atol=1e-13)
    moves = {name: drawn(*p.shape) for name, p in params.items()}
    along = Block.push_parameters(BLOCK, params, moves, v, output)
    assert torch.allclose(BLOCK.push_parameters(params, moves, v, output), along, atol=1e-13)


@pytest.mark.parametrize("counted", [False, True])
def test_sums_over_the_rows(params, counted):
    v, E = drawn(ROWS, COPIES * N_IN), drawn(ROWS, COPIES * N_OUT)
    counts = torch.arange(1.0, ROWS + 1, dtype=torch.float64)[:, None] if counted else None
    seen = BLOCK.linear_operator(params, v, BLOCK.forward(params, v), work(counts))
    product, sums, ones = seen.adjoint(E, True)
    weight = torch.ones(ROWS, 1, dtype=torch.float64) if counts is None else counts
    for k in range(COPIES):
        a, e = v.chunk(COPIES, 1)[k], E.chunk(COPIES, 1)[k] * weight
        assert torch.allclose(product[k], e.T @ a, atol=1e-13)
        assert torch.allclose(sums.chunk(COPIES)[k], e.sum(0), atol=1e-13)
        assert torch.allclose(ones[k], (a * weight).sum(0), atol=1e-13)
        assert torch.allclose(seen.gram()[k], a.T @ (a * weight), atol=1e-13)
        assert torch.allclose(seen.column_sums()[k], (a * weight).sum(0), atol=1e-13)
        centre = drawn(COPIES, N_IN)
        second, first = seen.moments(centre, None)
        apart, share = a - centre[k], weight / weight.sum()
        assert torch.allclose(second[k], apart.T @ (apart * share), atol=1e-13)
        assert torch.allclose(first[k], (apart * share).sum(0), atol=1e-13)


@pytest.mark.parametrize("rows", [1, ROWS], ids=["fewer rows than outputs", "more"])
def test_directions_are_kept_and_added_in_their_shares(params, rows):
    v, E, start = drawn(rows, COPIES * N_IN), drawn(rows, COPIES * N_OUT), drawn(COPIES, N_OUT, padded(N_IN))
    metric = FullMetric(params["W"], N_IN, (COPIES,))
    metric.second.copy_(torch.eye(N_IN, dtype=torch.float64))
    metric.renew(drawn(COPIES, N_IN), 0.1, torch.ones((), dtype=torch.float64))
    seen = BLOCK.linear_operator(params, v, BLOCK.forward(params, v), work())
    for decay in (None, drawn(COPIES, N_OUT, N_IN)):
        found = start.clone()
        seen.add_direction(found, 0.9, E, decay, metric)
        for k in range(COPIES):
            a, e, K = v.chunk(COPIES, 1)[k], E.chunk(COPIES, 1)[k], metric.matrix[k]
            slope = e.T @ a + (0.0 if decay is None else decay[k])
            along = slope @ K[:N_IN] + torch.outer(e.sum(0), K[N_IN])
            assert torch.allclose(found[k], 0.9 * start[k] + 0.1 * along, atol=1e-13)


def test_updates_are_those_of_the_dense_block_where_it_has_the_same_freedom(params):
    """Its input: the same step as a dense block with zeros. Its parameters: every copy's own least-squares problem."""
    v, target = drawn(ROWS, COPIES * N_IN), drawn(ROWS, COPIES * N_OUT)
    own, dense = v.clone(), v.clone()
    anchor, affine = Anchor(2.0, drawn(ROWS, COPIES * N_IN) + 1), Affine(COPIES * N_IN, COPIES * N_OUT)
    BLOCK.update_input(params, own, anchor, Term(3.0, target, BLOCK.forward(params, v)), work())
    whole = BLOCK.dense(params)
    affine.update_input(whole, dense, anchor, Term(3.0, target, affine.forward(whole, v)), work())
    assert torch.allclose(own, dense, atol=1e-12)

    penalty = L2(0.1)
    moved = {name: p.clone() for name, p in params.items()}
    prediction = BLOCK.forward(params, v)
    before = (prediction - target).square().sum() * 1.5 + penalty.value(params["W"])
    BLOCK.update_parameters(moved, v, Term(3.0, target, prediction), penalty, work())
    assert torch.allclose(prediction, BLOCK.forward(moved, v), atol=1e-12)  # moved along
    assert (prediction - target).square().sum() * 1.5 + penalty.value(moved["W"]) < before
    stationary = BLOCK.parameter_stationarity(
        params, v, Term(3.0, target, BLOCK.forward(params, v)), penalty, work()
    )
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    value = (BLOCK.forward(leaves, v) - target).square().sum() * 1.5 + 0.05 * leaves["W"].square().sum()
    slopes = torch.autograd.grad(value, list(leaves.values()))
    assert torch.allclose(stationary, sum(g.square().sum() for g in slopes))


def test_weights_begin_at_he_of_a_copys_own_inputs():
    W = GroupedAffine(20, 50, 30).initial_parameters(torch.Generator().manual_seed(0), 0.5)["W"]
    assert float(W.std()) == pytest.approx(0.5 * (2 / 50) ** 0.5, rel=0.02)


def test_impossible_sizes_are_refused():
    with pytest.raises(InputError, match="groups, inputs and outputs"):
        GroupedAffine(0, 2, 3)
