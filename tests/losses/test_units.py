"""Targets at a common scale: what is folded is undone, wild targets do not set a robust scale."""

from __future__ import annotations

import math

import pytest
import torch

from dladmm.base.errors import InputError
from dladmm.losses import CallableLoss, CrossEntropy, Huber, Squared, Units, foldable
from dladmm.losses.units import robust, standard


@pytest.fixture
def y(rng: torch.Generator) -> torch.Tensor:
    return 3e5 + 2e4 * torch.randn(400, 2, generator=rng, dtype=torch.float64)


def test_standard_units_have_mean_0_and_deviation_1(y: torch.Tensor) -> None:
    scaled = standard(y).apply(y)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(2, dtype=torch.float64))


def test_wild_targets_do_not_set_a_robust_scale(y: torch.Tensor) -> None:
    before = robust(y)
    wild = y.clone()
    wild[:20] = 1e12
    after = robust(wild)
    assert ((after.shift - before.shift).abs() < 0.2 * before.scale).all()
    assert (after.scale < 1.2 * before.scale).all()
    assert (standard(wild).scale > 1e3 * before.scale).all()
    torch.testing.assert_close(before.scale, y.std(0), rtol=0.1, atol=0)


@pytest.mark.parametrize("make", [standard, robust])
def test_weights_count_rows(make, y: torch.Tensor, rng: torch.Generator) -> None:
    weight = torch.randint(1, 4, (len(y), 1), generator=rng).double()
    weighted, repeated = make(y, weight), make(y.repeat_interleave(weight[:, 0].long(), 0))
    torch.testing.assert_close(weighted.shift, repeated.shift)
    torch.testing.assert_close(weighted.scale, repeated.scale)


def test_mostly_equal_targets_have_the_standard_units() -> None:
    y = torch.zeros(100, 1, dtype=torch.float64)
    y[:20, 0] = torch.arange(20) + 1.0
    assert float(robust(y).scale) == float(standard(y).scale) > 0


def test_folding_gives_targets_as_they_came_and_unfolding_is_its_inverse(
    y: torch.Tensor, rng: torch.Generator
) -> None:
    units = robust(y)
    params = [{"W": torch.randn(2, 3, generator=rng).double(), "b": torch.randn(2, generator=rng).double()}]
    a = torch.randn(7, 3, generator=rng).double()
    inside = a @ params[0]["W"].T + params[0]["b"]
    (folded,) = units.fold(params)
    torch.testing.assert_close(a @ folded["W"].T + folded["b"], units.shift + units.scale * inside)
    (back,) = units.unfold([folded])
    torch.testing.assert_close(back["W"], params[0]["W"])
    torch.testing.assert_close(back["b"], params[0]["b"], rtol=1e-6, atol=1e-6)


def test_a_constant_target_is_zero_inside_and_itself_outside() -> None:
    y = torch.full((30, 1), 7.3, dtype=torch.float64)
    for units in (standard(y), robust(y)):
        assert (units.apply(y) == 0).all()
        (folded,) = units.fold([{"W": torch.ones(1, 2).double(), "b": torch.ones(1).double()}])
        assert (folded["W"] == 0).all()
        torch.testing.assert_close(folded["b"], y[0])


def test_units_that_the_network_cannot_hold_are_refused() -> None:
    units = Units(torch.tensor([1e300], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64))
    with pytest.raises(InputError, match=r"too large for torch\.float32"):
        units.check(torch.float32)
    assert units.check(torch.float64) is units


def test_which_losses_have_units(y: torch.Tensor) -> None:
    assert CrossEntropy().units(y) is None
    assert torch.equal(Squared().units(y).scale, standard(y).scale)
    assert torch.equal(Huber().units(y).scale, robust(y).scale)
    of_residuals = CallableLoss(lambda z, y: ((z - y) ** 2).sum(1), H=2.0)
    assert torch.equal(of_residuals.units(y).scale, standard(y).scale)
    of_counts = CallableLoss(lambda z, y: (z.exp() - y * z).sum(1), H=2.0)
    assert of_counts.units(y) is None
    assert not math.isinf(float(robust(y).scale[0]))


def test_only_an_affine_layer_with_a_bias_can_be_folded_into() -> None:
    W, b = torch.ones(2, 3), torch.ones(2)
    assert foldable({"W": W, "b": b}, 2)
    assert not foldable({"W": W}, 2)
    assert not foldable({}, 2)
    assert not foldable({"W": W, "b": b}, 3)


def test_a_robust_scale_that_is_rounding_alone_is_not_taken() -> None:
    """More than half of the targets are equal but for their last digits: the scale is the standard one."""
    y = torch.tensor([1 + 1e-14, 1 - 1e-14, 1 + 3e-14, 1 - 2e-14, 1.0, 5.0, -7.0], dtype=torch.float64)[
        :, None
    ]
    found, known = robust(y), standard(y)
    assert torch.equal(found.scale, known.scale)
    assert torch.equal(found.shift, known.shift)
