"""Kernels made side by side while a run is set up.

Their compiler takes some tenths of a second for a file, and needs no lock of Python's. So the files are compiled by
threads of their own; the run waits for them when it first needs a kernel (:mod:`dladmm.compute.hand_written`).
Meanwhile torch reads its libraries of products and factorisations from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from dladmm.compute.gpu.code import Unit
from dladmm.compute.kernels import PASSES, WORTH_A_KERNEL
from dladmm.compute.narrow_kernels import narrow
from dladmm.compute.number_kernels import NUMBERS
from dladmm.compute.product_kernels import PRODUCT, SPLIT
from dladmm.compute.softmax_kernels import SOFTMAX


def rehearse(entries: int, classes: int, few: int, product: bool, device: torch.device) -> None:
    """Make the kernels of an MLP with so many entries of a variable; ``product`` says whether its products are long.

    ``classes`` are those of a softmax, ``few`` the columns of narrow products; 0 is none.
    """
    work: list[Callable[[], object]] = [
        partial(unit.load, device) for unit in units(entries, classes, few, product)
    ]
    if not work:
        return
    work += [partial(_load_products, device), partial(_load_factorisations, device)]
    with ThreadPoolExecutor(len(work)) as threads:
        list(threads.map(partial(_on, device), work))


def units(entries: int, classes: int, few: int, product: bool) -> list[Unit]:
    """What is to be compiled, the slowest first."""
    found = [PRODUCT, SPLIT] if product else []
    found += [PASSES, NUMBERS] if entries >= WORTH_A_KERNEL else []
    found += [narrow(few).unit] if few else []
    return found + ([SOFTMAX] if classes else [])


def _on(device: torch.device, work: Callable[[], object]) -> None:
    with torch.cuda.device(device):
        work()


def _load_products(device: torch.device) -> None:
    """The library that torch multiplies with, in the two precisions of an iteration."""
    for dtype in (torch.float32, torch.float64):
        x = torch.eye(32, dtype=dtype, device=device)
        torch.mm(x, x)


def _load_factorisations(device: torch.device) -> None:
    """Those that torch factorises matrices with, which it reads from disk at the first call."""
    eye = torch.eye(32, dtype=torch.float64, device=device)
    factor, _ = torch.linalg.cholesky_ex(eye)
    torch.linalg.solve_triangular(factor.expand(2, 32, 32), eye.expand(2, 32, 32), upper=False)
    torch.cholesky_inverse(factor)
