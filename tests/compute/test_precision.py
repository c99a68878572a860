"""Products in less than float32: what is rounded, what is not, and what the certificate says."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from convergent import train
from dladmm import InputError, datasets, mlp
from dladmm.compute.execution import EAGER, Execution, exact_products, product_precision
from running_benchmarks import run_benchmark

ROUNDED = Execution(rounded_directions=True)


def factors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((40, 30), (30, 20), (40, 20))]


def test_directions_round_their_factors_to_bfloat16_and_nothing_else():
    left, right, start = factors()
    rounded = left.bfloat16().double() @ right.bfloat16().double()
    torch.testing.assert_close(ROUNDED.direction(left, right).double(), rounded, rtol=1e-5, atol=1e-5)
    found = ROUNDED.add_direction(start.clone(), left, right, 0.5)
    torch.testing.assert_close(found.double(), start.double() + 0.5 * rounded, rtol=1e-5, atol=1e-5)
    assert float((rounded - left.double() @ right.double()).abs().max()) > 1e-3


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_otherwise_a_direction_is_the_product(precision):
    left, right, start = factors()
    with product_precision(precision):
        assert torch.equal(EAGER.direction(left, right), left @ right)
        assert torch.equal(
            EAGER.add_direction(start.clone(), left, right, 2.0), start.addmm(left, right, alpha=2.0)
        )


def test_float64_is_never_rounded_and_the_precision_ends_with_its_block():
    left, right, start = factors(torch.float64)
    assert torch.equal(ROUNDED.direction(left, right), left @ right)
    found = ROUNDED.add_direction(start.clone(), left, right, 0.5)
    torch.testing.assert_close(found, start + 0.5 * left @ right, rtol=1e-14, atol=1e-14)
    before = torch.backends.cuda.matmul.allow_tf32
    with product_precision("bfloat16"):
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
def test_rounded_directions_keep_what_the_theory_promises(solver):
    data = datasets.load("digits")
    options = {
        "w_solver": solver,
        "a_solver": solver,
        "rho": 1.5,
        "nu": 0.5,
        "max_iter": 40,
        "dtype": "float32",
    }
    runs = [
        train(mlp([64, 20, 10], "relu"), data.x_train, data.y_train, precision=precision, **options)
        for precision in ("float32", "bfloat16")
    ]
    assert runs[1].certificate.certified, str(runs[1].certificate)
    losses = [run.history.last("loss") for run in runs]
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_the_benchmark_prints_every_mode_and_precision():
    settings = ("--dataset", "digits", "--rows", "60", "--widths", "5", "--iterations", "2")
    report, table = run_benchmark("precision.py", *settings)
    assert {(row["mode"], row["precision"]) for row in report["results"]} == {
        (mode, precision)
        for mode in ("quadratic", "exact", "accelerated")
        for precision in ("float32", "bfloat16")
    }
    assert table.count("\n") == 1 + len(report["results"])


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match=r"precision must be one of .*bfloat16"):
        train(mlp([2, 2], "relu"), torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), precision="float8")


def test_threads_of_different_precision_do_not_disturb_each_other():
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    wrong, barrier = [], threading.Barrier(4)

    def work(precision):
        barrier.wait()
        for _ in range(50):
            with product_precision(precision):
                for _ in range(5):
                    time.sleep(0)  # let another thread in
                    if matmul.allow_tf32 != (precision != "float32"):
                        wrong.append(precision)

    threads = [threading.Thread(target=work, args=(p,)) for p in ("float32", "tf32", "float32", "bfloat16")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_exact_products_in_several_threads_leave_the_switch_as_it_was():
    matmul = torch.backends.cuda.matmul
    with product_precision("tf32"):
        first, second = exact_products(), exact_products()
        first.__enter__()
        assert not matmul.allow_tf32
        second.__enter__()  # as another thread would, before the first has ended
        first.__exit__(None, None, None)
        assert not matmul.allow_tf32
        second.__exit__(None, None, None)
        assert matmul.allow_tf32
    assert not matmul.allow_tf32
