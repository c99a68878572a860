"""Losses: gradients, Lipschitz constants, and the optimality of every prox; the risk; FISTA; targets."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import wrightomega
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.compute import execution
from dladmm.compute.execution import Execution
from dladmm.losses import (
    LOSSES,
    Absolute,
    BinaryLogistic,
    CallableLoss,
    CrossEntropy,
    Huber,
    Loss,
    Poisson,
    Quantile,
    Risk,
    Squared,
    SquaredHinge,
    get_loss,
)
from dladmm.losses.cross_entropy import softmax_prox
from dladmm.solvers.fista import fista

OF_ENTRIES: list[Loss] = [
    *(BinaryLogistic(), SquaredHinge(), Squared(), Huber(), Huber(0.3)),
    *(Absolute(), Quantile(0.9), Quantile(0.2, width=0.5), Poisson(), Poisson(cap=2.0)),
]
EVERY: list[Loss] = [CrossEntropy(), *OF_ENTRIES]
every = pytest.mark.parametrize("loss", EVERY, ids=str)
N, K = 40, 5


def problem(loss: Loss, scale: float, seed: int, soft: bool = False) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    v = scale * torch.randn(N, K, generator=rng, dtype=torch.float64)
    if isinstance(loss, Poisson):
        return v, torch.poisson(torch.full_like(v, min(scale, 5.0)), generator=rng)
    if loss.kind == "regression":
        return v, scale * torch.randn(N, K, generator=rng, dtype=torch.float64)
    if soft and isinstance(loss, CrossEntropy):
        return v, torch.softmax(3 * torch.randn(N, K, generator=rng, dtype=torch.float64), dim=1)
    return v, loss.encode(torch.randint(K, (N,), generator=rng), K, torch.float64)


def residual(loss: Loss, z: Tensor, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
    """The optimality residual of the prox, in float64, relative to what rounding z to its dtype costs."""
    eps = torch.finfo(z.dtype).eps
    z64, v64 = z.double(), v.double()
    gradient = loss.gradient(z64, target.double()) + r * (z64 - v64)
    allowed = 1 + (loss.H + r) * z64.abs().amax(dim=1, keepdim=True) + r * v64.abs()
    return (gradient.abs() / (eps * allowed)).max()


@every
@given(
    log_r=st.floats(-6, 3),
    log_scale=st.floats(-1, 2),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    soft=st.booleans(),
)
def test_prox_is_optimal(
    loss: Loss, log_r: float, log_scale: float, seed: int, dtype: torch.dtype, soft: bool
) -> None:
    r = 10**log_r
    v, target = (tensor.to(dtype) for tensor in problem(loss, 10**log_scale, seed, soft))
    z = loss.prox(v, target, r)
    assert z.dtype == dtype
    assert residual(loss, z, v, target, r) <= 16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_cross_entropy_prox_at_the_extremes(dtype: torch.dtype, classes: int, rng: torch.Generator) -> None:
    loss = CrossEntropy()
    for r in (1e-8, 1e-5, 1e-2, 1.0, 1e4):
        for scale in (1e-2, 1.0, 1e2, 1e4):
            v = (scale * torch.randn(50, classes, generator=rng, dtype=torch.float64)).to(dtype)
            for target in (
                loss.encode(torch.randint(classes, (50,), generator=rng), classes, dtype),
                torch.softmax(torch.randn(50, classes, generator=rng, dtype=torch.float64), dim=1).to(dtype),
            ):
                z = loss.prox(v, target, r)
                assert torch.isfinite(z).all()
                assert residual(loss, z, v, target, r) <= 1000, (r, scale)


def test_cross_entropy_prox_against_wright_omega() -> None:
    """NUMERICS in the open: s by a bracketing root finder, w by scipy's Wright omega function."""
    v, target = problem(CrossEntropy(), 3.0, 0)
    for r in (1e-3, 0.1, 1.0, 10.0):
        z = CrossEntropy().prox(v, target, r).numpy()
        c = v.numpy() + target.numpy() / r
        for i in range(N):

            def w(s: float, row: np.ndarray = c[i], r: float = r) -> np.ndarray:
                return wrightomega(row - s - math.log(r)).real

            s = brentq(lambda s, w=w, r=r: w(s).sum() - 1 / r, c[i].max() - 1 / r - 50, c[i].max() + 50)
            np.testing.assert_allclose(z[i], c[i] - w(s), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", OF_ENTRIES, ids=str)
def test_prox_against_a_scalar_minimiser(loss: Loss) -> None:
    """These losses are sums over the entries, so one entry at a time is a reference."""
    v, target = problem(loss, 3.0, 1)
    for r in (0.05, 1.0, 20.0):
        z = loss.prox(v, target, r)
        for i in range(10):

            def objective(x: float, i: int = i, r: float = r) -> float:
                entry = torch.tensor([[x]], dtype=torch.float64)
                return float(loss.rows(entry, target[i : i + 1, :1])) + r / 2 * (x - float(v[i, 0])) ** 2

            best = minimize_scalar(objective, bracket=(float(v[i, 0]) - 1, float(v[i, 0]) + 1), tol=1e-12)
            assert abs(best.x - float(z[i, 0])) < 1e-5
            assert objective(float(z[i, 0])) <= best.fun + 1e-12


@every
def test_prox_takes_one_r_for_each_row(loss: Loss) -> None:
    v, target = problem(loss, 2.0, 2)
    r = torch.logspace(-3, 2, N, dtype=torch.float64)[:, None]
    z = loss.prox(v, target, r)
    for i in (0, 7, N - 1):
        alone = loss.prox(v[i : i + 1], target[i : i + 1], float(r[i]))
        torch.testing.assert_close(z[i : i + 1], alone, rtol=1e-9, atol=1e-9)


@every
def test_gradient(loss: Loss) -> None:
    z, target = problem(loss, 2.0, 3)
    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss.rows(leaf, target).sum(), leaf)
    torch.testing.assert_close(loss.gradient(z, target), expected)
    h = 1e-6
    bump = torch.zeros_like(z)
    bump[:, 2] = h
    central = (loss.rows(z + bump, target) - loss.rows(z - bump, target)) / (2 * h)
    torch.testing.assert_close(loss.gradient(z, target)[:, 2], central, rtol=1e-5, atol=1e-6)


