"""Norms that float32 does not spoil, and the elementwise passes that several rooms use, each written once.

Float32 sums of millions of squares are wrong in the third digit, so norms are accumulated in float64. How a pass is run
is said in :mod:`dladmm.compute.execution`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from dladmm.compute.execution import EAGER, Execution, nothing, on_gpu, one_launch, one_pass


def row_squared_norms(x: Tensor) -> Tensor:
    """``||x_i||^2`` of each row (sample), float64: float32 inside a row, where it is short enough to be safe."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norms.double().square()


def squared_norm(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """``||x||^2`` as a float64 scalar that stays on the device; ``sum_i rows_i ||x_i||^2`` with row weights (N, 1)."""
    if x.ndim < 2:
        return x.double().square().sum()
    norms = row_squared_norms(x)
    return norms.sum() if rows is None else norms @ rows[:, 0].double()


def unit(x: Tensor, how: Execution = EAGER) -> tuple[Tensor, Tensor]:
    """``x`` as a power of two times what has entries up to 1, and that power: exact, and products stay in the numbers.

    A gradient of 1e-20 or 1e+20 is no error, but the square of its product with the data is no float32 any more.
    """
    power = _power(x, how)
    return x / power, power


def _power(x: Tensor, how: Execution = EAGER) -> Tensor:
    """The power of two just above the largest entry."""
    # |x| would be a tensor of its own, in fresh pages of memory
    power: Tensor = _power_above(how, *x.aminmax())
    return power


@one_launch("power_above")
def _power_above(low: Tensor, high: Tensor) -> Tensor:
    """Of the smallest and the largest entry."""
    exponent = torch.frexp(torch.maximum(-low, high)).exponent.clamp(-120, 120)
    return torch.ldexp(low.new_ones(()), exponent)


def ranged_squared_norm(x: Tensor) -> Tensor:
    """``||x||^2`` also where the squares of its entries are no float32 any more; a pass more than the plain one."""
    if x.numel() == 0 or x.ndim < 2:  # a rank may have no rows; a vector is squared in float64
        return squared_norm(x)
    power, squares = _power(x), x.new_empty(len(x), dtype=torch.float64)
    _scaled_row_squares(EAGER, x, squares, power=power)
    return squares.sum() * power.double().square()


@one_pass("out")
def _scaled_row_squares(x: Tensor, out: Tensor, *, power: Tensor) -> Tensor:
    """``||x_i / power||^2`` of each row; part by part, so that no quotient of all of x is made."""
    out.copy_(row_squared_norms(x / power))
    return nothing(x)


def ratio(numerator: Tensor, denominator: Tensor, otherwise: float = 0.0) -> Tensor:
    """``numerator / denominator``, and ``otherwise`` where the denominator is zero."""
    return torch.where(denominator > 0, numerator / denominator, otherwise)


MANY_ROWS = 8
"""Times the rows of W: from there on storing W by columns pays for itself."""

WORTH_COMPILING = 1 << 21
"""Entries from which one operation less on them pays for calling a compiled function."""


@one_pass("out", kernel="difference")
def difference(out: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``out = first - second``."""
    torch.sub(first, second, out=out)
    return nothing(out)


def by_columns(W: Tensor, n_rows: int) -> Tensor:
    """W, on a GPU stored by columns: a product with many rows from the left is a tenth faster then, and W is small."""
    return W.T.contiguous().T if on_gpu(W) and n_rows > MANY_ROWS * max(W.shape) else W


def column_sums(x: Tensor, counts: Tensor | None = None) -> Tensor:
    """``sum_i counts_i x_i``, float64; on a GPU a product is nearer to its bandwidth."""
    if counts is None and not on_gpu(x):
        return x.sum(0).double()
    return (x.new_ones(len(x)) if counts is None else counts[:, 0]).matmul(x).double()


@one_pass("x", "residual", kernel="advance")
def advance(
    x: Tensor,
    move: Tensor | None,
    target: Tensor | None,
    residual: Tensor | None,
    *,
    multiple: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    """``x += multiple move + shift``, and where a buffer is given ``residual = x - target``."""
    if move is not None and multiple is not None:
        x.addcmul_(move, multiple)
    if shift is not None:
        x.add_(shift)
    if residual is not None and target is not None:
        torch.sub(x, target, out=residual)
    return nothing(x)


@one_pass(kernel="inner_and_square")
def inner_and_square(prediction: Tensor, target: Tensor, gradient: Tensor, counts: Tensor | None) -> Tensor:
    """``<prediction - target, gradient>`` and ``||gradient||^2``, row i counted ``counts_i`` times."""
    inner = ((prediction - target) * gradient).flatten(1).sum(1)
    both = torch.stack([inner, gradient.square().flatten(1).sum(1)])
    return both.sum(1, dtype=torch.float64) if counts is None else both.double() @ counts[:, 0].double()


@one_pass()
def squared_distance(x: Tensor, y: Tensor, counts: Tensor | None) -> Tensor:
    """``||x - y||^2`` as a float64 scalar, row i counted ``counts_i`` times."""
    return squared_norm(x - y, counts)


@one_pass("products", "squares", kernel="inner_rows")
def _inner_products(x: Tensor, y: Tensor, products: Tensor, squares: Tensor) -> Tensor:
    products.copy_((x * y).flatten(1).sum(1, dtype=torch.float64))
    squares.copy_(row_squared_norms(y))
    return nothing(x)


def inner_products(how: Execution, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``<x_i, y_i>`` and ``||y_i||^2`` of each row, float64."""
    products, squares = (x.new_empty(len(x), dtype=torch.float64) for _ in range(2))
    _inner_products(how, x, y, products, squares)
    return products, squares


@one_pass("out")
def _row_squares(x: Tensor, out: Tensor) -> Tensor:
    out.copy_(row_squared_norms(x))
    return nothing(x)


def row_squares(how: Execution, x: Tensor) -> Tensor:
    """``||x_i||^2`` of each row, float64."""
    if not how.avoids_waiting(x):
        return row_squared_norms(x)
    out = x.new_empty(len(x), dtype=torch.float64)
    _row_squares(how, x, out)
    return out


@one_pass(kernel="total_square")
def _total_square(x: Tensor, counts: Tensor | None) -> Tensor:
    return squared_norm(x, counts)


def total_square(how: Execution, x: Tensor, counts: Tensor | None = None) -> Tensor:
    """``||x||^2`` as a float64 scalar, row i counted ``counts_i`` times.

    Compiled where that is faster: calling a compiled function takes the host as long as ten launches.
    """
    compiled = how.never_waits(x) or (how.avoids_waiting(x) and x.numel() >= WORTH_COMPILING)
    return _total_square(how, x, counts) if compiled else squared_norm(x, counts)


@one_pass("x", "residual", kernel="descend")
def _descend(
    x: Tensor,
    d: Tensor,
    other: Tensor | None,
    residual: Tensor | None,
    counts: Tensor | None,
    by_row: Tensor | None,
    *,
    step: Tensor | None,
    measured: bool,
) -> Tensor:
    far = by_row if step is None else step
    assert far is not None
    x.addcmul_(d, far, value=-1)
    if other is None:
        return nothing(x)
    apart = x - other if residual is None else torch.sub(x, other, out=residual)
    return squared_norm(apart, counts) if measured else nothing(x)


def descend(
    how: Execution,
    x: Tensor,
    d: Tensor,
    step: Tensor,
    other: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    counts: Tensor | None = None,
    measured: bool = False,
) -> Tensor:
    """``x -= step d`` in place; ``step`` is one number or one per row, and the host does not ask a GPU for it.

    Where a buffer is given, ``residual = x - other``; ``measured`` returns ``||x - other||^2``.
    """
    step = step.to(d.dtype)
    if step.ndim > 0 and len(step) != 1:  # none where a rank has no rows
        by_row = step.reshape(-1, *(1,) * (x.ndim - 1))
        return _descend(how, x, d, other, residual, counts, by_row, step=None, measured=measured)
    if other is None and not on_gpu(x):
        x.sub_(d, alpha=float(step))
        return nothing(x)
    return _descend(how, x, d, other, residual, counts, None, step=step.reshape(()), measured=measured)


def move_along(x: Tensor, d: Tensor, length: Tensor | float) -> None:
    """``x -= length d`` in place, without asking the device for the length."""
    if isinstance(length, Tensor):
        x.addcmul_(d, length.to(d.dtype), value=-1)
    else:
        x.sub_(d, alpha=length)


class EntryProblem(Protocol):
    """What :func:`solve_entries` asks of an activation f."""

    def project(self, m: Tensor, a: Tensor, weight: float) -> Tensor:
        """``argmin_z (z - m)^2 + weight (a - f(z))^2`` entry by entry."""

    def write(self, z: Tensor, out: Tensor) -> Tensor:
        """``out = f(z)``."""


@one_pass("z", "f", "residual", "offset", kernel="solve_entries")
def solve_entries(
    z: Tensor,
    f: Tensor | None,
    m: Tensor,
    a: Tensor,
    counts: Tensor | None,
    residual: Tensor | None,
    offset: Tensor | None,
    *,
    activation: EntryProblem,
    weight: float,
) -> Tensor:
    """``z = argmin (z - m)^2 + weight (a - f(z))^2`` in place; returns ``||m - z||^2``.

    Where buffers are given, ``f = f(z)``, ``residual = m - z`` and ``offset = a - f``.
    """
    z.copy_(activation.project(m, a, weight))
    if f is not None:
        activation.write(z, f)
        if offset is not None:
            torch.sub(a, f, out=offset)
    return squared_norm(m - z if residual is None else torch.sub(m, z, out=residual), counts)


RowProblem = Callable[..., tuple[Tensor, Tensor]]
"""A pure function of some rows: the new v and f from the old ones, the anchor's value m, the target a and constants."""


@one_pass("v", "f", kernel="solve_rows")
def solve_rows(
    v: Tensor,
    f: Tensor,
    m: Tensor,
    a: Tensor,
    counts: Tensor | None,
    *,
    solve: RowProblem,
    **constants: Any,
) -> Tensor:
    """``v, f = solve(v, f, m, a)`` in place, for rows that need nothing of each other; v's squared move."""
    new, prediction = solve(v, f, m, a, **constants)
    squared = squared_norm(new - v, counts)
    v.copy_(new)
    f.copy_(prediction)
    return squared
