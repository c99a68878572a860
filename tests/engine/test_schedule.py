"""The order of updates: written once, planned from, and free within what the theory allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_against_reference import largest_difference, paired

from dladmm.base.errors import InputError
from dladmm.compute import work
from dladmm.compute.execution import Execution
from dladmm.compute.work import Work
from dladmm.compute.workspace import UpdatePlan
from dladmm.engine import sweep
from dladmm.engine.options import make_options
from dladmm.engine.schedule import Update, paper_schedule, planned, schedule_of
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp


def words(schedule):
    """``V3 B3 ..`` of the backward sweep, ``v0 b0 ..`` of the forward one, ``Bb0`` where both are made together."""
    letters = {
        ("output", False): "V",
        ("output", True): "v",
        ("parameters", False): "B",
        ("parameters", True): "b",
    }
    return " ".join(
        "".join(letters[u.variable, forward] for forward in u.order) + str(u.link) for u in schedule
    )


# The paper's order -------------------------------------------------------------------------------------------------


def test_the_papers_order():
    assert words(paper_schedule(1)) == "V0 B0 b0 v0"
    assert words(paper_schedule(3)) == "V2 B2 V1 B1 V0 B0 b0 v0 b1 v1 b2 v2"


def test_a_backward_sweep_updates_parameters_on_the_way_back_alone():
    assert words(schedule_of(3, "backward")) == "V2 B2 V1 B1 V0 B0 v0 v1 v2"
    assert schedule_of(3, "both") == paper_schedule(3)
    with pytest.raises(InputError, match="sweep is a setting of mode='accelerated'"):
        make_options(mode="convergent", sweep="backward")
    with pytest.raises(InputError, match="sweep must be one of"):
        make_options(mode="accelerated", sweep="forward")


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_every_variable_is_updated_once_backward_and_once_forward(n):
    schedule = paper_schedule(n)
    wanted = Counter((v, l, (f,)) for v in ("output", "parameters") for l in range(n) for f in (False, True))
    assert Counter((u.variable, u.link, u.order) for u in schedule) == wanted
    mirrored = [replace(u, order=(not u.order[0],)) for u in reversed(schedule)]
    assert list(schedule) == mirrored
    assert schedule[-1] == Update("output", n - 1, (True,))  # what the dual step follows


# Planning ----------------------------------------------------------------------------------------------------------

IDLE = [False, True, False, True, False]


def plans(chain=None, schedule=None, idle=IDLE, *, joined=True, prepared=True, continues=True):
    chain = mlp([6, 5, 4, 3]) if chain is None else chain
    schedule = paper_schedule(len(chain)) if schedule is None else schedule
    return planned(schedule, chain, idle, joined=joined, prepared=prepared, continues=continues)


def flags(plan):
    """Those of this update alone: whether sweeps continue each other is the same for all."""
    named = {field.name for field in fields(plan)} - {"offsets_last"}
    return {name for name in named if getattr(plan, name)}


def test_blocks_without_parameters_are_left_out_and_the_first_blocks_updates_are_joined():
    assert words(u for u, _ in plans()) == "V4 B4 V3 V2 B2 V1 V0 Bb0 v0 v1 b2 v2 v3 b4 v4"
    assert words(u for u, _ in plans(joined=False)) == "V4 B4 V3 V2 B2 V1 V0 B0 b0 v0 v1 b2 v2 v3 b4 v4"
    first = next(u for u, _ in plans() if u.variable == "parameters" and u.link == 0)
    assert first.order == (False, True)


def test_updates_are_joined_only_where_the_block_can(monkeypatch):
    chain = mlp([6, 5, 4, 3])
    monkeypatch.setattr(chain.blocks[0], "joins_updates", False, raising=False)
    assert "B0 b0" in words(u for u, _ in plans(chain))


def test_updates_in_a_row_are_joined_whatever_they_are():
    b0, b2 = (Update("parameters", l, (True,)) for l in (0, 2))
    back = Update("parameters", 0, (False,))
    assert words(u for u, _ in plans(schedule=(b0, b0, back, b2, b0))) == "bbB0 b2 b0"


def test_the_plans_of_a_three_layer_network():
    """Links 0 to 4 are z_1, a_1, z_2, a_2, z_3. Each line says what the next update begins with."""
    found = {words([update]): flags(plan) for update, plan in plans()}
    assert found == {
        "V4": set(),  # u moves the last link's target with every update: nothing can be prepared for it
        "B4": set(),
        "V3": set(),  # a_2; then z_2, which is solved entry by entry and begins with no difference
        # z_2; then B_2 begins with m_2 - z_2; f(z_2) comes forward
        "V2": {
            "in_residual",
            "out_prediction_dead",
        },
        "B2": {"out_residual"},  # then a_1 begins with m_2 - z_2
        "V1": set(),
        "V0": {"in_residual", "out_prediction_dead"},
        "Bb0": set(),  # then z_1, entry by entry
        "v0": {"out_offset", "in_settled"},  # z_1; then a_1 begins with a_1 - f(z_1)
        "v1": {"out_residual", "in_offset_lasts", "in_settled"},  # a_1; then B_2 begins with m_2 - z_2
        "b2": set(),
        "v2": {"out_offset", "in_settled"},
        "v3": {"in_offset_lasts", "in_settled"},  # a_2; the next sweep begins with a_2 - f(z_2)
        "b4": set(),
        "v4": {"in_settled"},
    }


def test_nothing_lasts_into_a_sweep_that_begins_elsewhere():
    lasting = [flags(plan) - {"in_offset_lasts"} for _, plan in plans()]
    assert [flags(plan) - {"in_holds"} for _, plan in plans(continues=False)] == lasting
    for continues in (True, False):
        assert {plan.offsets_last for _, plan in plans(continues=continues)} == {continues}


@pytest.mark.parametrize("wide", [5, 6])
def test_what_lasts_into_the_next_sweep_is_found_there(monkeypatch, wide):
    """Of every link, also where several have the same width: their offsets ``a - f(z)`` are not made again."""
    torch.manual_seed(0)
    x, y, loss = torch.randn(23, 4, dtype=torch.float64), torch.arange(23) % 3, get_loss("cross_entropy")
    engine = sweep.Engine(mlp([4, 5, 5, wide, 3]), x, Risk(loss, loss.encode(y, 3, x.dtype)))
    params = [block.initial_parameters(None, 1.0) for block in engine.chain]
    state = engine.feasible_state(params, 1.0, 1.0)
    made = []
    monkeypatch.setattr(
        work, "difference", lambda how, out, v, value: made.append((v, value)) or out.copy_(v - value)
    )
    for _ in range(3):
        made.clear()
        engine.sweep(state)
    hidden = [state.outputs[l].data_ptr() for l in (1, 3, 5)]
    assert [v.data_ptr() for v, _ in made if v.data_ptr() in hidden] == []


@pytest.mark.parametrize("switches", [{}, {"joined": False}, {"prepared": False}])
def test_links_hold_until_something_moves_them(switches):
    """A sweep from a feasible point meets every link first in the update of its own variable, on the way back."""
    holding = {words([u]) for u, plan in plans(continues=False, **switches) if plan.in_holds}
    assert holding == {"V4", "V3", "V2", "V1", "V0"}
    assert not any(plan.in_holds for _, plan in plans(**switches))


def test_a_link_that_another_update_moved_holds_no_more():
    """z_1 after B_1, which moved its prediction, and a_1 after z_1, from which it is predicted."""
    v0, v1 = Update("output", 0, (False,)), Update("output", 1, (False,))
    b0 = Update("parameters", 0, (False,))
    found = [plan.in_holds for _, plan in plans(schedule=(v1, b0, v0), continues=False)]
    assert found == [True, False, False]
    assert [plan.in_holds for _, plan in plans(schedule=(v0, v1), continues=False)] == [True, False]


@pytest.mark.parametrize("switches", [{"joined": False}, {"prepared": False}])
def test_without_preparation_only_what_is_settled_is_known(switches):
    found = {words([update]): flags(plan) for update, plan in plans(**switches)}
    assert set().union(*found.values()) == {"in_settled"}
    assert {name for name, flag in found.items() if flag} == {"v0", "v1", "v2", "v3", "v4"}


def test_what_is_settled_follows_the_schedule():
    """z_1 after a_1: then a_1's link is moved once more, by z_1's update, and its tie is not worth measuring."""
    v0, v1 = Update("output", 0, (True,)), Update("output", 1, (True,))
    b0 = Update("parameters", 0, (True,))
    found = [(words([u]), plan.in_settled) for u, plan in plans(schedule=(v1, v0, b0))]
    assert found == [("v1", False), ("v0", False), ("b0", True)]
    found = [(words([u]), plan.in_settled) for u, plan in plans(schedule=(b0, v0, v1))]
    assert found == [("b0", False), ("v0", True), ("v1", True)]


def test_a_prediction_is_dead_only_if_it_is_written_before_it_is_read():
    v0, v1, back = (Update("output", 0, (True,)), Update("output", 1, (True,)), Update("output", 0, (False,)))
    dead = [plan.out_prediction_dead for _, plan in plans(schedule=(back, v0, v1))]
    assert dead == [True, False, False]
    dead = [plan.out_prediction_dead for _, plan in plans(schedule=(back, v1, v0))]
    assert dead == [False, False, False]  # a_1 is anchored at it


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
def test_every_difference_that_is_prepared_is_used_and_the_others_are_made_once(monkeypatch, solver):
    """In steady state: what an update begins with lies there, but for the last link and where a buffer was taken."""
    _, engine, state = paired(3, rho=1.5, nu=1.0, lam=0.1, solver=solver, damping=0.1, samples=30)
    assert len({v.shape for v in state.outputs[1:4:2]}) == 2  # buffers of their own
    made, found = [], []
    difference = Work._difference

    def spied(work, name, link, first, second):
        hit = work.workspace.find((name, link), (first, second)) is not None
        (found if hit else made).append((name, link))
        if hit:
            kept = work.workspace.find((name, link), (first, second))
            torch.testing.assert_close(kept, first - second, rtol=0, atol=1e-13)
        return difference(work, name, link, first, second)

    engine.sweep(state)
    monkeypatch.setattr(Work, "_difference", spied)
    engine.sweep(state)
    # backward: B_4, a_2 (residual 4, offset 3), B_2, a_1; forward: B_0 made once for both, a_1, B_2, a_2, B_4
    assert Counter(found) == Counter(
        {("residual", 2): 3, ("offset", 3): 2, ("offset", 1): 2, ("residual", 0): 1}
    )
    assert Counter(made) == Counter({("residual", 4): 4, ("residual", 2): 1})


# Any order ---------------------------------------------------------------------------------------------------------


@st.composite
def legal_orders(draw, depth):
    """The paper's updates in any order in which the last to touch the last link is the one of V_n.

    Then ``u = -grad R(z_L)`` holds after the dual step (Lemma 2), and every update descends by itself.
    """
    n = 2 * depth - 1
    updates = [u for u in paper_schedule(n) if u.variable == "output" or u.link % 2 == 0]
    *others, last = updates
    order = draw(st.permutations(others))
    touching = [
        i for i, u in enumerate(order) if u.link == n - 1 or (u.variable == "output" and u.link == n - 2)
    ]
    order.insert(draw(st.integers(max(touching) + 1, len(order))), last)
    return tuple(order)


def for_the_reference(schedule):
    order = []
    for update in schedule:
        l = update.link // 2 + 1
        if update.variable == "output":
            order.append(("a" if update.link % 2 else "z", l))
        else:
            order += [("W", l), ("b", l)] if update.order[0] else [("b", l), ("W", l)]
    return order


def test_the_references_own_order_is_the_papers():
    reference, engine, _ = paired(3, rho=1.5, nu=1.0, lam=0.1, solver="quadratic")
    schedule = [u for u in engine.schedule if u.variable == "output" or u.link % 2 == 0]
    assert for_the_reference(schedule) == reference.paper_order()


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
@pytest.mark.parametrize("depth", [2, 3])
@settings(deadline=None, max_examples=12)
@given(data=st.data(), samples=st.sampled_from([11, 30]), seed=st.integers(0, 5))
def test_any_legal_order_is_the_references(solver, depth, data, samples, seed):
    """30 samples: more than four per input, so that joined updates are made on the Gram matrix."""
    schedule = data.draw(legal_orders(depth))
    settings_ = {"rho": 1.5, "nu": 1.0, "lam": 0.1, "solver": solver, "damping": 0.05, "samples": samples}
    reference, engine, state = paired(depth, seed=seed, **settings_)
    _, bare, bare_state = paired(depth, seed=seed, **settings_)
    engine.schedule = bare.schedule = schedule
    bare.how = Execution(shortcuts=False)
    order = for_the_reference(schedule)
    before = reference.lagrangian()
    for _ in range(3):
        reference.iterate(order)
        steps = engine.sweep(state)
        bare.sweep(bare_state)
        assert reference.lagrangian() <= before + 1e-9 * (1 + abs(before))  # rho > 2H: the order is free
        before = reference.lagrangian()
        known, again = engine.energy(state, steps=steps), engine.energy(state)
        torch.testing.assert_close(known.coupling, again.coupling, rtol=1e-11, atol=1e-14)
        torch.testing.assert_close(
            again.coupling, engine.energy(state, engine.raw_predictions(state)).coupling
        )
    assert largest_difference(reference, state) < 1e-8
    assert float(engine.dual_optimality(state)) < 1e-16
    for mine, theirs in zip(
        *((*s.W, *s.b, *s.z, *s.a, s.u, *s.predictions) for s in (state, bare_state)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_the_engine_takes_a_schedule():
    _, engine, _ = paired(2, rho=1.5, nu=1.0, lam=0.0, solver="quadratic")
    other = tuple(reversed(engine.schedule))
    made = type(engine)(engine.chain, engine.x, engine.risk, schedule=other)
    assert made.schedule == other
    assert engine.schedule == paper_schedule(3)


def test_a_plan_plans_nothing_unless_told():
    assert flags(UpdatePlan()) == {"in_settled"}


def test_an_engine_plans_anew_only_for_what_it_has_not_planned_yet(monkeypatch):
    _, engine, state = paired(2, rho=1.5, nu=1.0, lam=0.0, solver="quadratic")
    made = []
    monkeypatch.setattr(
        sweep, "planned", lambda *args, **kwargs: made.append(args) or planned(*args, **kwargs)
    )
    for _ in range(3):
        engine.sweep(state)
    assert len(made) == 1
    engine.how = Execution(shortcuts=False)
    engine.sweep(state)
    engine.schedule = (*engine.schedule[:4], *engine.schedule)
    engine.sweep(state)
    assert [len(args[0]) for args in made] == [12, 12, 16]
