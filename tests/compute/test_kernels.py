"""Hand-written kernels do what the functions beside them say: on a GPU, or emulated on a CPU where there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import emulation
from dladmm.activations import get_activation
from dladmm.blocks import affine_rows
from dladmm.blocks.max_pool import _solved
from dladmm.compute import (
    execution,
    hand_written,
    kernels,
    narrow_kernels,
    passes,
    product_kernels,
    products,
    sparse,
)
from dladmm.compute.execution import Execution, Pass
from dladmm.compute.gpu.code import FOLDER, Kernel
from dladmm.compute.passes import (
    _descend,
    _inner_products,
    _total_square,
    advance,
    difference,
    inner_and_square,
    solve_entries,
    solve_rows,
)
from dladmm.compute.work import Work
from dladmm.losses import cross_entropy
from dladmm.losses.cross_entropy import _INNER_STEPS, softmax_prox
from dladmm.network.input_dropout import InputDropout
from dladmm.solvers import factor, least_squares, subproblems, weight_step
from dladmm.solvers.factor import full_precision_gram
from dladmm.solvers.step_along import _rises

PLAIN, KERNELS = Execution(kernels=False), Execution()
EMULATED = not torch.cuda.is_available()
DEVICE = "cpu" if EMULATED else "cuda"
possible = pytest.mark.skipif(EMULATED and emulation.COMPILER is None, reason="needs a C++ compiler")
pytestmark = [pytest.mark.gpu, possible]


@pytest.fixture(autouse=True)
def _kernels_are_used(monkeypatch, caplog):
    """A kernel that cannot be made would leave its work to the function that it is compared with."""
    if EMULATED:
        emulate(monkeypatch)
    monkeypatch.setattr(Pass, "__call__", noting(Pass.__call__))
    monkeypatch.setattr(kernels, "SUMMING_BLOCKS", 3)  # each takes several parts, the last fewer
    yield
    records = caplog.get_records("call")
    assert not [record for record in records if record.name.startswith("dladmm")]


def emulate(monkeypatch):
    """A CPU is taken for a GPU of the kind that all kernels are for."""
    for module in (execution, factor):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(Kernel, "__call__", emulation.launch)
    monkeypatch.setattr(kernels, "WORTH_A_KERNEL", 0)
    monkeypatch.setattr(product_kernels, "_capability", lambda device: 9)
    monkeypatch.setattr(product_kernels, "_processors", lambda device: 5)
    monkeypatch.setattr(hand_written, "_kernel", kernels.KERNELS.get)


def noting(call):
    """The same, which fails where a kernel was to be used and was not."""

    def noted(self, how, *rows, **constants):
        if how.kernels:
            copies = [None if tensor is None else tensor.clone() for tensor in rows]
            assert self._by_hand(*copies, **constants) is not None, self.__name__
        return call(self, how, *rows, **constants)

    return noted


SHAPE, IMAGES = ((70, 139), 2) if EMULATED else ((700, 397), 70)


def rows(*shape, seed=0):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(*(shape or SHAPE), generator=generator, device=DEVICE)


def both(run, *tensors, **constants):
    """What the pass writes and returns, with its kernel and without."""
    found = []
    for how in (KERNELS, PLAIN):
        own = [None if tensor is None else tensor.clone() for tensor in tensors]
        before = [None if tensor is None else tensor._version for tensor in own]
        returned = run(how, *own, **constants)
        counted = [b is not None and t._version > b for t, b in zip(own, before, strict=True)]
        found.append((returned, own, counted))
    return found


def alike(found, *, tolerance=2e-6):
    (returned, kernel, counted), (expected, plain, expected_counted) = found
    # Sums of float32 numbers, some of which cancel: rounding is relative to the entries, not to the sum
    torch.testing.assert_close(
        returned, expected, rtol=1e-5, atol=1e-8 * sum(t.numel() for t in plain if t is not None)
    )
    for first, second in zip(kernel, plain, strict=True):
        if first is not None:
            torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)
    assert all(own or not wanted for own, wanted in zip(counted, expected_counted, strict=True))


@pytest.mark.parametrize("width", [3, 397, 1200])
def test_inner_products_of_rows(width):
    n = SHAPE[0] if EMULATED else (1 << 18) // width + 1  # enough for the kernel
    x, y = rows(n, width), rows(n, width, seed=1)
    sums = [torch.full((n,), torch.nan, dtype=torch.float64, device=DEVICE) for _ in range(2)]
    found = both(_inner_products, x, y, *sums)
    (_, (*_, products, squares), _), _ = found
    torch.testing.assert_close(products, (x.double() * y.double()).sum(1), rtol=0, atol=1e-4)
    torch.testing.assert_close(squares, y.double().square().sum(1), rtol=1e-6, atol=0)
    alike(found, tolerance=1e-4)


def test_total_squares():
    found = both(_total_square, rows(), None)
    alike(found)
    assert float(found[0][0]) == pytest.approx(float(rows().double().square().sum()), rel=1e-6)


def test_difference():
    alike(both(difference, torch.full_like(rows(), torch.nan), rows(), rows(seed=1)), tolerance=0)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("moved", [True, False])
def test_advance(left, moved):
    x, move, target = rows(), rows(seed=1), rows(seed=2)
    shift, multiple = rows(SHAPE[1], seed=3), torch.tensor(0.3, device=DEVICE)
    residual = torch.full_like(x, torch.nan) if left else None
    alike(both(advance, x, move if moved else None, target, residual, multiple=multiple, shift=shift))


def test_advance_of_images():
    x, move, shift = rows(IMAGES, 8, 28, 28), rows(IMAGES, 8, 28, 28, seed=1), rows(8, 1, 1, seed=3)
    alike(both(advance, x, move, None, None, multiple=torch.tensor(0.3, device=DEVICE), shift=shift))


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_descend(left, by_row, measured):
    x, d, other = rows(), rows(seed=1), rows(seed=2)
    residual = torch.full_like(x, torch.nan) if left else None
    far = rows(SHAPE[0], 1, seed=4) if by_row else None
    step = None if by_row else torch.tensor(0.7, device=DEVICE)
    alike(both(_descend, x, d, other, residual, None, far, step=step, measured=measured))


@pytest.mark.parametrize("weight", [0.1, 1.0, 30.0])
def test_relu_entries(weight):
    m, a = rows(), rows(seed=1)
    a[0, 0] = torch.nan
    out = [torch.full_like(m, torch.nan) for _ in range(4)]
    z, f, residual, offset = out
    found = both(
        solve_entries, z, f, m, a, None, residual, offset, activation=get_activation("relu"), weight=weight
    )
    for _, tensors, _ in found:
        assert tensors[0][0, 0].isnan(), "a number that is none is not hidden"
        for tensor in tensors:
            if tensor is not None:
                tensor[0, 0] = 0
    found = [(torch.zeros(()), tensors, counted) for _, tensors, counted in found]
    alike(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("classes", [2, 10, 70])
@pytest.mark.parametrize("r", [1e-8, 0.01, 0.2, 300.0, None])
def test_the_softmax_prox(monkeypatch, classes, r, dtype):
    """All steps in one launch; None is a number of each row."""
    answers, by_hand = [], cross_entropy._prox_by_hand
    monkeypatch.setattr(
        cross_entropy, "_prox_by_hand", lambda *given: answers.append(by_hand(*given)) or answers[-1]
    )
    n, how = SHAPE[0], replace(PLAIN, recorded=True)
    v = (3 if r is None else min(100, 3 / r**0.5)) * rows(n, classes).to(dtype)
    y = torch.nn.functional.one_hot(torch.arange(n, device=DEVICE) % classes, classes).to(dtype)
    y[0] = 0.5 / classes  # soft labels
    given = rows(n, 1, seed=1).exp().to(dtype) if r is None else r
    found = softmax_prox(v, y, given, replace(how, kernels=True))
    assert len(answers) == 1
    assert answers[0] is found
    assert found.dtype == dtype
    expected = softmax_prox(v.double(), y.double(), given.double() if r is None else r, how)
    close = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(found.double(), expected, rtol=close, atol=close)
    assert f"INNER = {_INNER_STEPS};" in (FOLDER / "softmax.cu").read_text()


def test_rows_that_a_rank_does_not_have():
    """Passes that take few rows take none as well."""
    none, steps = rows(1, 10)[:0], torch.ones(3, dtype=torch.float64, device=DEVICE)
    found = kernels.softmax_prox(none, none, 1.0, 5, 2)
    assert found is not None
    assert found.shape == none.shape
    sums = kernels.rises(none, none, none, none, steps=steps, activation=get_activation("relu"))
    assert sums.tolist() == [0.0] * 3


def test_rises_of_a_search():
    steps = 0.8 ** torch.arange(70, dtype=torch.float64, device=DEVICE)
    tensors = rows(), rows(seed=1), rows(seed=2), rows(seed=3)
    kernel, plain = (
        _rises(how, *tensors, steps=steps, activation=get_activation("relu")) for how in (KERNELS, PLAIN)
    )
    assert kernel.shape == (70,)
    torch.testing.assert_close(kernel, plain, rtol=1e-5, atol=1e-3)


def numbers(*values, dtype=torch.float64):
    return [torch.tensor(value, dtype=dtype, device=DEVICE) for value in values]


def by_kernel_and_plain(run, *given, **constants):
    found = run.kernel(*given, **constants)
    assert found is not None
    expected = run.function(*given, **constants)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for first, second in pairs:
        assert first.shape == second.shape
        torch.testing.assert_close(first, second, rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("start", [None, 1.0, 0.37])
@pytest.mark.parametrize("squares", [(0.0, 0.0), (2.5, 0.3), (1e-12, 3e4), (4.0, 4.0), (math.nan, 1.0)])
def test_numbers_of_majorised_steps(squares, start):
    given = numbers(*squares)
    by_kernel_and_plain(subproblems._majorised_numbers, *given, c=0.7, nu=0.02, start=start, growth=2.0)
    given.append(torch.tensor(8.0, device=DEVICE))  # the power of a float32 heading
    for power in (1.0, given[-1], given[-1].double()):
        length = weight_step._majorised_length
        by_kernel_and_plain(length, *given[:2], power, c=0.5, strength=0.03, start=start, growth=1.5)


@pytest.mark.parametrize("power", range(1, 12))
def test_a_curvature_just_above_a_power_takes_the_next(power):
    """Where the logarithm rounds to the power itself. Powers of two devices may differ in the last place."""
    for growth in (1.5, 2.0, 1.1):
        given = numbers(1.0, 2 * math.nextafter(growth**power, math.inf))
        length, c = weight_step._majorised_length, 0.5
        for run in (length.kernel, length.function):
            multiple, *_ = run(*given, 1.0, c=c, strength=0.0, start=1.0, growth=growth)
            required = c * float(given[1])
            assert required * (1 - 1e-15) <= c / float(multiple) <= growth * required * (1 + 1e-15)


@pytest.mark.parametrize("slope", [0.0, 3.1, -0.2])
@pytest.mark.parametrize("shifted", [0.0, 0.4])
def test_numbers_of_solved_steps(slope, shifted):
    for squared, moved in ((1.5, 2.0), (0.0, 0.0)):
        given = numbers(squared, moved, slope, shifted)
        by_kernel_and_plain(weight_step._solved_length, *given, c=0.5, strength=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_power_above(dtype):
    for low, high in ((-3.0, 2.0), (0.0, 0.0), (-1.0, 1.0), (1e-30, 2e-30), (-1e-45, 0.0), (-1e38, 3e38)):
        by_kernel_and_plain(passes._power_above, *numbers(low, high, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 10, 700])
def test_the_mean_of_residuals(n, dtype):
    sums = rows(n, 1)[:, 0].double()
    for samples in (130, 17.5, *numbers(21.0)):
        by_kernel_and_plain(least_squares._mean, sums, dtype=dtype, samples=samples, weight=0.3)


def test_numbers_that_a_kernel_does_not_do_are_left_to_the_function():
    number, single, several = *numbers(1.0), *numbers(1.0, dtype=torch.float32), rows(3, 1)[:, 0].double()
    search = {"c": 1.0, "start": None, "growth": 2.0}
    refused = (
        kernels.majorised_numbers(several, several, nu=1.0, **search),
        kernels.majorised_numbers(single, single, nu=1.0, **search),
        kernels.majorised_length(number, number, 1.0, strength=number, **search),
        kernels.majorised_length(number, number, several, strength=0.0, **search),
        kernels.majorised_length(number, number, 2.0, strength=0.0, **search),
        kernels.solved_length(number, number, single, number, c=1.0, strength=0.0),
        kernels.power_above(single, number),
        kernels.mean_shift(rows(3, 1)[:, 0], dtype=torch.float32, samples=3, weight=1.0),
        kernels.mean_shift(rows(3, 2).double(), dtype=torch.float32, samples=3, weight=1.0),
        kernels.mean_shift(several, dtype=torch.float16, samples=3, weight=1.0),
        kernels.mean_shift(several, dtype=torch.float32, samples=several, weight=1.0),
    )
    assert refused == (None,) * len(refused)


def test_numbers_are_one_launch_where_launches_are_recorded(monkeypatch):
    calls, given = [], numbers(2.0, 3.0)
    monkeypatch.setattr(subproblems._majorised_numbers, "kernel", lambda *_, **__: calls.append(1) or "done")
    search = {"c": 1.0, "nu": 1.0, "start": None, "growth": 2.0}
    recorded = replace(KERNELS, recorded=True)
    assert subproblems._majorised_numbers(recorded, *given, **search) == "done"
    for how in (KERNELS, replace(recorded, kernels=False)):
        assert len(subproblems._majorised_numbers(how, *given, **search)) == 3
    assert calls == [1]


def test_inner_and_square():
    alike(both(inner_and_square, rows(), rows(seed=1), rows(seed=2), None), tolerance=0)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_dropped_entries_are_the_same(share):
    x = rows()
    drops = InputDropout(x, seed=5)
    kernel, plain = (drops.apply(x, share, 17, how).clone() for how in (KERNELS, PLAIN))
    assert torch.equal(kernel == 0, plain == 0)
    torch.testing.assert_close(kernel, plain, rtol=1e-6, atol=0)


def test_max_pool_of_ties_and_of_others():
    m = rows(IMAGES, 8, 28, 28).mul(2).round().div(2)  # many ties
    m[1:] += rows(IMAGES - 1, 8, 28, 28, seed=1)
    v, f, a = (rows(IMAGES, 8, n, n, seed=seed) for n, seed in ((28, 2), (14, 3), (14, 4)))
    alike(both(solve_rows, v, f, m, a, None, solve=_solved, window=(2, 2), nu=0.3, c=1.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 64, 300])
@pytest.mark.parametrize("lengths", [(0, 1, 3, 40, 0), (2, 0, 700, 0, 1300)])
def test_row_sums(monkeypatch, lengths, width, dtype):
    """Rows without entries, rows that are added up in pieces, and widths that are not a power of two."""
    n = 2003
    lengths, rng = [min(n, length) for length in lengths], np.random.default_rng(0)
    matrix = np.zeros((len(lengths), n))
    for row, length in zip(matrix, lengths, strict=True):
        row[rng.permutation(n)[:length]] = rng.normal(size=length)
    csr = sparse.csr_tensor(matrix, dtype, torch.device(DEVICE))
    monkeypatch.setattr(sparse, "LONGEST_PIECE", 512)
    sums, dense = sparse.RowSums(csr), rows(n, width).to(dtype)
    assert (sums.piece_starts is None) == (max(lengths) <= sparse.LONGEST_PIECE)
    monkeypatch.setattr("dladmm.compute.product_kernels.WORTH_ROW_SUMS", 0)
    monkeypatch.setattr(sparse, "on_gpu", lambda tensor: True)
    assert sparse._ROW_SUMS_BY_HAND(sums.columns, sums.values, sums.starts, dense) is not None
    by_hand = sums @ dense
    monkeypatch.setattr(sparse, "on_gpu", lambda tensor: False)
    close = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(by_hand, sums @ dense, **close)


def test_what_a_kernel_does_not_do_is_left_to_the_function():
    """Rows that count differently, other strides and types, other activations and windows."""
    x, d, step = rows(), rows(seed=1), torch.tensor(0.7, device=DEVICE)
    counts, relu = torch.ones(len(x), 1, device=DEVICE), get_activation("relu")
    images, windows = rows(2, 3, 6, 6), rows(2, 3, 2, 2)
    n = product_kernels.WORTH_ROW_SUMS // 40 + 1
    ones = torch.ones(n, dtype=torch.int32, device=DEVICE)
    refused = (
        kernels.descend(x, d, d, None, counts, None, step=step, measured=True),
        kernels.descend(x.T, d.T, d.T, None, None, None, step=step, measured=True),
        kernels.solve_entries(x, None, d, d, counts, None, None, activation=relu, weight=1.0),
        kernels.solve_entries(x, None, d, d, None, None, None, activation=get_activation("tanh"), weight=1.0),
        kernels.inner_and_square(x, d, d, counts),
        kernels.total_square(x, counts),
        kernels.total_square(x.T, None),
        kernels.inner_and_square(x.double(), d.double(), d.double(), None),
        kernels.solve_rows(
            images, windows, images, windows, None, solve=_solved, window=(3, 3), nu=1.0, c=1.0
        ),
        kernels.row_sums(ones, None, ones, rows(SHAPE[0], 1)),  # too little work
        kernels.row_sums(ones, None, ones, rows(40, SHAPE[0]).T),
        kernels.row_sums(ones, None, ones, rows(SHAPE[0], 40).half()),
        kernels.row_sums(ones, x.new_ones(n, dtype=torch.float64), ones, rows(SHAPE[0], 40)),
    )
    assert refused == (None,) * len(refused)


@pytest.fixture
def long_products(monkeypatch):
    """Every product is long enough for its kernel, which asks for a GPU that it was measured on."""
    monkeypatch.setattr(products, "LONG", 0)
    monkeypatch.setattr(products, "NARROW", 0)
    if not EMULATED and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a CUDA device of compute capability 9")


def product_errors(found, start, x, matrix, scale):
    """Largest and mean error, over the product of absolute values."""
    exact = (0.0 if start is None else start.double()) + scale * (x.double() @ matrix.double())
    size = abs(scale) * (x.double().abs() @ matrix.double().abs()) + 1e-300
    error = (found.double() - exact) / size
    return float(error.abs().max()), abs(float(error.mean()))


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("start", [None, "row", "matrix"])
@pytest.mark.parametrize(
    "shape", [(130, 36, 131), (129, 61, 128), (7, 4, 1), (300, 200, 140) if EMULATED else (1300, 1000, 784)]
)
def test_products_of_rows(long_products, shape, start, positive):
    """As exact as torch's own, whose errors grow with the length of the sums; ``matrix`` as it is used, by columns."""
    m, k, n = shape
    x, matrix = rows(m, k), rows(n, k, seed=1).T
    x, matrix = (x.relu(), matrix.relu()) if positive else (x, matrix)
    first = {"row": rows(n, seed=2), "matrix": rows(m, n, seed=2), None: None}[start]
    out = torch.full((m, n), torch.nan, device=DEVICE)
    before = out._version
    given = (None, x, matrix, 1.0, out) if start is None else (first, x, matrix, -0.7, out)
    if start is None:
        found = execution.times(x, matrix, out)
        plain = torch.mm(x, matrix)
    else:
        found = execution.plus_times(*given)
        plain = torch.addmm(first, x, matrix, alpha=-0.7)
    assert found is out
    assert out._version > before
    largest, mean = product_errors(found, given[0], *given[1:4])
    plain_largest, _ = product_errors(plain, given[0], *given[1:4])
    assert largest <= 2 * plain_largest + 4e-7
    assert mean <= 1.5e-7  # of positive numbers: tensor cores round 32 additions down


