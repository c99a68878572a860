"""The cross-fitted loss against a loop over rows and copies."""

from __future__ import annotations

import pytest
import torch

from dladmm import InputError
from dladmm.losses import CrossFitted, get_loss

COPIES, ROWS = 4, 9


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def problem(name: str, n_outputs: int):
    """Loss, outputs, targets, and every row's fold (-1: nobody's)."""
    inner = get_loss(name)
    loss = CrossFitted(inner, COPIES, n_outputs)
    y = torch.arange(ROWS) % n_outputs if inner.kind == "classification" else drawn(ROWS, n_outputs)
    fold = torch.arange(ROWS) % COPIES
    fold[-1] = -1
    return (
        loss,
        drawn(ROWS, COPIES * n_outputs),
        loss.targets(inner.encode(y, n_outputs, torch.float64), fold),
        fold,
    )


LOSSES = [("cross_entropy", 3), ("cross_entropy", 2), ("squared", 1), ("huber", 2), ("squared_hinge", 2)]


def by_hand(loss, z, target, fold):
    """sum over the copies that see the row, over their number."""
    total = []
    for i in range(ROWS):
        own = target[i : i + 1, : loss.n_outputs]
        seen = [k for k in range(COPIES) if k != fold[i]]
        parts = z[i].view(COPIES, -1)
        total.append(sum(loss.loss.rows(parts[k : k + 1], own)[0] for k in seen) / len(seen))
    return torch.stack(total)


@pytest.mark.parametrize(("name", "n_outputs"), LOSSES)
def test_value_gradient_and_curvature(name, n_outputs):
    loss, z, target, fold = problem(name, n_outputs)
    assert torch.allclose(loss.rows(z, target), by_hand(loss, z, target, fold))
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(by_hand(loss, leaf, target, fold).sum(), leaf)
    assert torch.allclose(loss.gradient(z, target), slope, atol=1e-12)
    move = drawn(*z.shape) + 1
    found = loss.curvature(z, target, move)
    for i in range(ROWS):
        seen = [k for k in range(COPIES) if k != fold[i]]
        inner = [
            loss.loss.curvature(
                z[i].view(COPIES, -1)[k : k + 1],
                target[i : i + 1, :n_outputs],
                move[i].view(COPIES, -1)[k : k + 1],
            )
            for k in seen
        ]
        assert torch.allclose(found[i], sum(inner)[0] / len(seen))


@pytest.mark.parametrize(("name", "n_outputs"), LOSSES)
def test_prox_is_stationary_and_leaves_the_own_fold_alone(name, n_outputs):
    loss, v, target, fold = problem(name, n_outputs)
    found = loss.prox(v, target, 0.7)
    assert torch.allclose(loss.gradient(found, target) + 0.7 * (found - v), torch.zeros_like(v), atol=1e-7)
    for i in range(ROWS - 1):
        own = slice(int(fold[i]) * n_outputs, (int(fold[i]) + 1) * n_outputs)
        assert torch.equal(found[i, own], v[i, own])


def test_decisions_and_outputs_of_unseen_rows():
    loss, z, target, fold = problem("cross_entropy", 3)
    assert torch.equal(loss.decision(target), torch.arange(ROWS) % 3)
    assert torch.equal(loss.decision(z), z.view(ROWS, COPIES, 3).mean(1).argmax(1))
    unseen = loss.unseen(z, target)
    for i in range(ROWS - 1):
        assert torch.equal(unseen[i], z[i].view(COPIES, 3)[fold[i]])


def test_fewer_than_three_copies_are_refused():
    with pytest.raises(InputError, match="at least 3 copies"):
        CrossFitted(get_loss("squared"), 2, 1)


def test_H_is_the_largest_curvature_of_one_copy():
    """A row counts 1 / (copies - 1) in each copy that sees it, 1 / copies where all do."""
    loss, z, target, _ = problem("squared", 1)
    units = torch.eye(COPIES, dtype=torch.float64).repeat_interleave(ROWS, 0).view(COPIES, ROWS, COPIES)
    curvatures = torch.stack([loss.curvature(z, target, unit) for unit in units])
    assert float(curvatures.max()) == loss.H == 1 / (COPIES - 1)
    assert curvatures[:, -1].tolist() == [1 / COPIES] * COPIES
