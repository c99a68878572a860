"""A block written by a user, with one attribute declared: in chunks, with counts, on ranks, and without waiting."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

import own_gain
from convergent import train
from distributed_pool import Pool
from distributed_tasks import own_block_trained
from dladmm import Chain, InputError, mlp
from dladmm.blocks import Affine, Elementwise, Support
from dladmm.compute.execution import Execution
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.regularizers import L2
from dladmm.solvers.subproblems import SubproblemOptions
from own_gain import Gain

ROOT = Path(__file__).parents[2]


def problem(n=40, repeats=None, **settings):
    """Repeated rows where ``repeats`` says so."""
    generator = torch.Generator().manual_seed(0)
    chain, loss = (
        Chain([Affine(5, 6), Gain(6), Elementwise("relu"), Gain(6), Affine(6, 3)]),
        get_loss("cross_entropy"),
    )
    x, y = torch.randn(n, 5, generator=generator, dtype=torch.float64), torch.arange(n) % 3
    if repeats is not None:
        x, y = x.repeat_interleave(repeats, 0), y.repeat_interleave(repeats, 0)
    risk = Risk(loss, loss.encode(y, 3, torch.float64))
    options = SubproblemOptions(w_solver="exact", a_solver="quadratic", damping=0.1)
    engine = Engine(chain, x, risk, L2(0.1), options, **settings)
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=torch.device("cpu"))
    return engine, engine.feasible_state(params, 1.5, 1.0)


def swept(engine, state, iterations=4):
    for _ in range(iterations):
        steps = engine.sweep(state)
    return [p for block in state.params for p in block.values()], steps


def test_the_pages_show_this_block():
    block, sums = (inspect.getsource(part) for part in (Gain, own_gain.slope_and_square))
    for page in ("docs/own_blocks.md", "examples/own_block.py"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert block.strip() in text, page
        assert sums.strip() in text, page
    lines = [line for line in (block + sums).splitlines() if line.strip()]
    assert len(lines) <= 45


@pytest.mark.parametrize("chunk_rows", [1, 7, 40])
def test_in_chunks_it_does_the_same(chunk_rows):
    (whole, whole_steps), (parts, steps) = (swept(*problem(chunk_rows=rows)) for rows in (None, chunk_rows))
    for mine, theirs in zip(whole, parts, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(whole_steps, steps, strict=True):
        assert mine.variable == theirs.variable
        if mine.squared is not None:
            torch.testing.assert_close(mine.squared, theirs.squared, rtol=1e-9, atol=1e-20)


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_rows_that_count_are_rows_that_are_repeated(chunk_rows):
    repeats = torch.arange(40) % 3 + 1
    counted, state = problem(counts=repeats.double()[:, None], chunk_rows=chunk_rows)
    repeated, other = problem(repeats=repeats)
    for mine, theirs in zip(swept(counted, state)[0], swept(repeated, other)[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    for measure in (lambda e, s: e.energy(s).lagrangian, lambda e, s: e.stationarity(s)):
        torch.testing.assert_close(measure(counted, state), measure(repeated, other), rtol=1e-8, atol=1e-12)


def test_without_shortcuts_it_does_the_same():
    plain = swept(*problem())[0]
    engine, state = problem()
    engine.how = Execution(shortcuts=False)
    for mine, theirs in zip(plain, swept(engine, state)[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_in_accelerated_mode_too():
    engine, state = problem(chunk_rows=7)
    whole_engine, whole = problem()
    methods = [Accelerated(e, s) for e, s in ((engine, state), (whole_engine, whole))]
    for _ in range(3):
        for method, own in zip(methods, (state, whole), strict=True):
            assert method.iterate(own, lambda candidate, steps: steps) is not None
    for mine, theirs in zip(state.params, whole.params, strict=True):
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-11)


@pytest.fixture(scope="module")
def pool():
    made = Pool(size=2)
    yield made
    made.close()


@pytest.mark.parametrize("settings", [{}, {"weighted": True}, {"mode": "accelerated", "dropout": 0.0}])
def test_on_two_ranks_it_does_the_same(pool, settings):
    (alone,) = pool.run(own_block_trained, 1, settings)
    for answer in pool.run(own_block_trained, 2, settings):
        assert answer["certificate"]["certified"] == alone["certificate"]["certified"]
        assert answer["status"] == alone["status"]
        for mine, theirs in zip(answer["params"], alone["params"], strict=True):
            torch.testing.assert_close(
                torch.from_numpy(mine), torch.from_numpy(theirs), rtol=1e-9, atol=1e-11
            )


class Unsupported(Gain):
    support = Support.NONE


class Counting(Gain):
    support = Support.COUNTS


def test_what_is_not_declared_is_refused():
    chain = Chain([Affine(5, 4), Unsupported(4), Affine(4, 3)])
    x, y = torch.randn(20, 5), torch.arange(20) % 3
    with pytest.raises(InputError, match="sample weights cannot be used: they do not count in"):
        train(chain, x, y, sample_weight=torch.ones(20) * 2, max_iter=1)
    with pytest.raises(InputError, match=r"max_memory needs|rows in chunks need"):
        train(chain, x, y, max_memory="1GB", max_iter=1)
    assert not Counting(4).supports(Support.CHUNKS)
    assert not Counting(4).supports(Support.COUNTS | Support.RANKS)
    assert Counting(4).supports(Support.COUNTS)
    assert not Engine(chain, x, Risk(get_loss("squared"), torch.zeros(20, 3))).recordable
    assert mlp([5, 4, 3]).blocks[0].supports(Support.ALL)
