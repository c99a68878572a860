"""Jumps in accelerated mode: the sweep sees the ramp through them, the network and its objective have the jump."""

from __future__ import annotations

import pytest
import torch

from convergent import train
from dladmm import InputError, datasets, mlp
from dladmm.activations import Quantised, Sign, Step
from dladmm.blocks import Anchor, Elementwise, Term, Work
from dladmm.solvers.jump_surrogate import REACH, surrogate_through
from dladmm.solvers.subproblems import SubproblemOptions

ON_RAMPS = SubproblemOptions(ramps=True)


def problem(jump, seed=0, shape=(40, 6)):
    """A resynchronised point z, f(z) with another m and a: as a sweep meets it."""
    generator = torch.Generator().manual_seed(seed)
    z, shift, asked = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return z, jump(z), z + 0.3 * shift, jump(z) + 0.5 * asked


@pytest.mark.parametrize("jump", [Sign(), Step(), Quantised(), Quantised(5, -2.0, 2.0)])
@pytest.mark.parametrize("weight", [1.0, 0.2])
def test_the_answer_on_the_ramp_is_the_global_minimiser(jump, weight):
    z, f, m, a = problem(jump)
    ramp = surrogate_through(jump, z)
    lift = f - ramp.height(ramp.place(z))
    found, prediction = z.clone(), f.clone()
    term = Term(2.0 * weight, a, prediction)
    Elementwise(jump).update_input({}, found, Anchor(2.0, m), term, Work(ON_RAMPS))

    def value(y, of=slice(None)):
        """In units of the ramp: half of its length, half of its height."""
        heights = (a.flatten()[of] - lift.flatten()[of] - ramp.mid) / ramp.half
        return (y - ramp.place(m).flatten()[of]).square() + weight * (heights - y.clamp(-1, 1)).square()

    grid = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    found_places = ramp.place(found).flatten()
    for i in range(0, z.numel(), 7):
        best = value(grid[:, None], slice(i, i + 1)).min()
        assert value(found_places[i], slice(i, i + 1)) <= best + 1e-7
    assert torch.allclose(prediction, ramp.height(ramp.place(found)) + lift)


def test_the_ramp_passes_through_the_point_itself_and_stays_for_the_sweep():
    z, f, _, _ = problem(Sign())
    work, prediction = Work(ON_RAMPS), f.clone()
    Elementwise(Sign()).update_input({}, z, Anchor(1.0, z.clone()), Term(1.0, f.clone(), prediction), work)
    assert torch.allclose(prediction, f)  # nothing is asked, so nothing moves
    (kept,) = work.sweep_values.values()
    moved = 3 * z
    Elementwise(Sign()).update_input({}, z, Anchor(1.0, moved), Term(1.0, f, prediction), work)
    assert list(work.sweep_values.values()) == [kept]
    assert kept.reach == pytest.approx(REACH * float(problem(Sign())[0].square().mean().sqrt()))


def test_rows_that_count_twice_make_the_ramp_as_if_they_stood_there_twice():
    z = problem(Sign())[0]
    counts = torch.ones(len(z), 1, dtype=torch.float64)
    counts[:5] = 2
    counted = surrogate_through(Sign(), z, Work(ON_RAMPS, counts=counts))
    assert torch.allclose(counted.reach, surrogate_through(Sign(), torch.cat([z, z[:5]])).reach)


def test_quantised_activations_have_the_identity_for_a_ramp():
    z = torch.linspace(-1, 2, 31, dtype=torch.float64)
    ramp = surrogate_through(Quantised(4), z)
    assert torch.allclose(ramp.height(ramp.place(z)), z.clamp(0, 1))


def test_variables_that_are_all_zero_have_a_ramp_too():
    ramp = surrogate_through(Sign(), torch.zeros(4, 3))
    assert 0 < float(ramp.reach) < 1e-10
    assert torch.isfinite(ramp.place(torch.zeros(1))).all()


@pytest.mark.parametrize("activation", ["sign", "step", {"name": "quantised", "levels": 3}])
def test_hidden_layers_learn_and_the_safeguard_holds(activation):
    data = datasets.load("digits")
    results = {}
    for ramps in (True, False):
        results[ramps] = train(
            mlp([64, 15, 10], activation), data.x_train, data.y_train, mode="accelerated", ramps=ramps,
            max_iter=15, validation=(data.x_test, data.y_test),
        )  # fmt: skip
    with_ramps, without = (results[ramps].history.last("val_accuracy") for ramps in (True, False))
    assert with_ramps > without + 0.05
    assert with_ramps > 0.8
    assert results[True].certificate.monotone
    hidden = results[True].module[:2](torch.as_tensor(data.x_test))
    assert len(hidden.unique()) == (3 if isinstance(activation, dict) else 2)


def test_convergent_mode_has_no_ramps():
    with pytest.raises(InputError, match="ramps is a setting of mode='accelerated'"):
        train(mlp([2, 3, 2], "sign"), torch.eye(2), torch.tensor([0, 1]), ramps=True)


def test_settings_that_are_given_win_over_those_for_jumps():
    data = datasets.load("digits")
    given = (mlp([64, 10, 10], "sign"), data.x_train[:50], data.y_train[:50])
    own, other = (
        train(*given, mode="accelerated", max_iter=1, **settings).state.params[0]["W"].abs().mean()
        for settings in ({}, {"init_scale": 1.0, "damping": 1e6})
    )
    assert other > 5 * own