@pytest.fixture
def narrow_products(monkeypatch):
    """Every product with a factor of few columns is large enough for its kernel."""
    monkeypatch.setattr(products, "WORTH_A_NARROW_KERNEL", 0)
    monkeypatch.setattr(products, "WIDE", 17)
    for parts in ("SUMMED", "WRITTEN"):
        monkeypatch.setattr(narrow_kernels, parts, 20)


@pytest.fixture
def narrow_calls(monkeypatch):
    """What the kernels for few columns answer."""
    answers = []
    for name in ("_few_by_hand", "_few_sums_by_hand"):
        by_hand = getattr(products, name)
        noted = lambda *given, by_hand=by_hand: answers.append(by_hand(*given)) or answers[-1]  # noqa: E731
        monkeypatch.setattr(products, name, noted)
    yield answers
    assert answers
    assert all(answer is not None for answer in answers)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("start", [None, "row", "matrix"])
@pytest.mark.parametrize("shape", [(130, 72, 3), (33, 64, 16), (130, 3, 1100), (41, 10, 72), (5, 1, 40)])
def test_products_with_few_columns(narrow_products, narrow_calls, shape, start, by_columns):
    m, k, n = shape
    x, matrix = rows(m, k), rows(n, k, seed=1).T if by_columns else rows(k, n, seed=1)
    first = {"row": rows(n, seed=2), "matrix": rows(m, n, seed=2), None: None}[start]
    out = torch.full((m, n), torch.nan, device=DEVICE)
    before = out._version
    if start is None:
        found, scale = execution.times(x, matrix, out), 1.0
    else:
        found, scale = execution.plus_times(first, x, matrix, -0.7, out), -0.7
    assert found is out
    assert out._version > before
    begin = 0.0 if first is None else first.double()
    expected = begin + scale * x.double() @ matrix.double()
    size = x.double().abs() @ matrix.double().abs() + (0.0 if first is None else first.double().abs())
    assert float(((found.double() - expected) / size).abs().max()) <= 1e-6


