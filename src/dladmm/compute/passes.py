"""Elementwise work on the samples in one pass over memory.

Written as tensor operations, an update reads and writes N rows once an operation, and memory is what such operations
wait for. A function under :func:`one_pass` is written that way all the same, and is run

- on a CPU part by part, each small enough for the cache, so that memory is passed over once;
- on a GPU as a whole: as it is written, or as one kernel made by ``torch.compile`` where :func:`compiling` says so.

There is one definition for all devices. Reductions are returned and summed over the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from dladmm.compute.norms import row_squared_norms, squared_norm

CACHED, WHOLE = 1 << 18, 1 << 24
"""Entries of a part: on a CPU, and on a GPU where nothing is compiled, which bounds the memory of temporaries."""

WORTH_COMPILING = 1 << 21
"""Entries from which one operation less on them pays for calling a compiled function."""

SHAPES = 64
"""For so many different shapes a pass is compiled."""

_compiled = _recorded = False

Pass = Callable[..., Tensor]
Numbers = TypeVar("Numbers", bound=Callable[..., Any])


@contextmanager
def compiling(wanted: bool = True, recorded: bool = True) -> Iterator[None]:
    """Within it, passes on a GPU are compiled; the first call of each then takes a second or more.

    ``recorded`` says that launches may be recorded, so that nothing at all may ask the device for a number.
    """
    global _compiled, _recorded
    before = _compiled, _recorded
    _compiled, _recorded = wanted, wanted and recorded
    try:
        yield
    finally:
        _compiled, _recorded = before


def on_gpu(tensor: Tensor) -> bool:
    """Whether operations are launched, not done, when they return: asking for a number then means waiting."""
    return tensor.is_cuda


def blind(tensor: Tensor) -> bool:
    """Whether work on this tensor had better not ask for numbers: passes are compiled, and cheaper than waiting."""
    return _compiled and on_gpu(tensor)


def unasked(tensor: Tensor) -> bool:
    """Whether work on this tensor must not ask for numbers, at any price: its launches may be recorded."""
    return _recorded and on_gpu(tensor)


def one_pass(function: Pass) -> Pass:
    """``function(*rows, **constants)`` works in place on tensors with N rows each and returns a sum over the rows.

    A tensor among ``rows`` may be None. What is in ``constants`` is the same for every part.
    """

    @wraps(function)
    def run(*rows: Tensor | None, **constants: Any) -> Tensor:
        first = next(tensor for tensor in rows if tensor is not None)
        if blind(first):
            found: Tensor = _compile(function)(*rows, **constants)
            return found
        entries = WHOLE if on_gpu(first) else CACHED
        step = max(1, entries // max(1, first[0].numel())) if len(first) else 1
        if step >= len(first):
            return function(*rows, **constants)
        split = [None if tensor is None else torch.split(tensor, step) for tensor in rows]
        total: Tensor | None = None
        for i in range(-(-len(first) // step)):
            part = function(*(None if parts is None else parts[i] for parts in split), **constants)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    return run


def one_launch(function: Numbers) -> Numbers:
    """Arithmetic on a few numbers of a device, whose first argument is one of them.

    Each operation is a launch that takes longer than the arithmetic. Where launches are recorded they are made one;
    elsewhere numbers of the host among the arguments may change with every call, and would be compiled anew each time.
    """

    @wraps(function)
    def run(first: Tensor, *others: Any, **constants: Any) -> Any:
        call = _compile(function) if unasked(first) else function
        return call(first, *others, **constants)

    return cast(Numbers, run)


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    # Kernels for the very shapes: those for shapes in general are up to ten times slower (docs/performance.md). A
    # function meets a handful of shapes, and torch's own limit would leave the later ones uncompiled.
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(SHAPES, getattr(config, limit)))
    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


@one_pass
def difference(out: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``out = first - second``."""
    torch.sub(first, second, out=out)
    return nothing(out)


def by_columns(W: Tensor) -> Tensor:
    """W, on a GPU stored by columns: a product with N rows from the left is a tenth faster then, and W is small."""
    return W.T.contiguous().T if on_gpu(W) else W


