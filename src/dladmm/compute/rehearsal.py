"""Kernels made side by side while a run is set up.

Making one takes a second of waiting for compilers, and a run needs nine. So each is launched once on nothing, by
threads of their own; the run waits for them when it first needs one (:mod:`dladmm.compute.hand_written`).
Meanwhile torch reads its libraries of factorisations from disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from dladmm.compute import triton_code
from dladmm.compute.kernels import BLOCK, SMALL_BLOCK, WORTH_A_KERNEL, newton_step
from dladmm.compute.product_kernels import TILE

WORKERS = 8


def rehearse(entries: int, classes: int, product: bool, device: torch.device) -> None:
    """Make the kernels of an MLP with so many entries of a variable; ``product`` says whether its products are long.

    ``classes`` are those of a softmax, or 0.
    """
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # brings up the device, which every launch below needs
        launches = list(_launches(entries, classes, product, device))
        if not launches:
            return
        with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as threads:
            libraries = threads.submit(_on, device, partial(_load_libraries, device))
            launches[0]()  # brings up Triton's driver
            list(threads.map(partial(_on, device), launches[1:]))
            libraries.result()


def _on(device: torch.device, launch: Callable[[], object]) -> None:
    with torch.cuda.device(device):
        launch()


def _load_libraries(device: torch.device) -> None:
    """Those that torch factorises matrices with, which it reads from disk at the first call."""
    eye = torch.eye(32, dtype=torch.float64, device=device)
    factor, _ = torch.linalg.cholesky_ex(eye)
    torch.linalg.solve_triangular(factor.expand(2, 32, 32), eye.expand(2, 32, 32), upper=False)
    torch.cholesky_inverse(factor)


def _launches(entries: int, classes: int, product: bool, device: torch.device) -> list[Callable[[], object]]:
    """Each is a kernel on no entries at all, or on one: masks leave out what it would read and write, but for sums."""
    x, sums = torch.zeros(16, device=device), torch.zeros(16, dtype=torch.float64, device=device)
    found: list[Callable[[], object]] = []
    if product:
        found.append(lambda: triton_code.rows_times[(1,)](x, x, x, x, x, 1, 1, 0, 0, 0, 1.0, **TILE))
    if classes:
        found += [partial(_newton, classes, dtype, device) for dtype in (torch.float64, torch.float32)]
    if entries >= WORTH_A_KERNEL:
        whole = torch.zeros(16, dtype=torch.int64, device=device)
        found += [
            lambda: triton_code.advance[(1,)](x, x, x, x, x, x, 0, 1, 1, 0, 0, 0, BLOCK=BLOCK),
            lambda: triton_code.descend[(1,)](x, x, x, x, x, sums, 0, 1, 0, 0, BY_ROW=True, BLOCK=BLOCK),
            lambda: triton_code.descend[(1,)](x, x, x, x, x, sums, 0, 1, 0, 0, BY_ROW=False, BLOCK=BLOCK),
            lambda: triton_code.relu_entries[(1,)](x, x, x, x, x, x, sums, 0, 1.0, 1.0, 0, 0, 0, BLOCK=BLOCK),
            lambda: triton_code.inner[(1,)](x, x, x, sums, 0, 1, BLOCK=BLOCK),
            lambda: triton_code.inner_rows[(1,)](x, x, sums, sums, 0, COLUMNS=SMALL_BLOCK),
            lambda: triton_code.drop[(1,)](x, x, whole, whole, sums, sums, 0, 1, BLOCK=BLOCK),
        ]
    return found


def _newton(classes: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """One row: the kernel is made for the number of its columns."""
    rows, column = (torch.ones(1, width, dtype=dtype, device=device) for width in (classes, 1))
    return newton_step(rows, column, column.clone(), rows, rows, rows, rows > 0, column, inner=0)
