"""Every activation: its argmin is global and stationary, its derivative, module and spec are right."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dladmm.activations import (
    ACTIVATIONS,
    ELU,
    GELU,
    Activation,
    LeakyReLU,
    Quantised,
    Sigmoid,
    Sign,
    Smooth,
    Softplus,
    Step,
    Tanh,
    from_module,
    get_activation,
)
from dladmm.base.errors import InputError, InputTypeError
from dladmm.network.monotone import never_falls

EVERY: list[Activation] = [
    *(get_activation(name) for name in ACTIVATIONS),
    LeakyReLU(0.3),
    LeakyReLU(0.0),
    LeakyReLU(-0.5),
    LeakyReLU(3.0),
    ELU(0.3),
    ELU(4.0),
    Quantised(2, -1.0, 1.0),
    Quantised(7, -2.0, 3.0),
]
every = pytest.mark.parametrize("f", EVERY, ids=str)
numbers = st.one_of(
    st.floats(-3, 3), st.floats(-60, 60), st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, -1.0])
)
weights = st.sampled_from([1.0, 0.01, 0.5, 30.0, 1000.0])


def objective(f: Activation, z: Tensor, m: Tensor, a: Tensor, weight: float) -> Tensor:
    """In float64, with f evaluated in the dtype of z as the library does."""
    return (z.double() - m.double()).square() + weight * (a.double() - f(z).double()).square()


def candidates(f: Activation, m: Tensor, a: Tensor, weight: float) -> Tensor:
    """Points on both sides of every (m, a), where f bends, and around its breakpoints; one row a point."""
    reach = math.sqrt(weight) * (a.double() - f(m).double()).abs()
    wide = m.double()[:, None] + reach[:, None] * torch.linspace(-1, 1, 1001, dtype=torch.float64)
    bends = torch.linspace(-40, 40, 4001, dtype=torch.float64)
    near = m.double()[:, None] + torch.linspace(-3, 3, 1201, dtype=torch.float64)
    breaks = torch.tensor([p.start for p in f.pieces()[1:]] if hasattr(f, "pieces") else [0.0])
    ends = torch.cat([breaks.double() + d for d in (0.0, -1e-7, 1e-7, -1e-12, 1e-12)])
    fixed = torch.cat([bends, ends]).expand(len(m), -1)
    return torch.cat([wide, near, fixed], dim=1).to(m.dtype)


def slack(f: Activation, z: Tensor, m: Tensor, a: Tensor, weight: float, value: Tensor) -> Tensor:
    """What rounding z and f(z) to the dtype may cost in the objective."""
    eps = torch.finfo(z.dtype).eps
    scale = z.double().abs() + m.double().abs() + math.sqrt(weight) * (a.double().abs() + f(z).double().abs())
    return 4 * eps * scale * (value.sqrt() + eps * scale) + 1e-30


def assert_global(f: Activation, m: Tensor, a: Tensor, weight: float) -> None:
    z = f.argmin(m, a, weight)
    assert z.dtype == m.dtype
    assert torch.isfinite(z).all()
    value = objective(f, z, m, a, weight)
    grid = candidates(f, m, a, weight)
    best = objective(f, grid, m[:, None], a[:, None], weight).min(dim=1).values
    excess = value - best - slack(f, z, m, a, weight, best)
    worst = int(excess.argmax())
    assert excess[worst] <= 1e-9 * best[worst], (f, m[worst], a[worst], z[worst], value[worst], best[worst])


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("weight", [1.0, 0.01, 30.0, 1000.0])
def test_argmin_is_global(f: Activation, dtype: torch.dtype, weight: float, rng: torch.Generator) -> None:
    for scale in (1.0, 6.0, 100.0, 1e6):
        m, a = (scale * torch.randn(2, 150, dtype=torch.float64, generator=rng)).to(dtype)
        assert_global(f, m, a, weight)


@every
@given(
    m=st.lists(numbers, min_size=8, max_size=8), a=st.lists(numbers, min_size=8, max_size=8), weight=weights
)
def test_argmin_is_global_for_any_numbers(
    f: Activation, m: list[float], a: list[float], weight: float
) -> None:
    assert_global(f, torch.tensor(m, dtype=torch.float64), torch.tensor(a, dtype=torch.float64), weight)


@every
def test_argmin_at_ties_and_breakpoints(f: Activation) -> None:
    values = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1 / 6, 0.5, 1.0, 2.0], dtype=torch.float64)
    m, a = torch.cartesian_prod(values, values).T
    assert_global(f, m, a, 1.0)


@every
@pytest.mark.parametrize("weight", [1.0, 30.0])
def test_argmin_is_stationary(f: Activation, weight: float, rng: torch.Generator) -> None:
    for dtype, tol in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        for scale in (1.0, 5.0, 50.0):
            m, a = (scale * torch.randn(2, 2000, dtype=torch.float64, generator=rng)).to(dtype)
            z = f.argmin(m, a, weight)
            size = 1 + z.abs() + m.abs() + weight * f.derivative(z).abs() * (a.abs() + f(z).abs())
            if isinstance(f, GELU):  # at its lowest point rounding z moves the slope by f''
                size += weight * a.abs()
            assert (f.stationarity(z, m, a, weight) <= tol * size).all()


@every
def test_stationarity_sees_a_point_that_is_not(f: Activation) -> None:
    z = torch.tensor([0.3, -0.7], dtype=torch.float64)
    m, a = z + 2, f(z)
    torch.testing.assert_close(f.stationarity(z, m, a), torch.full_like(z, 2.0))


def test_stationarity_at_kinks_and_jumps() -> None:
    zero, two = torch.zeros(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    relu, sign = get_activation("relu"), get_activation("sign")
    assert relu.stationarity(zero, two, -3 * two).item() == 0  # slopes -2 and 4: zero lies between
    assert relu.stationarity(zero, -two, two).item() == 0  # slopes 2 and 0, a concave kink
    assert relu.stationarity(zero, -two, two / 2).item() == 1  # slopes 2 and 1
    assert sign.stationarity(zero, -two, two).item() == 0  # the level on the right is nearer: may not go left
    assert sign.stationarity(zero, -two, -two).item() == 2  # the level on the left is nearer
    assert sign.stationarity(zero, two, two).item() == 2  # m lies on the same step


@pytest.mark.parametrize("f", [f for f in EVERY if never_falls(f)], ids=str)
@given(data=st.data(), weight=weights)
def test_argmin_is_monotone(f: Activation, data: st.DataObject, weight: float) -> None:
    """For increasing f the objective has increasing differences: larger m or a, no smaller z."""
    m, a = data.draw(numbers), data.draw(numbers)
    steps = torch.tensor([0.0, 1e-3, 0.1, 1.0, 10.0], dtype=torch.float64)
    fixed = torch.zeros_like(steps)
    for z in (f.argmin(m + steps, a + fixed, weight), f.argmin(m + fixed, a + steps, weight)):
        assert (z.diff() >= -1e-9 * (1 + z[1:].abs())).all()


def test_relu_is_the_closed_form_of_the_paper(rng: torch.Generator) -> None:
    m, a = 3 * torch.randn(2, 5000, dtype=torch.float64, generator=rng)
    relu = get_activation("relu")
    off, on = m.clamp(max=0), ((m + a) / 2).clamp(min=0)
    paper = torch.where(objective(relu, on, m, a, 1.0) < objective(relu, off, m, a, 1.0), on, off)
    torch.testing.assert_close(relu.argmin(m, a), paper)


@pytest.mark.parametrize("f", [Sigmoid(), Tanh(), Softplus()], ids=str)
def test_both_minima_are_compared(f: Smooth) -> None:
    """On both sides of a jump of the minimiser: along a row of m it must be crossed, once."""
    a = torch.full((20001,), 30.0, dtype=torch.float64)
    m = torch.linspace(-60, 0, 20001, dtype=torch.float64)
    z = f.argmin(m, a)
    jumps = z.diff() > 1
    assert jumps.sum() == 1
    i = int(jumps.nonzero())
    here, there = objective(f, z[i : i + 2], m[i : i + 2], a[:2], 1.0)
    torch.testing.assert_close(here, there, rtol=1e-3, atol=0)


@every
def test_derivative(f: Activation, rng: torch.Generator) -> None:
    z = 3 * torch.randn(500, dtype=torch.float64, generator=rng)
    if not f.continuous:
        assert (f.derivative(z) == 0).all()
        return
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f.module()(leaf).sum(), leaf)
    torch.testing.assert_close(f.derivative(z), gradient)
    central = (f(z + 1e-6) - f(z - 1e-6)) / 2e-6
    torch.testing.assert_close(f.derivative(z), central, rtol=1e-5, atol=1e-6)


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_module_computes_the_same(f: Activation, dtype: torch.dtype, rng: torch.Generator) -> None:
    z = torch.cat([torch.linspace(-50, 50, 2001), torch.tensor([0.0, -0.0, 1.0, -1.0, 1 / 6, 0.5])]).to(dtype)
    module = f.module()
    torch.testing.assert_close(module(z), f(z), rtol=0, atol=0)
    assert not module.state_dict()
    assert from_module(module) == f or (isinstance(f, Quantised) and f.levels == 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("f", [f for f in EVERY if not f.continuous], ids=str)
def test_our_own_modules_can_be_scripted(f: Activation) -> None:
    z = torch.linspace(-2, 2, 801)
    assert torch.equal(torch.jit.script(f.module())(z), f(z))


def test_from_module_declines_what_it_does_not_know() -> None:
    assert from_module(torch.nn.Linear(2, 2)) is None
    assert from_module(torch.nn.Hardtanh(0.0, 6.0)) is None
    assert from_module(torch.nn.ReLU6()) is None
    assert from_module(torch.nn.Softplus(beta=2.0)) is None
    assert from_module(torch.nn.Softplus()) == Softplus()


@every
def test_specs_round_trip(f: Activation) -> None:
    assert get_activation(json.loads(json.dumps(f.to_spec()))) == f
    assert get_activation(f) is f


@every
def test_inputs_are_left_alone(f: Activation, rng: torch.Generator) -> None:
    m, a = 4 * torch.randn(2, 200, generator=rng)
    kept = m.clone(), a.clone()
    z = f.argmin(m, a)
    before = z.clone()
    f(z), f.derivative(z), f.stationarity(z, m, a)
    assert torch.equal(m, kept[0])
    assert torch.equal(a, kept[1])
    assert torch.equal(z, before)


@every
def test_shapes(f: Activation, rng: torch.Generator) -> None:
    m, a = torch.randn(2, 6, 5, generator=rng)
    z = f.argmin(m, a)
    assert z.shape == (6, 5)
    assert torch.equal(f.argmin(m.T, a.T), z.T)
    assert f.argmin(m[:0], a[:0]).shape == (0, 5)


def test_conventions_at_jumps() -> None:
    zero = torch.zeros(1)
    assert Sign()(zero).item() == 1
    assert Step()(zero).item() == 1
    assert Quantised(3)(torch.tensor([0.25, 0.2499, -7.0, 7.0])).tolist() == [0.5, 0.0, 0.0, 1.0]
    z = Sign().argmin(torch.tensor([0.1]), torch.tensor([-1.0]))
    assert z.item() < 0 < 1e-30 + z.item()
    assert Sign()(z).item() == -1


@pytest.mark.parametrize(
    "jump", [Sign(), Step(), Quantised(2, 0.15, 0.7), Quantised(2, -1.0, 3.0), Quantised(3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_are_hit_without_rounding(jump, dtype) -> None:
    """Also where ``low + (high - low)`` is not high: 0.15 and 0.7 in float32."""
    z = torch.linspace(-2, 2, 41, dtype=dtype)
    levels = torch.tensor([piece.intercept for piece in jump.pieces()], dtype=dtype)
    assert torch.equal(jump(z), jump.module()(z))
    assert torch.equal(jump.write(z, torch.empty_like(z)).unique(), levels)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("rleu", InputError, "unknown activation 'rleu'; known: elu, gelu, hard_tanh, identity"),
        ({"name": "relu", "slope": 1.0}, InputError, "'relu' has no parameter 'slope'; allowed: none"),
        ({"name": "leaky_relu", "slop": 1.0}, InputError, "no parameter 'slop'; allowed: slope"),
        ({"slope": 1.0}, InputTypeError, "activation must be a name"),
        (3, InputTypeError, "activation must be a name"),
        ({"name": "leaky_relu", "slope": math.nan}, InputError, "slope must be a finite number; got nan"),
        ({"name": "leaky_relu", "slope": "0.1"}, InputTypeError, "slope must be a number; got '0.1'"),
        ({"name": "elu", "alpha": 0.0}, InputError, "alpha must be a finite number > 0; got 0.0"),
        ({"name": "quantised", "levels": 1}, InputError, "levels must be >= 2; got 1"),
        ({"name": "quantised", "levels": 2.0}, InputTypeError, "levels must be a whole number; got 2.0"),
        ({"name": "quantised", "low": 1.0}, InputError, "low must be < high; got low=1.0, high=1.0"),
    ],
)
def test_errors(spec: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        get_activation(spec)  # type: ignore[arg-type]
    assert words in str(caught.value)


@every
@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_weight_must_be_positive(f: Activation, weight: float) -> None:
    with pytest.raises(InputError, match="weight must be a finite number > 0"):
        f.argmin(torch.zeros(1), torch.zeros(1), weight)
