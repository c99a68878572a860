"""Penalties: the prox against brute force and its variational inequality, the subdifferential, the specs."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dladmm.base.errors import InputError, InputTypeError
from dladmm.regularizers import (
    L1,
    L2,
    L4,
    REGULARIZERS,
    ElasticNet,
    NonNegative,
    NoPenalty,
    Regularizer,
    Signed,
    get_regularizer,
)

EVERY: list[Regularizer] = [
    NoPenalty(), L2(0.7), L2(0.0), L1(0.4), L1(0.0),
    ElasticNet(0.3, 0.5), ElasticNet(0.0, 0.5), NonNegative(),
]  # fmt: skip
every = pytest.mark.parametrize("penalty", EVERY, ids=str)
entries = st.lists(st.floats(-5, 5), min_size=6, max_size=6)
steps = st.floats(1e-3, 1e3)


def matrix(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(2, 3)


@every
@given(values=entries, step=steps)
def test_prox_is_no_worse_than_any_point_of_a_grid(
    penalty: Regularizer, values: list[float], step: float
) -> None:
    W = matrix(values)
    prox = penalty.prox(W, step)
    grid = torch.cat([torch.linspace(-6, 6, 49, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])

    def objective(x: torch.Tensor, w: torch.Tensor) -> float:
        return float(penalty.value(x)) + float((x - w).square().sum()) / (2 * step)

    for w, x in zip(W.reshape(-1), prox.reshape(-1), strict=True):
        best = min(objective(point, w) for point in grid)
        near = min(objective(x + delta, w) for delta in (-1e-3, 1e-3))
        assert objective(x, w) <= min(best, near) * (1 + 1e-12) + 1e-12


@every
@given(values=entries, other=entries, step=steps)
def test_prox_satisfies_its_variational_inequality(
    penalty: Regularizer, values: list[float], other: list[float], step: float
) -> None:
    """(W - X)/step is a subgradient at the prox X: Omega(Y) >= Omega(X) + <(W - X)/step, Y - X> for all Y."""
    W, Y = matrix(values), matrix(other)
    X = penalty.prox(W, step)
    linear = ((W - X) / step * (Y - X)).sum()
    assert penalty.value(Y) >= penalty.value(X) + linear - 1e-9 * (1 + linear.abs())


@every
@given(values=entries, step=steps)
def test_stationarity_is_zero_at_the_prox(penalty: Regularizer, values: list[float], step: float) -> None:
    W = matrix(values)
    X = penalty.prox(W, step)
    assert (penalty.stationarity(X, (X - W) / step) <= 1e-12 * (1 + (W / step).abs())).all()


def test_stationarity_by_hand() -> None:
    W, g = torch.tensor([0.0, 0.0, 2.0, -2.0]), torch.tensor([0.5, -3.0, 1.0, 1.0])
    assert L1(1.0).stationarity(W, g).tolist() == [0.0, 2.0, 2.0, 0.0]
    assert L2(1.0).stationarity(W, g).tolist() == [0.5, 3.0, 3.0, 1.0]
    assert ElasticNet(1.0, 1.0).stationarity(W, g).tolist() == [0.0, 2.0, 4.0, 2.0]
    assert NoPenalty().stationarity(W, g).tolist() == [0.5, 3.0, 1.0, 1.0]
    assert NonNegative().stationarity(W, g).tolist() == [0.0, 3.0, 1.0, math.inf]


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_and_tensor_steps(penalty: Regularizer, dtype: torch.dtype, rng: torch.Generator) -> None:
    W = torch.randn(4, 3, generator=rng, dtype=torch.float64).to(dtype)
    kept = W.clone()
    X = penalty.prox(W, torch.tensor(0.3, dtype=torch.float64))
    assert X.dtype == dtype
    torch.testing.assert_close(X, penalty.prox(W, 0.3))
    assert penalty.value(X).dtype == torch.float64
    assert penalty.value(X).shape == ()
    assert penalty.stationarity(X, W).shape == W.shape
    assert torch.equal(W, kept)


def test_values() -> None:
    W = torch.tensor([[1.0, -2.0], [0.0, 3.0]])
    assert NoPenalty().value(W) == 0
    assert L2(0.5).value(W) == 3.5
    assert L1(0.5).value(W) == 3.0
    assert ElasticNet(1.0, 2.0).value(W) == 20.0
    assert NonNegative().value(W) == math.inf
    assert NonNegative().value(W.abs()) == 0


@pytest.mark.parametrize(
    ("penalty", "quadratic", "coercive"),
    [
        (NoPenalty(), 0.0, False),
        (L2(0.7), 0.7, True),
        (L2(0.0), 0.0, False),
        (L1(0.4), None, True),
        (L1(0.0), 0.0, False),
        (ElasticNet(0.3, 0.5), None, True),
        (ElasticNet(0.0, 0.5), 0.5, True),
        (NonNegative(), None, False),
    ],
)
def test_what_the_solvers_ask(penalty: Regularizer, quadratic: float | None, coercive: bool) -> None:
    assert penalty.quadratic == quadratic
    assert penalty.coercive is coercive


@every
def test_specs_round_trip(penalty: Regularizer) -> None:
    assert get_regularizer(json.loads(json.dumps(penalty.to_spec()))) == penalty
    assert get_regularizer(penalty) is penalty


def test_names() -> None:
    assert get_regularizer(None) == NoPenalty()
    assert get_regularizer({"name": "l2", "strength": 0.3}) == L2(0.3)
    for name, cls in REGULARIZERS.items():
        assert type(get_regularizer(name)) is cls


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("l3", InputError, "unknown regularizer 'l3'; known: elastic_net, l1, l2, l4, non_negative, none"),
        ({"name": "l2", "lambda": 1.0}, InputError, "'l2' has no parameter 'lambda'; allowed: strength"),
        ({"name": "l2", "strength": -1.0}, InputError, "strength must be a finite number >= 0; got -1.0"),
        ({"name": "l1", "strength": math.inf}, InputError, "strength must be a finite number >= 0; got inf"),
        ({"name": "elastic_net", "l1": -1}, InputError, "l1 must be a finite number >= 0; got -1"),
        ({"name": "elastic_net", "l2": None}, InputTypeError, "l2 must be a number; got None"),
        (0.1, InputTypeError, "regularizer must be a name"),
    ],
)
def test_errors(spec: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        get_regularizer(spec)  # type: ignore[arg-type]
    assert words in str(caught.value)


@pytest.mark.parametrize("penalty", [NoPenalty(), L2(0.7), L1(0.4), ElasticNet(0.3, 0.5)])
@pytest.mark.parametrize("sign", [-1.0, 0.0, 1.0])
def test_signed_is_the_constrained_argmin(penalty, sign):
    """Against brute force on a grid; and a point is stationary exactly where it is the argmin."""
    signed, step = Signed(torch.tensor([[sign]]), penalty), 0.8
    grid = torch.linspace(-3, 3, 3001, dtype=torch.float64)
    omega = torch.stack([signed.value(x.reshape(1, 1)) for x in grid])
    assert torch.isinf(omega[grid * sign < 0]).all()
    for w in (-2.0, -0.1, 0.0, 0.3, 1.7):
        found = signed.prox(torch.tensor([[w]], dtype=torch.float64), step)
        best = grid[(omega + (grid - w) ** 2 / (2 * step)).argmin()]
        assert abs(found.item() - best.item()) <= 2.1e-3
        assert signed.stationarity(found, (found - w) / step).item() <= 1e-12
        off = found + 0.5 * (1.0 if sign >= 0 else -1.0)
        assert signed.stationarity(off, (off - w) / step).item() > 0.1
    assert signed.times(0.5).penalty == penalty.times(0.5)
    assert signed.turned(torch.tensor([[-2.0]])).item() == (2.0 if sign > 0 else -2.0)


@given(values=entries, other=entries, step=steps)
def test_l4_prox_satisfies_its_variational_inequality_and_is_stationary(
    values: list[float], other: list[float], step: float
) -> None:
    penalty, W, Y = L4(0.7), matrix(values), matrix(other)
    X = penalty.prox(W, step)
    linear = ((W - X) / step * (Y - X)).sum()
    assert penalty.value(Y) >= penalty.value(X) + linear - 1e-9 * (1 + linear.abs())
    assert (penalty.stationarity(X, (X - W) / step) <= 1e-9 * (1 + (W / step).abs().max())).all()


def test_l4_is_half_the_norm_of_the_squares_and_its_gradient_that_of_autograd() -> None:
    penalty, W = L4(3.0), torch.tensor([[1.0, -2.0], [0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    value = penalty.value(W)
    assert float(value.detach()) == pytest.approx(1.5 * (1 + 16 + 0.0625) ** 0.5)
    value.backward()
    torch.testing.assert_close(penalty.gradient(W.detach()), W.grad)
    assert not penalty.gradient(torch.zeros(2, 2)).any()
    assert (penalty.quadratic, penalty.coercive, L4(0.0).quadratic, L4(0.0).coercive) == (
        None,
        True,
        0.0,
        False,
    )
    torch.testing.assert_close(penalty.times(0.5).value(W), value / 2)
    assert penalty.prox(torch.zeros(2, 2), 1.0).equal(torch.zeros(2, 2))
    single = L4(3.0).prox(torch.tensor([[2.0]]), 0.5)  # one entry: (3/2) x^2, an l2 penalty
    torch.testing.assert_close(single, torch.tensor([[2.0 / 2.5]]))


@pytest.mark.parametrize("penalty", [NoPenalty(), L2(0.7), L4(0.3)], ids=str)
def test_penalties_that_have_a_gradient(penalty: Regularizer) -> None:
    W = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    assert penalty.has_gradient
    assert not penalty.stationarity(W, -penalty.gradient(W)).any()


def test_penalties_with_kinks_have_none() -> None:
    with pytest.raises(NotImplementedError, match="l1 has no gradient"):
        L1(0.1).gradient(torch.ones(1, 1))


def test_a_sign_takes_up_the_gradients_that_push_outside_alone():
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    W = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 2.0, -2.0], dtype=torch.float64)
    g = torch.tensor([3.0, -3.0, 3.0, -3.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    expected = [0.0, 3.0, 3.0, 0.0, 3.0, 3.0, float("inf")]
    assert Signed(signs).stationarity(W, g).tolist() == expected
