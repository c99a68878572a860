"""Which kernels are made while a run is set up, and that the run waits for them."""

from __future__ import annotations

import threading

import pytest
import torch

import dladmm
from dladmm.compute import hand_written, products, rehearsal
from dladmm.compute.hand_written import HandWritten
from dladmm.engine import ahead
from dladmm.engine.ahead import make_kernels_ahead
from dladmm.engine.options import make_options
from dladmm.losses import get_loss
from dladmm.network.chain import mlp


def asked(monkeypatch, loss="cross_entropy", widths=(6, 5, 4), n=50, **options):
    """What is asked of :func:`make_ahead` for a network; None where it is not called."""
    found = []
    monkeypatch.setattr(ahead, "make_ahead", lambda *given: found.append(given))
    chain = mlp(widths)
    params = chain.initial_parameters(None, 1.0, dtype=torch.float32, device=torch.device("cpu"))
    chosen = make_options(**{"mode": "accelerated"} | options)
    make_kernels_ahead(chain, get_loss(loss), n, params, chosen, torch.device("cuda"))
    return found[0][:4] if found else None


def test_what_is_made_follows_the_problem(monkeypatch):
    assert asked(monkeypatch) == (250, 4, 0, False)
    assert asked(monkeypatch, loss="squared") == (250, 0, 0, False)
    assert asked(monkeypatch, compile=True) is None
    assert asked(monkeypatch, mode="streaming") is None


def test_long_products_are_those_that_have_a_kernel(monkeypatch):
    monkeypatch.setattr(products, "LONG", 50 * 8 * 12)
    monkeypatch.setattr(products, "NARROW", 4)
    assert asked(monkeypatch, widths=(8, 12, 4)) == (600, 4, 0, True)
    assert asked(monkeypatch, widths=(8, 12, 4), precision="tf32") == (600, 4, 0, True)
    quadratic = {"w_solver": "quadratic", "a_solver": "quadratic"}
    assert asked(monkeypatch, widths=(8, 12, 4), precision="tf32", **quadratic) == (600, 4, 0, False)
    assert asked(monkeypatch, widths=(8, 12, 4), n=49) == (588, 4, 0, False)
    assert asked(monkeypatch, widths=(9, 12, 3)) == (600, 3, 0, True)


def test_narrow_products_are_those_of_the_last_layer(monkeypatch):
    monkeypatch.setattr(products, "WORTH_A_NARROW_KERNEL", 50 * 70)
    assert asked(monkeypatch, widths=(8, 70, 4)) == (3500, 4, 4, False)
    assert asked(monkeypatch, widths=(8, 70, 17)) == (3500, 17, 0, False)
    assert asked(monkeypatch, widths=(70, 4, 4)) == (200, 4, 0, False)
    assert asked(monkeypatch, widths=(8, 70, 4), n=49) == (3430, 4, 0, False)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.filterwarnings("ignore:Stopped after max_iter")
def test_a_run_on_a_cpu_makes_none(monkeypatch):
    monkeypatch.setattr(hand_written.threading, "Thread", None)
    dladmm.train(mlp([3, 4, 2]), torch.randn(20, 3), torch.arange(20) % 2, max_iter=1, device="cpu")


def test_a_kernel_waits_for_those_under_way(monkeypatch):
    """Two threads would make the same kernel twice."""
    go, events = threading.Event(), []

    def make():
        go.wait(10)
        events.append("made")

    def kernel(name):
        return lambda: events.append(f"called {name}")

    thread = threading.Thread(target=make)
    monkeypatch.setattr(hand_written, "_rehearsals", [thread])
    monkeypatch.setattr(hand_written, "_kernel", kernel)
    thread.start()
    threading.Timer(0.05, go.set).start()
    HandWritten("some")()
    assert events == ["made", "called some"]
    assert hand_written._rehearsals == []


def test_a_rehearsal_that_fails_is_left_to_the_calls(monkeypatch):
    """What goes wrong is said where a kernel is needed, which does without it."""
    monkeypatch.setattr(hand_written, "available", lambda: True)
    monkeypatch.setattr(hand_written, "_rehearsals", [])
    monkeypatch.setattr(hand_written, "import_module", lambda name: 1 / 0)
    hand_written._make_ahead.cache_clear()
    for _ in range(2):  # another run of this size finds them
        hand_written.make_ahead(10, 3, 0, product=True, device=torch.device("cpu"))
    assert len(hand_written._rehearsals) == 1
    hand_written.wait_for_rehearsals()
    assert hand_written._rehearsals == []


@pytest.mark.parametrize(
    ("asked_for", "made"),
    [
        ((0, 0, 0, False), []),
        ((1 << 18, 0, 0, False), ["passes.cu", "numbers.cu"]),
        ((0, 0, 3, False), ["narrow.cu"]),
        ((0, 10, 0, True), ["product.cu", "split.cu", "softmax.cu"]),
    ],
)
def test_what_a_run_needs_is_made_and_nothing_else(monkeypatch, asked_for, made):
    done = []
    for name in ("_load_products", "_load_factorisations"):
        monkeypatch.setattr(rehearsal, name, lambda device, name=name: done.append(name))
    monkeypatch.setattr(rehearsal, "_on", lambda device, work: work())
    monkeypatch.setattr(rehearsal.Unit, "load", lambda unit, device: done.append(unit.files[-1]))
    rehearsal.rehearse(*asked_for, torch.device("cuda"))
    assert sorted(done) == sorted([*made, "_load_products", "_load_factorisations"] if made else [])
