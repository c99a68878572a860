"""Weights in a set that is not convex: the projection against brute force, budgets per unit, names."""

from __future__ import annotations

import itertools

import pytest
import torch

from dladmm.base.errors import InputError, InputTypeError
from dladmm.regularizers import L1, Box, WeightSet, get_weight_set

SETS = {
    "binary": WeightSet(2),
    "ternary": WeightSet(3),
    "two bits": WeightSet(4, scale=3.0),
    "few": WeightSet(per_unit=2),
    "few of three": WeightSet(3, per_unit=1),
    "few of two": WeightSet(2, per_unit=2, scale=0.5),
}
GRIDS = {
    "binary": [-1, 1], "ternary": [-1, 0, 1], "two bits": [-3, -1, 1, 3], "few of three": [-1, 0, 1],
    "few of two": [-0.5, 0, 0.5],
}  # fmt: skip


def rows(n=40, width=3):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1.5


def allowed(name, point):
    budget = SETS[name].per_unit
    return budget is None or sum(x != 0 for x in point) <= budget


@pytest.mark.parametrize("name", GRIDS)
def test_the_projection_is_the_nearest_of_all_points(name):
    W = rows()
    points = [p for p in itertools.product(GRIDS[name], repeat=3) if allowed(name, p)]
    found = SETS[name].prox(W, 0.3)
    best = torch.stack([(W - torch.tensor(p).double()).square().sum(1) for p in points]).amin(0)
    torch.testing.assert_close((W - found).square().sum(1), best)
    assert all(tuple(row) in {tuple(map(float, p)) for p in points} for row in found.tolist())


@pytest.mark.parametrize("name", SETS)
def test_points_of_the_set_stay_and_others_are_infinitely_bad(name):
    found = SETS[name].prox(rows(), 1.0)
    assert torch.equal(SETS[name].prox(found, 1.0), found)
    assert float(SETS[name].value(found)) == 0.0
    assert float(SETS[name].value(rows())) == float("inf")
    stationary = SETS[name].stationarity(found, torch.ones_like(found))
    assert torch.equal(stationary == 0, (found == 0) if name == "few" else torch.ones_like(found).bool())
    assert bool(torch.isinf(SETS[name].stationarity(found + 0.2, found)).any())


def test_whole_numbers():
    W = SETS["two bits"].prox(rows(), 1.0)
    assert sorted(set(SETS["two bits"].whole(W).flatten().tolist())) == [-3, -1, 1, 3]
    assert torch.equal(SETS["two bits"].whole(W).double(), W)
    assert [WeightSet(n).largest for n in (2, 3, 4, 5, 8)] == [1, 1, 3, 2, 7]


def test_a_few_of_the_real_weights_are_the_largest():
    W = torch.tensor([[3.0, -5.0, 4.0], [0.0, 0.0, 1.0]])
    assert SETS["few"].prox(W, 1.0).tolist() == [[0.0, -5.0, 4.0], [0.0, 0.0, 1.0]]


def test_zero_is_plus_one():
    assert WeightSet(2).prox(torch.tensor([0.0, -0.0, -1e-30]), 1.0).tolist() == [1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("spec", "levels", "per_unit"),
    [("binary", 2, None), ("ternary", 3, None), (1, 2, None), (3, 8, None), ({"levels": 3, "per_unit": 7}, 3, 7),
     ("ternary:7", 3, 7), ("real:7", None, 7), ("2:7", 4, 7)],
)  # fmt: skip
def test_names(spec, levels, per_unit):
    found = get_weight_set(spec)
    assert (found.levels, found.per_unit) == (levels, per_unit)
    assert get_weight_set(found.to_spec()) == found


def test_real_weights_have_no_set():
    assert get_weight_set(None) is get_weight_set("real") is None


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("binray", InputError, "unknown weights 'binray'; known: real, binary"),
        (9, InputError, "a number of bits is from 1 to 8"),
        ("9:3", InputError, "a number of bits is from 1 to 8"),
        ("ternary:", InputError, "'ternary:': behind the colon is a whole number"),
        ("ternary:0", InputError, "per_unit must be a whole number >= 1"),
        ("many:3", InputError, "unknown weights 'many'"),
        (True, InputTypeError, "weights must be"),
        (1.5, InputTypeError, "weights must be"),
        ({"levels": 1}, InputError, "levels must be a whole number from 2"),
        ({}, InputError, "needs levels, per_unit or both"),
        ({"budget": 3}, InputError, "no parameter 'budget'"),
    ],
    ids=str,
)
def test_refused(spec, error, message):
    with pytest.raises(error, match=message):
        get_weight_set(spec)


def test_the_box_of_latent_weights():
    W, box = torch.tensor([3.0, -0.5, -3.0]), Box(2.0)
    assert box.prox(W, 1.0).tolist() == box.turned(W).tolist() == [2.0, -0.5, -2.0]
    assert box.beside(L1(0.3)).prox(W, 1.0).tolist() == pytest.approx([2.0, -0.2, -2.0])
    assert (float(box.value(W)), float(box.value(W / 2))) == (float("inf"), 0.0)
    both = box.beside(L1(0.3))
    assert float(both.value(W / 2)) == pytest.approx(float(L1(0.3).value(W / 2)))
    assert both.times(10.0).prox(W, 0.1).tolist() == both.prox(W, 1.0).tolist()
    at = torch.tensor([2.0, 2.0, 0.0])
    assert box.stationarity(at, torch.tensor([-1.0, 1.0, 1.0])).tolist() == [0.0, 1.0, 1.0]
