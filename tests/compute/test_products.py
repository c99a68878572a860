"""An iteration does exactly the matrix products NUMERICS 2 counts, and no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dladmm.blocks import Affine, Term, Work
from dladmm.blocks.affine_rows import gram_pays
from dladmm.compute.execution import Execution
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.regularizers import L2
from dladmm.solvers.subproblems import SubproblemOptions

N = 50


class ProductCounter(TorchDispatchMode):
    """Counts matrix products that touch the N samples, by their (sorted) sizes."""

    def __init__(self, n=N):
        super().__init__()
        self.n, self.products = n, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm", "matmul", "mv", "einsum"):
            left, right = [a for a in args if isinstance(a, torch.Tensor)][-2:]
            sizes = (*left.shape, right.shape[-1] if right.ndim > 1 else 1)
            if self.n in sizes:
                self.products[tuple(sorted(sizes))] += 1
        return func(*args, **(kwargs or {}))


def count(widths, iterations=1, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, widths[0], generator=generator)
    loss = get_loss("cross_entropy")
    y = torch.randint(0, widths[-1], (N,), generator=generator)
    chain = mlp(widths)
    risk = Risk(loss, loss.encode(y, widths[-1], torch.float32), None)
    engine = Engine(chain, x, risk, None, SubproblemOptions(**options))
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float32, device=torch.device("cpu"))
    state = engine.feasible_state(params, 1.5, 1.0)
    engine.sweep(state)
    with ProductCounter() as counter:
        for _ in range(iterations):
            engine.sweep(state)
            engine.energy(state)
    return counter.products


@pytest.mark.parametrize("widths", [[20, 30, 7], [20, 30, 40, 7], [20, 30, 35, 40, 7]])
@pytest.mark.parametrize("tight", [True, False])
def test_quadratic_iteration_does_4_products_for_the_first_layer_and_8_for_the_others(widths, tight):
    start = None if tight else 1.0
    products = count(widths, w_solver="quadratic", a_solver="quadratic", alpha0=start, t0=start)
    pairs = list(pairwise(widths))
    expected = Counter({tuple(sorted((N, *pair))): 8 for pair in pairs})
    expected[tuple(sorted((N, *pairs[0])))] = 4
    assert products == expected


def test_exact_iteration_forms_each_gram_matrix_once():
    """The Gram of the input is kept for ever, that of a hidden layer from the forward to the next backward sweep."""
    products = count([20, 30, 40, 7], iterations=3, w_solver="exact", a_solver="exact")
    assert products[(20, 20, N)] == 0
    assert products[(30, 30, N)] == 3 * (1 + 2)  # one Gram of a_1; the inverse of a wide layer applied twice
    assert products[(40, 40, N)] == 3


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
def test_with_many_samples_the_first_layer_takes_two_products(solver):
    """Both of its steps are made on the Gram matrix of the data, which is formed once."""
    products = count([12, 30, 7], iterations=3, w_solver=solver, a_solver="quadratic")
    assert products[(12, 30, N)] == 3 * 2
    assert products[(12, 12, N)] == 0


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("strength", [0.0, 0.3])
@pytest.mark.parametrize("start", [None, 1.0])
def test_two_steps_on_the_gram_matrix_are_the_two_steps(solver, rows, strength, start):
    generator = torch.Generator().manual_seed(1)
    block, n = Affine(5, 4), 40
    options = SubproblemOptions(w_solver=solver, alpha0=start)
    v = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    target = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    counts = torch.randint(1, 4, (n, 1), generator=generator).double() if rows else None
    params = block.initial_parameters(generator, 1.0)
    found = []
    assert gram_pays(n, block.n_in)
    joined, one_by_one = [(False, True)], [(False,), (True,)]
    for orders, shortcuts in ((joined, True), (one_by_one, True), (joined, False), (one_by_one, False)):
        mine = {name: p.clone() for name, p in params.items()}
        term, steps = Term(1.7, target, block.forward(mine, v)), []
        work = Work(options, counts=counts, how=Execution(shortcuts=shortcuts))
        with ProductCounter(n) as counter:
            for order in orders:
                steps += block.update_parameters(mine, v, term, L2(strength), replace(work, order=order))
        on_gram = orders is joined and shortcuts
        assert counter.products[(4, 5, n)] == (2 if on_gram else 4)
        torch.testing.assert_close(term.prediction, block.forward(mine, v))
        found.append([*mine.values(), *(value for s in steps for value in (s.squared, s.rate))])
        assert [s.variable for s in steps] == ["b", "W", "W", "b"]
    for others in found[1:]:
        for mine, theirs in zip(found[0], others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