def column_sums(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """``sum_i x_i``, every row as often as it counts, float64; on a GPU a product is nearer to its bandwidth."""
    if rows is None and not on_gpu(x):
        return x.sum(0).double()
    return (x.new_ones(len(x)) if rows is None else rows[:, 0]).matmul(x).double()


@one_pass
def advance(
    x: Tensor,
    move: Tensor | None,
    target: Tensor | None,
    gap: Tensor | None,
    *,
    multiple: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    """``x += multiple move + shift``, and where it is asked for ``gap = x - target``."""
    if move is not None and multiple is not None:
        x.addcmul_(move, multiple)
    if shift is not None:
        x.add_(shift)
    if gap is not None and target is not None:
        torch.sub(x, target, out=gap)
    return nothing(x)


@one_pass
def pull(prediction: Tensor, target: Tensor, force: Tensor, rows: Tensor | None) -> Tensor:
    """``<E, force>`` and ``||force||^2``, every row as often as it counts."""
    both = torch.stack([((prediction - target) * force).flatten(1).sum(1), force.square().flatten(1).sum(1)])
    return both.sum(1, dtype=torch.float64) if rows is None else both.double() @ rows[:, 0].double()


@one_pass
def squared_distance(x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
    """``||x - y||^2`` as a float64 scalar."""
    return squared_norm(x - y, rows)


@one_pass
def _inner_products(x: Tensor, y: Tensor, products: Tensor, squares: Tensor) -> Tensor:
    products.copy_((x * y).flatten(1).sum(1, dtype=torch.float64))
    squares.copy_(row_squared_norms(y))
    return nothing(x)


def inner_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``<x_i, y_i>`` and ``||y_i||^2`` of each row, float64."""
    products, squares = (x.new_empty(len(x), dtype=torch.float64) for _ in range(2))
    _inner_products(x, y, products, squares)
    return products, squares


@one_pass
def _row_squares(x: Tensor, out: Tensor) -> Tensor:
    out.copy_(row_squared_norms(x))
    return nothing(x)


def row_squares(x: Tensor) -> Tensor:
    """``||x_i||^2`` of each row, float64."""
    if not blind(x):
        return row_squared_norms(x)
    out = x.new_empty(len(x), dtype=torch.float64)
    _row_squares(x, out)
    return out


@one_pass
def _total_square(x: Tensor, rows: Tensor | None) -> Tensor:
    return squared_norm(x, rows)


def total_square(x: Tensor, rows: Tensor | None) -> Tensor:
    """``||x||^2`` as a float64 scalar, every row as often as it counts.

    Compiled where that is faster: calling what is compiled takes the host as long as ten launches.
    """
    compiled = unasked(x) or (blind(x) and x.numel() >= WORTH_COMPILING)
    return _total_square(x, rows) if compiled else squared_norm(x, rows)


@one_pass
def _descend(
    x: Tensor,
    d: Tensor,
    other: Tensor | None,
    gap: Tensor | None,
    rows: Tensor | None,
    by_row: Tensor | None,
    *,
    step: Tensor | None,
    tied: bool,
) -> Tensor:
    far = by_row if step is None else step
    assert far is not None
    x.addcmul_(d, far, value=-1)
    if other is None:
        return nothing(x)
    apart = x - other if gap is None else torch.sub(x, other, out=gap)
    return squared_norm(apart, rows) if tied else nothing(x)


def descend(
    x: Tensor,
    d: Tensor,
    step: Tensor,
    other: Tensor | None = None,
    *,
    gap: Tensor | None = None,
    rows: Tensor | None = None,
    tied: bool = False,
) -> Tensor:
    """``x -= step d`` in place; ``step`` is one number or one a row, and the host does not ask a GPU for it.

    Where it is asked for, ``gap = x - other``, and ``tied`` returns ``||x - other||^2``, rows as often as they count.
    """
    step = step.to(d.dtype)
    if step.ndim > 0 and len(step) != 1:  # none where a rank has no rows
        by_row = step.reshape(-1, *(1,) * (x.ndim - 1))
        return _descend(x, d, other, gap, rows, by_row, step=None, tied=tied)
    if other is None and not on_gpu(x):
        x.sub_(d, alpha=float(step))
        return nothing(x)
    return _descend(x, d, other, gap, rows, None, step=step.reshape(()), tied=tied)


def nothing(x: Tensor) -> Tensor:
    """What a pass returns that sums nothing."""
    return x.new_zeros((), dtype=torch.float64)
