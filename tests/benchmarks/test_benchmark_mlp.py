"""The MLP benchmark counts what it says it counts, and its straightforward rival does the same iteration."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise

import pytest
import torch

from running_benchmarks import BENCHMARKS, run_benchmark

sys.path.insert(0, str(BENCHMARKS))

from authors_structure import AuthorsStructure
from recording import Bare, Operands, Recorder, minimal_products

from dladmm.api.train import fresh_parameters
from dladmm.engine.options import PAPER
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp

N = 50
SIZES = [20, 30, 40, 7]


@pytest.fixture(scope="module")
def report():
    """A tiny run on a machine that has torch, numpy, scipy and scikit-learn only."""
    sizes = ["--inputs", "20", "--widths", "30,40", "--classes", "7", "--samples", str(N)]
    times = ["--iterations", "2", "--warmup", "1", "--authors-iterations", "1", "--threads", "1"]
    modes = ["--modes", "quadratic", "exact", "accelerated", "paper"]
    report, table = run_benchmark("mlp.py", *sizes, *times, *modes)
    for words in ("minimal products", "Adam epoch", "authors' structure", "accelerated", "memory:"):
        assert words in table
    return report


def products(of, samples_only=True):
    found = {tuple(op["sizes"]): op["count"] for op in of["operations"] if op["kind"] == "product"}
    return {sizes: n for sizes, n in found.items() if N in sizes or not samples_only}


def test_report_has_machine_settings_medians_ratios_products_and_memory(report):
    assert report["machine"]["threads"] == 1
    assert report["settings"]["sizes"] == SIZES
    assert "tensor accounting" in report["memory_is"]
    variables = 4 * 2 * N * (30 + 40)  # z and a of the hidden layers; m and f(z) come on top
    for of in report["modes"].values():
        assert set(of["ratios"]) == {
            "iteration/bare",
            "iteration/(bare+factorisations)",
            "iteration/minimal",
            "iteration/adam",
            "authors/iteration",
        }
        known = of["recorded_attempts"] in of["attempts"]  # a refused attempt makes another iteration of it
        assert all(ratio > 0 if known else ratio != 0 for ratio in of["ratios"].values())
        assert of["iteration_seconds"] > 0
        assert len(of["attempts"]) == 2
        assert variables * 2 < of["peak_memory_bytes"] < variables * 50
        assert of["product_count"] == sum(products(of, samples_only=False).values())
    ratios = report["modes"]["exact"]["ratios"]
    assert ratios["iteration/adam"] == pytest.approx(
        report["modes"]["exact"]["iteration_seconds"] / report["adam"]["epoch_seconds"]
    )
    assert report["modes"]["quadratic"]["attempts"] == [1, 1]


@pytest.mark.parametrize("mode", ["quadratic", "paper"])
def test_quadratic_iteration_does_the_minimal_products(report, mode):
    of, minimal = report["modes"][mode], report["minimal"]
    expected = {tuple(sorted((N, *pair))): 8 for pair in pairwise(SIZES)} | {(20, 30, N): 4}
    assert products(of) == expected
    with_samples = [op for op in of["operations"] if N in op["sizes"]]
    assert all(op["count"] == op["minimal"] for op in with_samples)
    assert sum(op["count"] for op in with_samples) == minimal["product_count"]
    assert sum(op["flops"] for op in with_samples) == minimal["product_flops"]
    assert of["product_flops"] < 1.05 * minimal["product_flops"]  # products without samples are small change
    assert minimal["product_count"] == 20
    assert minimal["product_flops"] == 2 * N * (4 * 20 * 30 + 8 * 30 * 40 + 8 * 40 * 7)


def test_exact_iteration_does_the_products_of_test_products(report):
    found = products(report["modes"]["exact"])
    assert (20, 20, N) not in found
    assert found[30, 30, N] == 1 + 2
    assert found[40, 40, N] == 1


def test_adam_does_three_products_a_layer_and_two_for_the_first(report):
    assert products(report["adam"]) == {(20, 30, N): 2, (30, 40, N): 3, (7, 40, N): 3}


def test_authors_structure_does_more_products_than_the_paper_preset(report):
    assert report["authors"]["product_count"] > report["modes"]["paper"]["product_count"]


def problem(sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(N, sizes[0], generator=generator, dtype=torch.float64)
    y = torch.randint(0, sizes[-1], (N,), generator=generator)
    loss = get_loss("cross_entropy")
    chain = mlp(sizes)
    params = fresh_parameters(chain, seed, 1.0, PAPER.init_std, torch.float64, torch.device("cpu"))
    return chain, x, Risk(loss, loss.encode(y, sizes[-1], torch.float64)), params


@pytest.mark.parametrize("sizes", [[9, 4], [9, 12, 4], SIZES])
@pytest.mark.parametrize("weight", [PAPER.rho, 1e-3, 1.0])
def test_authors_structure_makes_the_iteration_of_the_paper_preset(sizes, weight):
    """Including iterations whose loops have to search (large rho and nu) and those that start where one ended."""
    chain, x, risk, params = problem(sizes)
    pairs = [(p["W"], p["b"]) for p in params if p]
    slow = AuthorsStructure(x, risk, *zip(*pairs, strict=True), rho=weight, nu=weight)
    engine = Engine(chain, x, risk, None, PAPER.subproblems)
    state = engine.paper_state(params, weight, weight)
    for _ in range(2):
        before = [v.clone() for v in (*state.W, *state.b, *state.z, *state.a, state.u)]
        slow.iterate()
        engine.sweep(state)
        mine = (*slow.W[1:], *slow.b[1:], *slow.z[1:], *slow.a[1:], slow.u)
        theirs = (*state.W, *state.b, *state.z, *state.a, state.u)
        for one, other, old in zip(mine, theirs, before, strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)
            assert (one - other).norm() <= 1e-8 * (other - old).norm() + 1e-12  # of the move, however short
    if weight == 1.0:
        assert slow.backtracks > 0


def test_bare_products_are_the_recorded_ones():
    a = torch.randn(N, 6)
    with Recorder() as recorder:
        torch.addmm(torch.zeros(6, 3), a.T, torch.randn(N, 3))
        a @ torch.randn(4, 6).T
        a @ torch.randn(6)
        gram = (a.T @ a).double() + torch.eye(6)
        factor, _ = torch.linalg.cholesky_ex(gram)
        torch.cholesky_solve(torch.ones(2, 6, dtype=torch.float64).T, factor)
        torch.cholesky_inverse(factor)
    assert sum(recorder.operations.values()) == 7
    bare = Bare(recorder.operations, Operands(recorder.operations, torch.device("cpu")))
    with Recorder() as again:
        bare()
    assert again.operations == recorder.operations


def test_minimal_products_can_be_done():
    least = minimal_products(SIZES, N, torch.float32, False)
    bare = Bare(least, Operands(least, torch.device("cpu")))
    with Recorder() as recorder:
        bare()
    assert recorder.operations == least


def test_recorder_counts_living_tensors_once():
    data = torch.zeros(1000)
    with Recorder() as recorder:
        kept = data + 1
        kept.view(10, 100).T.add_(1)  # no new memory
        data.view(10, 100).clone()
        assert recorder.live == 4000
        del kept
    assert (recorder.live, recorder.peak) == (0, 8000)
    assert recorder.operations == Counter()
