"""When Property 1 is guaranteed, and when the limit-point theorem is claimed: biases, penalties, ties."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import dladmm
from dladmm import verify
from dladmm.activations import LeakyReLU, get_activation
from dladmm.base.errors import InputError
from dladmm.engine.certificate import Certificate

L2 = {"name": "l2", "strength": 0.1}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    return rng.normal(size=(40, 4)), np.arange(40) % 3


def trained(rows, bias=True, activation="relu", **options):
    from dladmm.blocks import Affine, Elementwise
    from dladmm.network.chain import Chain

    chain = Chain([Affine(4, 6, bias), Elementwise(activation), Affine(6, 3, bias)])
    settings = {"mode": "convergent", "max_iter": 8, "dtype": "float64", "device": "cpu"}
    return dladmm.train(chain, *rows, **settings | options)


def test_the_objective_is_not_coercive_with_biases():
    """Adding t to every entry of the last bias changes no softmax, and no penalty on W."""
    z = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 0, 1])
    far = torch.nn.functional.cross_entropy(z + 1e9, y)
    assert float(far) == pytest.approx(float(torch.nn.functional.cross_entropy(z, y)), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "guaranteed"),
    [
        ({"regularizer": L2}, False),
        ({"regularizer": L2, "bias": False}, True),
        ({"regularizer": L2, "penalise_bias": True}, True),
        ({"bias": False}, False),
    ],
    ids=["biases without a penalty", "no biases", "biases penalised too", "no penalty"],
)
def test_property_1_is_guaranteed_only_where_everything_is_penalised(rows, options, guaranteed):
    result = trained(rows, **options)
    text = str(result.certificate)
    assert result.certificate.certified
    assert ("guaranteed by the penalty on all parameters" in text) is guaranteed
    assert ("Limit points exist" in text) is guaranteed
    if not guaranteed:
        assert "Property 1 (bounded): largest entry" in text
        assert "observed" in text


def test_a_penalty_on_the_biases_is_part_of_the_problem(rows, tmp_path):
    result = trained(rows, regularizer={"name": "l2", "strength": 2.0}, penalise_bias=True, max_iter=40)
    assert result.certificate.certified
    plain = trained(rows, regularizer={"name": "l2", "strength": 2.0}, max_iter=40)
    sizes = [max(float(b.abs().max()) for b in run.state.b) for run in (result, plain)]
    assert sizes[0] < 0.8 * sizes[1]
    penalty = sum(float(p.square().sum()) for block in result.state.params for p in block.values())
    assert result.history.last("penalty") == pytest.approx(penalty)
    X, y = rows
    result.certificate.save(tmp_path / "a.certificate")
    tensors, claims = verify.read(str(tmp_path / "a.certificate"))
    assert verify.verify(tensors, claims, {"X": X, "y": y}).accepted
    del claims["options"]["subproblems"]["penalise_bias"]
    claims["digest"] = verify.digest_of(claims)
    assert not verify.verify(tensors, claims, {"X": X, "y": y}).accepted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalise_bias": True}, "penalise_bias is for an l2 penalty"),
        ({"penalise_bias": True, "regularizer": "l1"}, "penalise_bias is for an l2 penalty"),
        ({"penalise_bias": True, "regularizer": L2, "mode": "accelerated"}, "mode='convergent'"),
        ({"penalise_bias": 1}, "penalise_bias must be True or False"),
    ],
)
def test_what_penalise_bias_refuses(rows, options, message):
    with pytest.raises(InputError, match=message):
        trained(rows, **options)


def test_penalise_bias_is_refused_by_other_layers():
    X, y = np.zeros((6, 1, 4, 4)), np.arange(6) % 2
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    with pytest.raises(InputError, match="penalise_bias is for networks of linear layers"):
        dladmm.train(network, X, y, mode="convergent", regularizer=L2, penalise_bias=True, device="cpu")


def test_old_certificates_claim_less_than_they_did(rows):
    found = trained(rows, regularizer=L2, bias=False).certificate.to_dict()
    for name in ("all_penalised", "tie_margin"):
        del found[name]
    text = str(Certificate.from_dict(json.loads(json.dumps(found))))
    assert "guaranteed by the penalty" not in text
    assert "Nothing is claimed of limit points" in text


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hard_tanh"])
def test_a_tie_of_the_argmin_has_margin_zero(name):
    """Where two z are equally good: found by bisection along m, where the argmin jumps."""
    f = get_activation(name)
    a = torch.tensor([2.0], dtype=torch.float64)
    low, high = torch.tensor([-9.0], dtype=torch.float64), torch.tensor([-0.01], dtype=torch.float64)
    side = f.argmin(low, a) < -0.5
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if bool((f.argmin(middle, a) < -0.5) == side) else (low, middle)
    jump = float((f.argmin(low - 1e-12, a) - f.argmin(high + 1e-12, a)).abs())
    assert jump > 0.1
    at = f.tie_margin(low, a)
    assert at is not None
    assert at < 1e-9
    away = f.tie_margin(low - 0.5, a)
    assert away is not None
    assert away > 0.01


def test_the_margin_is_that_of_the_entry_nearest_to_a_tie_by_hand():
    """relu with weight w: the minimisers on its two pieces are min(m, 0) and max((m + w a)/(1 + w), 0)."""
    generator, w = torch.Generator().manual_seed(0), 1.7
    m, a = (torch.randn(3000, generator=generator, dtype=torch.float64) for _ in range(2))
    m, a = m.repeat(8), a.repeat(8)  # several parts

    def cost(z: torch.Tensor) -> torch.Tensor:
        return (z - m).square() + w * (a - z.clamp_min(0)).square()

    left, right = m.clamp_max(0), ((m + w * a) / (1 + w)).clamp_min(0)
    apart = (left - right).square()
    expected = ((cost(left) - cost(right)).abs() / apart)[apart > 0].min()
    assert get_activation("relu").tie_margin(m, a, w) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("weight", [0.01, 1.0, 30.0])
def test_the_closed_form_of_relu_is_that_of_its_pieces(weight):
    """Entry by entry, with the general rule for pieces as the reference; leaky_relu of slope 0 is relu."""
    values = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for m, a in torch.cartesian_prod(values, values).unbind(0):
        found, expected = (get_activation(f).tie_margin(m, a, weight) for f in ("relu", LeakyReLU(0.0)))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (m, a)


def test_margins_that_need_no_measuring_or_cannot_be_measured():
    m, a = torch.tensor([1.0]), torch.tensor([-1.0])
    assert get_activation("identity").tie_margin(m, a) == math.inf
    assert get_activation("relu").tie_margin(m, a) >= 1  # a <= 0: its argmin does not jump there
    assert get_activation("tanh").tie_margin(m, a) is None
    assert get_activation("sign").tie_margin(m, a) is None


def test_limit_points_are_claimed_with_the_margin_that_was_measured(rows):
    certificate = trained(rows, regularizer=L2, bias=False).certificate
    assert certificate.tie_margin is not None
    assert certificate.tie_margin > 0
    assert f"keep from ties as now (by {certificate.tie_margin:.1g})" in str(certificate)
    linear = trained(rows, regularizer=L2, bias=False, activation="identity").certificate
    assert linear.tie_margin == math.inf
    assert "Limit points exist and are critical points (Theorem 2)." in str(linear)
    smooth = trained(rows, regularizer=L2, bias=False, activation="tanh").certificate
    assert "Nothing is claimed of limit points" in str(smooth)
    at_a_tie = Certificate.from_dict(certificate.to_dict() | {"tie_margin": 0.0})
    assert "Nothing is claimed of limit points: an update of z is within 0 of a tie" in str(at_a_tie)


def test_the_observed_constant_of_property_3_counts_the_moves_of_z(rows):
    result = trained(rows, diagnostics_every=1)
    h = result.history
    assert all(value is not None and value > 0 for value in h["z_steps"])
    ratios = [
        g / math.sqrt(s + z)
        for g, s, z in zip(h["stationarity"], h["squared_steps"], h["z_steps"], strict=True)
    ]
    assert result.certificate.subgradient_constant == pytest.approx(max(ratios))


def test_moves_of_z_are_what_the_iterates_say(rows):
    one, two = (trained(rows, max_iter=n, eps_abs=0.0, eps_rel=0.0) for n in (4, 5))
    moved = (two.state.outputs[0] - one.state.outputs[0]).square().sum()
    assert two.history["z_steps"][-1] == pytest.approx(float(moved))