@every
def test_H_is_an_upper_bound(loss: Loss, rng: torch.Generator) -> None:
    for scale in (0.1, 1.0, 5.0):
        z, target = problem(loss, scale, 4)
        other = z + scale * torch.randn(N, K, generator=rng, dtype=torch.float64)
        change = (loss.gradient(z, target) - loss.gradient(other, target)).norm(dim=1)
        assert (change <= loss.H * (z - other).norm(dim=1) * (1 + 1e-12)).all()


@every
def test_H_is_attained(loss: Loss) -> None:
    """Two equal logits far above the rest for softmax, above the cap for counts, zero for the others."""
    z = torch.zeros(1, K, dtype=torch.float64)
    if isinstance(loss, CrossEntropy):
        z[0, 2:] = -60
    if isinstance(loss, Poisson):
        z += math.log(loss.cap) + 1
    target = problem(loss, 1.0, 5)[1][:1] if loss.kind == "classification" else torch.zeros_like(z)
    step = torch.zeros_like(z)
    step[0, :2] = torch.tensor([1e-4, -1e-4])
    if isinstance(loss, Quantile):
        step = step.abs() if loss.q < 0.5 else -step.abs()
    change = (loss.gradient(z + step, target) - loss.gradient(z, target)).norm()
    assert change >= 0.999 * loss.H * step.norm()


@every
def test_no_input_is_changed(loss: Loss) -> None:
    v, target = problem(loss, 2.0, 6)
    kept = v.clone(), target.clone()
    loss.rows(v, target), loss.gradient(v, target), loss.prox(v, target, 0.3), loss.decision(v)
    risk = Risk(loss, target, torch.ones(N, 1, dtype=torch.float64))
    risk.value(v), risk.gradient(v), risk.prox(v, 0.3)
    assert torch.equal(v, kept[0])
    assert torch.equal(target, kept[1])


@every
def test_risk_weights_rows(loss: Loss, rng: torch.Generator) -> None:
    v, target = problem(loss, 2.0, 7)
    weight = torch.rand(N, 1, generator=rng, dtype=torch.float64)
    weight[::3] = 0
    risk, rho = Risk(loss, target, weight), 0.4
    z = risk.prox(v, rho)
    assert torch.equal(z[::3], v[::3])
    assert (risk.gradient(z) + rho * (z - v)).abs().max() < 1e-12
    assert risk.value(z).dtype == torch.float64
    assert math.isclose(risk.H, loss.H * float(weight.max()))
    torch.testing.assert_close(risk.value(z), (loss.rows(z, target) * weight[:, 0]).sum())


@every
def test_mean_is_a_weight_of_one_nth(loss: Loss) -> None:
    v, target = problem(loss, 2.0, 8)
    mean = Risk(loss, target, torch.full((N, 1), 1 / N, dtype=torch.float64))
    torch.testing.assert_close(mean.value(v), loss.rows(v, target).mean())
    torch.testing.assert_close(mean.prox(v, 0.1), Risk(loss, target).prox(v, 0.1 * N))


