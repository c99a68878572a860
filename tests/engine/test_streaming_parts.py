"""Single numbers of streaming mode against what they should be: lengths, shares, samples counted, rules of rho."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dladmm import Recurrent, from_module
from dladmm.base.history import History
from dladmm.engine.batch_sweep import BatchSweep
from dladmm.engine.batches import ArrayBatches, Batch, default_batch_size
from dladmm.engine.rho_rules import raises_rho
from dladmm.engine.running import MOST_GROWTH, MOST_SPREADS, TINY, RunningGradient, set_reach, within_reach
from dladmm.engine.streaming import Streaming, _is_heavy
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.regularizers import L1
from dladmm.solvers.subproblems import SubproblemOptions
from problems import random_problem

F64 = torch.float64


def number(value):
    return torch.tensor(value, dtype=F64)


def sweeps_of(seed=2, **settings):
    engine, state = random_problem(seed, depth=2, samples=30, **settings)
    return BatchSweep(engine, state.params, StreamingOptions(), 30.0)


def streaming(seed=2):
    engine, state = random_problem(seed, depth=2, samples=30)
    batches = ArrayBatches(engine.x, engine.risk.target, None, None, 3, 0)
    return Streaming(engine, state, batches, 4, StreamingOptions())


def test_every_batch_is_heavy_at_first_then_every_fourth_then_every_eighth():
    found = [k for k in range(1, 200) if _is_heavy(k)]
    assert found == [*range(1, 9), *range(12, 129, 4), *range(136, 200, 8)]


# Lengths -----------------------------------------------------------------------------------------------------------


def test_changes_are_measured_in_the_mean_square_residual_of_real_targets():
    assert float(sweeps_of(loss="squared")._unit(number(3.0))) == 6.0
    assert sweeps_of()._unit(number(3.0)) == 1.0


@pytest.mark.parametrize(("loss", "shaken"), [(1.8, False), (2.6, True)])
def test_a_batch_shakes_a_run_where_its_loss_is_half_a_unit_above_one_and_a_half_means(loss, shaken):
    """The mean counts the batch by a tenth: 1.5 * 1.08 + 0.5 = 2.12, and 1.5 * 1.16 + 0.5 = 2.24."""
    sweeps = sweeps_of()
    sweeps.shares.lengths.fill_(0.1)
    sweeps.means.copy_(torch.tensor([1e9, 1.0, 1.0]))
    sweeps._length(number(1e9), number(1.0), number(0.0), number(loss))
    assert float(sweeps.leash) == pytest.approx(sweeps.largest_change * (0.25 if shaken else 1.0))


@pytest.mark.parametrize("p", [0.0, -2.0])
def test_where_a_batch_would_rather_go_back_the_mean_of_all_decides(p):
    sweeps = sweeps_of()
    sweeps.shares.lengths.fill_(0.0)
    sweeps.means.copy_(torch.tensor([2.0, 1e6, 1.0]))
    found = float(sweeps._length(number(p), number(1e-9), number(0.0), number(1.0)))
    assert found == pytest.approx(sweeps.stretch * 2.0 / 1e6)


def test_the_change_of_a_link_is_measured_behind_a_normalisation_that_follows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator, dtype=F64)
    chain = from_module(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)))
    loss = get_loss("cross_entropy")
    risk = Risk(loss, loss.encode(torch.arange(40) % 3, 3, F64))
    engine = Engine(chain, x, risk)
    params = chain.initial_parameters(generator, 1.0, dtype=F64, device=torch.device("cpu"))
    sweeps = BatchSweep(engine, params, StreamingOptions(), 40.0)
    outputs = chain.forward(params, x)
    change = 3 * torch.randn(outputs[0].shape, generator=generator, dtype=F64) + 100.0
    small = 1e-6
    moved = (chain.blocks[1].forward(params[1], outputs[0] + small * change) - outputs[1]) / small
    found = float(sweeps._relative(engine, outputs, 0, change))
    assert found == pytest.approx(float(moved.norm() / outputs[1].norm()), rel=1e-4)


def test_a_kinked_penalty_counts_by_the_sample():
    """``prox`` of the penalty over the number of samples, at the length of the step."""
    sweeps = sweeps_of(regularizer={"name": "l1", "strength": 6.0})
    x, target = sweeps.engine.x, sweeps.engine.risk.target
    sweeps.prepare(Batch(x, target))
    before = [{name: p.clone() for name, p in block.items()} for block in sweeps.params]
    sweeps.step_length.fill_(0.5)
    sweeps.shares.fading.fill_(0.4)
    sweeps.move()  # all directions are zero yet
    for old, new in zip(before, sweeps.params, strict=True):
        for name, p in new.items():
            expected = L1(6.0 / 30).prox(old[name], 0.2) if name == "W" else old[name]
            torch.testing.assert_close(p, expected)


# Blocks that are not linear in their parameters ------------------------------------------------------------------


def test_a_running_gradient_is_over_its_root_mean_square_with_the_decay():
    running = RunningGradient(
        SimpleNamespace(records_gradients=False, normalises=False), {"W": torch.zeros(3, dtype=F64)}
    )
    running.square["W"].copy_(torch.tensor([4.0, 0.0, 1.0]))
    g, decay = torch.tensor([2.0, 0.0, -1.0], dtype=F64), torch.tensor([1.0, 1e-3, 0.0], dtype=F64)
    found = running._direction({"W": g}, {"W": decay})["W"]
    expected = torch.tensor([-3 / 5**0.5, -1.0, 1.0], dtype=F64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    alone = running._direction({"W": g}, {})["W"]
    torch.testing.assert_close(alone[0], number(-1.0))


def test_an_entry_with_a_gradient_for_the_first_time_is_bounded():
    """Its running square is zero: the ratio would be whatever keeps the division from failing."""
    running = RunningGradient(
        SimpleNamespace(records_gradients=False, normalises=False), {"W": torch.zeros(4, dtype=F64)}
    )
    running.square["W"].copy_(torch.tensor([1.0, 0.0, 0.0, 4.0]))
    g = torch.tensor([3.0, 1e-3, 0.0, -40.0], dtype=F64)
    found = running._direction({"W": g}, {})["W"]
    torch.testing.assert_close(
        found, torch.tensor([-3.0, -MOST_SPREADS, 0.0, MOST_SPREADS], dtype=F64), rtol=1e-5, atol=0
    )


def test_moves_much_longer_than_those_that_were_measured_are_cut():
    """Of all blocks not linear in their parameters together, to MOST_GROWTH times their length then."""

    def block(linear, *moves):
        return SimpleNamespace(
            linear=linear, moves={str(i): torch.tensor(m, dtype=F64) for i, m in enumerate(moves)}
        )

    reach, step = torch.zeros((), dtype=F64), torch.tensor(0.5, dtype=F64)
    others = [block(True, [1e6])]
    set_reach(others, reach)
    assert float(reach) == 0
    assert within_reach(step, others, reach) is step
    set_reach([*others, block(False, [3.0], [0.0]), block(False, [0.0, 4.0])], reach)
    assert float(reach) == pytest.approx(5 * MOST_GROWTH)
    for length, expected in ((1.0, 0.5), (5 * MOST_GROWTH, 0.5), (50 * MOST_GROWTH, 0.05), (0.0, 0.5)):
        now = [*others, block(False, [0.6 * length], [0.0]), block(False, [0.0, 0.8 * length])]
        assert float(within_reach(step, now, reach)) == pytest.approx(expected)


@pytest.mark.parametrize("normalised", [False, True])
def test_networks_linear_in_their_parameters_have_no_reach(normalised):
    """A batch normalisation takes gradients too, but is linear in its weight and bias."""
    generator = torch.Generator().manual_seed(0)
    x, loss = torch.randn(40, 5, generator=generator, dtype=F64), get_loss("cross_entropy")
    between = [nn.BatchNorm1d(4)] if normalised else []
    chain = from_module(nn.Sequential(nn.Linear(5, 4), *between, nn.ReLU(), nn.Linear(4, 2)))
    target = loss.encode((x[:, 0] > 0).long(), 2, F64)
    params = chain.initial_parameters(generator, 1.0, dtype=F64, device=torch.device("cpu"))
    sweeps = BatchSweep(Engine(chain, x, Risk(loss, target)), params, StreamingOptions(), 40.0)
    sweeps.prepare(Batch(x, target))
    assert len(sweeps.running) == 2 + normalised
    assert within_reach(sweeps.step_length, sweeps.running.values(), sweeps.reach) is sweeps.step_length


def test_a_recurrent_network_moves_and_its_longest_moves_are_cut():
    """A heavy sweep sets how far moves may reach; ten times those moves go twice as far, not ten times."""
    generator = torch.Generator().manual_seed(0)
    x, loss = torch.randn(40, 6, 3, generator=generator, dtype=F64), get_loss("cross_entropy")
    chain = from_module(
        nn.Sequential(Recurrent(nn.GRU(3, 4, batch_first=True)), nn.Linear(4, 2)), sequences=True
    )
    target = loss.encode((x[:, 0, 0] > 0).long(), 2, F64)
    params = chain.initial_parameters(generator, 1.0, dtype=F64, device=torch.device("cpu"))
    sweeps = BatchSweep(Engine(chain, x, Risk(loss, target)), params, StreamingOptions(), 40.0)
    batch = Batch(x, target)
    sweeps.prepare(batch)
    for share in (sweeps.shares.metric, sweeps.shares.lengths, sweeps.shares.average, sweeps.shares.fading):
        share.fill_(1.0)

    def moved(move):
        before = {name: p.clone() for name, p in sweeps.params[0].items()}
        move()
        return sum(float((p - before[name]).square().sum()) for name, p in sweeps.params[0].items()) ** 0.5

    first = moved(lambda: sweeps.sweep(lambda: batch, heavy=True, renewed=True, first=True))
    assert first > 0
    assert moved(sweeps.move) == pytest.approx(first)
    for running in sweeps.running.values():
        for move in running.moves.values():
            move.mul_(10)
    assert moved(sweeps.move) == pytest.approx(MOST_GROWTH * first)


def test_a_running_gradient_is_damped():
    running = RunningGradient(
        SimpleNamespace(records_gradients=False, normalises=False), {"W": torch.zeros(3, dtype=F64)}
    )
    running.length.fill_(16.0)
    running.refactor(0.6)
    assert float(running.scale) == pytest.approx((16 + TINY) ** -0.5 / 1.6)


# Samples -----------------------------------------------------------------------------------------------------------


def test_batches_that_come_later_are_counted_with_those_before():
    method = streaming()
    method.finished_passes = 3
    more = ArrayBatches(torch.ones(12, 4, dtype=F64), torch.ones(12, 3, dtype=F64), None, None, 2, 0, 20.0)
    method.take(more)
    assert method.sweeps.n_samples == 50.0
    assert (method.passes, method.batches_in_pass) == (4, 2)


def test_a_stream_of_unknown_length_counts_rows_as_often_as_they_count():
    method = streaming()
    method.batches.n_samples, method.batches.at_least = None, 0.0
    x = torch.ones(3, 4, dtype=F64)
    counts = torch.tensor([[2.0], [0.5], [4.0]], dtype=F64)
    method._count(Batch(x, x, None, counts))
    assert method.sweeps.n_samples == 6.5
    method._count(Batch(x, x))
    assert method.sweeps.n_samples == 9.5
    method.batches.at_least = 100.0
    method._count(Batch(x, x))
    assert method.sweeps.n_samples == 100.0


def test_no_more_rows_than_asked_for_are_spread_out():
    x = torch.arange(10.0)[:, None]
    batches = ArrayBatches(x, x, None, None, 2, 0)
    assert batches.spread(4).x[:, 0].tolist() == [0, 3, 6, 9]
    assert [len(batches.spread(n).x) for n in (1, 3, 6, 10, 99)] == [1, 3, 5, 10, 10]


def test_batches_grow_with_very_many_rows_alone():
    rows = (4096, 20_000, 40_000, 50_000, 10**6)
    assert [default_batch_size(n, convolutions=False) for n in rows] == [256, 256, 256, 512, 512]


# The authors' rules of rho ---------------------------------------------------------------------------------------


def raised(rule, losses, rho, nu=0.2, alpha0=0.3):
    engine = SimpleNamespace(options=SubproblemOptions(alpha0=alpha0, t0=None))
    state, history = SimpleNamespace(rho=rho, nu=nu), History()
    for k, value in enumerate(losses, 1):
        history.append(iteration=k, loss=value)
    found = raises_rho(SimpleNamespace(rho_rule=rule), history, state, engine)
    return found, state.rho, state.nu, engine.options.alpha0


def test_rho_rises_after_three_rises_of_the_loss_up_to_a_tenth():
    rising = [9.0, 1.0, 2.0, 3.0, 4.0]
    assert raised("authors", rising, 0.001) == pytest.approx((True, 0.01, 2.0, 3.0))
    assert raised("authors", rising, 0.05) == pytest.approx((True, 0.1, 0.4, 3.0))
    assert raised("authors", rising, 0.1) == (False, 0.1, 0.2, 0.3)
    for losses in ([2.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 3.0], [1.0, 2.0, 1.5, 3.0], [1.0, 2.0, 3.0]):
        assert raised("authors", losses, 0.001) == (False, 0.001, 0.2, 0.3)
    assert raised("authors", rising, 0.001, alpha0=None)[3] is None


def test_rho_rises_tenfold_after_every_fifty_iterations_up_to_one():
    assert raised("tenfold", [1.0] * 50, 0.01) == pytest.approx((True, 0.1, 2.0, 0.3))
    assert raised("tenfold", [1.0] * 100, 0.5) == pytest.approx((True, 1.0, 0.4, 0.3))
    assert raised("tenfold", [1.0] * 49, 0.01) == (False, 0.01, 0.2, 0.3)
    assert raised("tenfold", [1.0] * 50, 1.0) == (False, 1.0, 0.2, 0.3)