@pytest.mark.parametrize("shape", [(130, 3, 1100), (67, 10, 72), (5, 16, 20)])
def test_headings_of_few_columns(narrow_products, shape):
    """d over o, its product with W, and the squares of both; rows that are not there count nothing."""
    n, few, width = shape
    o, E, W = rows(n, width), rows(n, few, seed=1), rows(few, width, seed=2)
    d, moved = o.clone(), torch.full((n, few), torch.nan, device=DEVICE)
    before = d._version, moved._version
    squares = products.headings(d, E, W, 0.3, moved)
    assert all(x._version > old for x, old in zip((d, moved), before, strict=True))
    torch.testing.assert_close(d, o + 0.3 * E @ W, rtol=1e-5, atol=1e-5)
    largest, _ = product_errors(moved, None, d, W.T, 1.0)
    assert largest <= 1e-6
    expected = torch.stack([x.double().square().sum() for x in (d, moved)])
    torch.testing.assert_close(squares, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", ["plain", "counts", "by rows", "rounded"])
def test_the_heading_of_a_is_the_same_with_its_kernel_and_without(narrow_products, monkeypatch, case):
    """Where rows count differently, have lengths of their own or round their products, the kernel is not asked."""
    asked = []
    monkeypatch.setattr(kernels, "WORTH_A_KERNEL", 0)  # the rows are few
    monkeypatch.setattr(affine_rows, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(affine_rows, "headings", lambda *given: asked.append(1) or products.headings(*given))
    n, few, width = 67, 3, 72
    W, a, value = rows(few, width, seed=2), rows(n, width), rows(n, width, seed=3)
    term = subproblems.Term(0.7, rows(n, few, seed=4), rows(n, few, seed=5))
    counts = torch.arange(1.0, n + 1, device=DEVICE)[:, None] if case == "counts" else None
    options = subproblems.SubproblemOptions(tau_per_sample=case == "by rows")
    found = []
    for how in (KERNELS, PLAIN):
        how = replace(how, rounded_directions=case == "rounded")
        work = Work(options=options, counts=counts, how=how)
        found.append(affine_rows.heading_a(W, a, value, 0.3, term, work, measured=True))
    assert asked == ([1] if case == "plain" else [])
    (d, moved, squares), (expected, expected_moved, expected_squares) = found
    torch.testing.assert_close(d, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved, expected_moved, rtol=1e-4, atol=1e-4)
    for own, other in zip(squares, expected_squares, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=0)


def test_headings_that_are_left_to_torch(narrow_products):
    o, E, W, moved = rows(130, 72), rows(130, 3), rows(3, 72), rows(130, 3)
    refused = (
        products.headings(rows(130, 3), o, W.T.contiguous(), 1.0, rows(130, 72)),  # W is high, not wide
        products.headings(rows(130, 70), E, rows(3, 70), 1.0, moved),
        products.headings(o, E, rows(72, 3).T, 1.0, moved),
        products.headings(o.double(), E, W, 1.0, moved),
    )
    assert refused == (None,) * len(refused)


@pytest.mark.parametrize("shape", [(130, 3, 1100), (41, 10, 72), (33, 16, 20)])
def test_sums_of_few_columns(narrow_products, narrow_calls, shape):
    n, few, width = shape
    x, y = rows(n, few), rows(n, width, seed=1)
    found = execution.times(x.T, y)
    assert found.shape == (few, width)
    largest, _ = product_errors(found, None, x.T, y, 1.0)
    assert largest <= 1e-6


def test_a_narrow_product_may_take_the_place_of_what_it_is_added_to(narrow_products, narrow_calls):
    for k, n in ((72, 3), (3, 72)):
        x, matrix, start = rows(130, k), rows(k, n, seed=1), rows(130, n, seed=2)
        expected = start.double() + 3 * x.double() @ matrix.double()
        torch.testing.assert_close(
            execution.plus_times(start, x, matrix, 3.0, start).double(), expected, rtol=1e-4, atol=1e-4
        )


def test_narrow_products_that_are_left_to_torch(narrow_products):
    x, few = rows(130, 72), rows(72, 3, seed=1)
    assert products.by_hand(None, x, rows(72, 17), 1.0, None) is None, "too many columns"
    assert products.by_hand(None, x[:, :10].contiguous(), few[:10], 1.0, None) is None, "none has many"
    refused = (
        narrow_kernels.few_rows_times(None, x.T.contiguous().T, few, 1.0, None),
        narrow_kernels.few_rows_times(None, x.double(), few.double(), 1.0, None),
        narrow_kernels.few_rows_times(None, x, few.clone().requires_grad_(), 1.0, None),
        narrow_kernels.few_rows_times(rows(1, 3), x, few, 1.0, None),
        narrow_kernels.few_over_rows(rows(3, 130).T, x),
        narrow_kernels.few_over_rows(rows(130, 3), x.double()),
        narrow_kernels.few_rows_times(None, x[:, :70].contiguous(), few[:70], 1.0, None),  # not in fours
        narrow_kernels.few_rows_times(None, rows(130, 3), rows(3, 70), 1.0, None),
        narrow_kernels.few_over_rows(rows(130, 3), x[:, :70].contiguous()),
        narrow_kernels.few_over_rows(rows(130, 3), rows(130 * 72 + 1, 1)[1:].reshape(130, 72)),
    )
    assert refused == (None,) * len(refused)


@pytest.mark.parametrize("n", [132, 135])
def test_sums_of_rounded_products_are_made_in_parts(long_products, n):
    x, y = rows(n, 36), rows(n, 140, seed=1)
    with execution.product_precision("tf32"):
        found = execution.times(x.T, y)
        assert products.sums_over_rows(x[:, :30], y) is None, "with gaps between the rows"
    assert found.dtype == torch.float32
    close = 1e-4 if EMULATED else 1e-1  # as TF32 rounds
    torch.testing.assert_close(found, x.T @ y, rtol=0, atol=close)


def test_a_product_may_take_the_place_of_what_it_is_added_to(long_products):
    x, matrix, start = rows(130, 36), rows(36, 140, seed=1), rows(130, 140, seed=2)
    expected = start.double() + 3 * x.double() @ matrix.double()
    torch.testing.assert_close(
        execution.plus_times(start, x, matrix, 3.0, out=start).double(), expected, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(execution.times(x, matrix), x @ matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(130, 36, 131), (7, 4, 1), (150, 257, 129)]
    if EMULATED
    else [(130, 36, 131), (64, 128, 130), (7, 4, 1), (5000, 1000, 784), (3001, 257, 129)],
)
def test_sums_over_rows(long_products, shape, positive):
    """As exact as torch's own, of scaled columns and rows too, and of a matrix with itself."""
    n, p, q = shape
    x = rows(n, p) * torch.logspace(-6, 3, p, device=DEVICE)
    y = rows(n, q, seed=1) * torch.logspace(-8, 2, n, device=DEVICE)[:, None]
    x, y = (x.relu(), y.relu()) if positive else (x, y)
    for left, right in ((x, y), (x, x), (y, y)):
        found, plain = products.sums_over_rows(left, right), left.T @ right
        assert found.dtype == torch.float64
        largest, mean = product_errors(found, None, left.T, right, 1.0)
        plain_largest, _ = product_errors(plain, None, left.T, right, 1.0)
        assert largest <= 2 * plain_largest + 4e-7
        assert mean <= 1.5e-7
    out = torch.full((p, q), torch.nan, device=DEVICE)
    assert execution.times(x.T, y, out) is out
    torch.testing.assert_close(out, products.sums_over_rows(x, y).float())
    assert torch.equal(products.sums_over_rows(x, x), products.sums_over_rows(x, x).T)


def test_gram_matrices_are_sums_over_rows(long_products):
    x, counts = rows(700, 140), torch.rand(700, 1, device=DEVICE)
    exact = (x.double() * counts).T @ x.double()
    torch.testing.assert_close(full_precision_gram(x, counts), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_none_is_not_hidden_by_a_product(long_products, bad):
    x, y = rows(300, 132), rows(132, 140, seed=1)
    x[70, 3] = bad
    product, sums = execution.times(x, y), products.sums_over_rows(x, x.relu())
    assert product[70].isnan().all()
    assert product[69].isfinite().all()
    assert sums[3].isnan().all()
    assert sums[:, 3].isnan().all()
    assert sums[4:, 4:].isfinite().all()


def test_products_that_the_kernel_is_not_for(long_products, monkeypatch):
    rows_times = product_kernels.rows_times
    x, matrix = rows(130, 36), rows(36, 140, seed=1)
    assert rows_times(None, x, matrix, 1.0, None) is not None
    assert rows_times(None, x[:, :34], matrix[:34], 1.0, None) is None
    assert rows_times(None, rows(36, 130).T, matrix, 1.0, None) is None
    assert rows_times(None, x.double(), matrix.double(), 1.0, None) is None
    assert rows_times(rows(140, 130).T, x, matrix, 1.0, None) is None
    assert rows_times(rows(1, 140), x, matrix, 1.0, None) is None
    assert rows_times(None, x, matrix, 1.0, torch.empty(130, 280, device=DEVICE)[:, :140]) is None
    assert rows_times(None, x, matrix.clone().requires_grad_(), 1.0, None) is None
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert rows_times(None, x, matrix, 1.0, None) is None
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert rows_times(None, x, matrix, 1.0, None) is not None
    monkeypatch.setattr("dladmm.compute.product_kernels._capability", lambda device: 8)
    assert rows_times(None, x, matrix, 1.0, None) is None


def test_what_is_read_in_units_of_16_bytes_begins_at_one(monkeypatch):
    read, chosen = [], []
    monkeypatch.setattr(product_kernels, "_split_rows", lambda grid, x, *_: read.append(x.data_ptr() % 16))
    shifted = rows(130 * 36 + 1)[1:].view(130, 36)
    assert shifted.data_ptr() % 16
    product_kernels._parts(shifted)
    product_kernels._parts(rows(130, 36))
    assert read == [0, 0]
    monkeypatch.setattr(product_kernels, "WORTH_ROW_SUMS", 0)
    kernels_by_key = {key: lambda *_, key=key: chosen.append(key[2]) for key in product_kernels._row_sums}
    monkeypatch.setattr(product_kernels, "_row_sums", kernels_by_key)
    columns, starts = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in (4, 3))
    for dense in (shifted, rows(130, 36), rows(130, 35)):
        product_kernels.row_sums(columns, None, starts, dense)
    assert chosen == [1, 4, 1]


def test_gradients_go_through_the_function(monkeypatch):
    """Baselines are trained by autograd, which does not see into a kernel."""
    monkeypatch.setattr("dladmm.compute.product_kernels.WORTH_ROW_SUMS", 0)
    matrix = sparse.csr_tensor(np.eye(30), torch.float32, torch.device(DEVICE))
    dense = rows(30, 4).requires_grad_()
    (sparse.RowSums(matrix) @ dense).sum().backward()
    torch.testing.assert_close(dense.grad, torch.ones_like(dense))


def test_a_copy_is_what_was_copied():
    x = rows(50, 3)
    x[0] = torch.tensor([math.nan, -0.0, math.inf])
    out = torch.empty_like(x)
    assert execution.copied(x, out) is out
    torch.testing.assert_close(out, x, rtol=0, atol=0, equal_nan=True)
    assert out[0, 1].signbit()