@every
@pytest.mark.parametrize("weighted", [False, True])
def test_fista_finds_the_exact_prox(loss: Loss, weighted: bool, rng: torch.Generator) -> None:
    v, target = problem(loss, 3.0, 9)
    weight = torch.rand(N, 1, generator=rng, dtype=torch.float64) if weighted else None
    for rho in (1e-2, 1.0, 100.0):
        exact, slow = Risk(loss, target, weight), Risk(loss, target, weight, "fista")
        torch.testing.assert_close(slow.prox(v, rho), exact.prox(v, rho), rtol=1e-6, atol=1e-6)


def quartic(z: Tensor, target: Tensor) -> Tensor:
    """log cosh, a smooth loss that is not among ours; its gradient is tanh, H = 1."""
    e = z - target
    return (e.abs() + torch.nn.functional.softplus(-2 * e.abs()) - math.log(2)).sum(dim=1)


def test_a_loss_of_your_own(rng: torch.Generator) -> None:
    loss = CallableLoss(quartic, H=1.0)
    v, target = 4 * torch.randn(2, N, K, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(loss.gradient(v, target), torch.tanh(v - target))
    for r in (0.01, 1.0, torch.rand(N, 1, generator=rng, dtype=torch.float64) + 0.05):
        z = loss.prox(v, target, r)
        assert (torch.tanh(z - target) + r * (z - v)).abs().max() < 1e-6
    summed = CallableLoss(lambda z, t: quartic(z, t).sum(), H=1.0)
    torch.testing.assert_close(Risk(summed, target).prox(v, 0.5), Risk(loss, target).prox(v, 0.5))
    mean = torch.full((N, 1), 1 / N, dtype=torch.float64)
    torch.testing.assert_close(Risk(summed, target, mean).value(v), Risk(loss, target, mean).value(v))
    with pytest.raises(InputError, match="with unequal row weights it must return one loss per row"):
        Risk(summed, target, torch.arange(N, dtype=torch.float64)[:, None]).value(v)
    with pytest.raises(InputError, match=r"fn must return one loss per row, shape \(40,\), or their sum"):
        CallableLoss(lambda z, t: z - t, H=1.0).rows(v, target)
    with pytest.raises(InputError, match="cannot be written to a file"):
        loss.to_spec()
    assert torch.equal(loss.decision(v), v)


def test_a_wrong_H_is_survived(rng: torch.Generator) -> None:
    """Steps for a twentieth of the true constant diverge; the value tells, and they are shortened."""
    loss = CallableLoss(lambda z, t: 5 * (z - t).square().sum(dim=1), H=0.5)
    v, target = torch.randn(2, N, K, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(loss.prox(v, target, 1.0), (10 * target + v) / 11, rtol=1e-7, atol=1e-7)


def test_fista_reports_what_happened() -> None:
    curvature = torch.logspace(0, 4, 30, dtype=torch.float64)[:, None]
    target = torch.ones(30, 1, dtype=torch.float64)

    def value_grad(x: Tensor) -> tuple[Tensor, Tensor]:
        return (curvature * (x - target).square()).sum() / 2, curvature * (x - target)

    good = fista(value_grad, torch.zeros(30, 1, dtype=torch.float64), 1e4, 1.0, tol=1e-9, max_iter=5000)
    assert good.converged
    assert good.residual <= 1e-9
    assert (good.x - 1).abs().max() < 1e-4
    short = fista(value_grad, torch.zeros(30, 1, dtype=torch.float64), 1e4, 1.0, tol=1e-9, max_iter=10)
    assert not short.converged
    assert short.iterations == 10
    assert 1e-9 < short.residual <= 1
    there = fista(value_grad, target, 1e4, 1.0, tol=1e-9, max_iter=10)
    assert there.converged
    assert there.iterations == 0


def test_decisions_and_probabilities() -> None:
    z = torch.tensor([[2.0, -1.0, 0.5], [-3.0, -2.0, -5.0]])
    for loss in (CrossEntropy(), BinaryLogistic(), SquaredHinge()):
        assert loss.decision(z).tolist() == [0, 1]
        p = loss.probabilities(z)
        torch.testing.assert_close(p.sum(dim=1), torch.ones(2))
        assert (p >= 0).all()
    for loss in (BinaryLogistic(), SquaredHinge()):
        column = torch.tensor([[0.4], [-0.4]])
        assert loss.decision(column).tolist() == [1, 0]
        p = loss.probabilities(column)
        assert p.shape == (2, 2)
        assert p.argmax(dim=1).tolist() == [1, 0]
        torch.testing.assert_close(p.sum(dim=1), torch.ones(2))
    assert torch.equal(Squared().decision(z), z)
    with pytest.raises(InputError, match="no class probabilities"):
        Squared().probabilities(z)


def test_targets() -> None:
    labels = torch.tensor([0, 2, 1])
    eye = torch.eye(3)[labels]
    assert torch.equal(CrossEntropy().encode(labels, 3, torch.float32), eye)
    assert torch.equal(CrossEntropy().encode(labels.double()[:, None], 3, torch.float32), eye)
    assert torch.equal(CrossEntropy().encode(eye, 3, torch.float32), eye)
    assert torch.equal(BinaryLogistic().encode(labels, 3, torch.float32), eye)
    assert torch.equal(SquaredHinge().encode(labels, 3, torch.float32), 2 * eye - 1)
    assert SquaredHinge().encode(torch.tensor([True, False]), 1, torch.float64).tolist() == [[1.0], [-1.0]]
    assert BinaryLogistic().encode(torch.tensor([1, 0]), 1, torch.float64).tolist() == [[1.0], [0.0]]
    assert Squared().encode(torch.tensor([1, 2]), 1, torch.float32).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("loss", "y", "n_outputs", "words"),
    [
        ("cross_entropy", torch.tensor([0, 3]), 3, "class labels from 0 to 2; got 0 to 3"),
        ("cross_entropy", torch.tensor([-1, 1]), 3, "class labels from 0 to 2; got -1 to 1"),
        ("cross_entropy", torch.tensor([0.5, 1.0]), 3, "whole numbers as class labels"),
        ("cross_entropy", torch.tensor([math.nan, 1.0]), 3, "whole numbers as class labels"),
        ("cross_entropy", torch.tensor([0, 1]), 1, "needs n_outputs >= 2; got 1"),
        ("cross_entropy", torch.ones(2, 4), 3, "y must have shape (N, 3); got (2, 4)"),
        ("cross_entropy", torch.ones(2, 3), 3, "rows that sum to 1"),
        ("cross_entropy", torch.full((2, 3), 0.3), 3, "rows that sum to 1"),
        ("cross_entropy", torch.full((2, 3), math.nan), 3, "rows that sum to 1"),
        ("binary_logistic", torch.tensor([0, 2]), 1, "numbers from 0 to 1"),
        ("binary_logistic", torch.tensor([math.nan, 0.0]), 1, "numbers from 0 to 1"),
        ("binary_logistic", torch.ones(2, 2), 3, "y must have shape (N, 3); got (2, 2)"),
        ("squared_hinge", torch.tensor([0.5, 1.0]), 1, "0 and 1 only"),
        ("squared", torch.ones(3), 2, "y must have shape (N, 2); got (3,)"),
        ("squared", torch.ones(3, 2, 2), 2, "y must have shape (N, 2); got (3, 2, 2)"),
        ("squared", torch.tensor([1.0, math.inf]), 1, "y must be finite"),
        ("huber", torch.tensor([1.0, math.nan]), 1, "y must be finite"),
    ],
)
def test_targets_that_cannot_be(loss: str, y: Tensor, n_outputs: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        get_loss(loss).encode(y, n_outputs, torch.float32)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: get_loss("hinge"),
            InputError,
            "unknown loss 'hinge'; known: absolute, binary_logistic, cross_entropy",
        ),
        (lambda: get_loss(None), InputTypeError, "loss must be a name"),  # type: ignore[arg-type]
        (lambda: Huber(0.0), InputError, "delta must be a finite number > 0; got 0.0"),
        (lambda: CallableLoss(quartic, H=-1.0), InputError, "H must be a finite number > 0; got -1.0"),
        (lambda: CallableLoss(3, H=1.0), InputTypeError, "fn must be a function"),  # type: ignore[arg-type]
        (lambda: CallableLoss(quartic, 1.0, "ranking"), InputError, "kind must be"),  # type: ignore[arg-type]
        (lambda: Risk(Squared(), torch.ones(3, 1), solver="x"), InputError, "solver must be"),  # type: ignore[arg-type]
        (
            lambda: Risk(Squared(), torch.ones(3, 1), torch.ones(3)),
            InputError,
            "weight must have shape (3, 1)",
        ),
    ],
)
def test_errors(make: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        make()  # type: ignore[operator]
    assert words in str(caught.value)


@every
def test_specs_round_trip(loss: Loss) -> None:
    assert get_loss(json.loads(json.dumps(loss.to_spec()))) == loss
    assert get_loss(loss) is loss
    assert LOSSES[loss.name] is type(loss)


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("r", [1e-8, 1e-6, 1e-3, 0.02, 0.1, 1.5, 1e4])
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 1e3])
def test_the_softmax_prox_that_does_not_ask_is_the_one_that_does(classes, r, scale, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    v = scale * torch.randn(200, classes, generator=generator, dtype=torch.float64)
    y = torch.eye(classes, dtype=torch.float64)[torch.randint(0, classes, (200,), generator=generator)]
    asked = softmax_prox(v, y, r)
    monkeypatch.setattr(execution, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(execution, "compiled", lambda function: function)
    how = Execution(compiled=True)
    assert how.avoids_waiting(v)
    torch.testing.assert_close(softmax_prox(v, y, r, how), asked, rtol=1e-12, atol=1e-12 * scale)
