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
from typing import Any

import torch
from torch import Tensor

from dladmm.subproblems import squared_norm

CACHED, WHOLE = 1 << 18, 1 << 24
"""Entries of a part: on a CPU, and on a GPU where nothing is compiled, which bounds the memory of temporaries."""

SHAPES = 64
"""For so many different shapes a pass is compiled."""

_compiled = _recorded = False

Pass = Callable[..., Tensor]


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
            return _compile(function)(*rows, **constants)
        entries = WHOLE if on_gpu(first) else CACHED
        step = max(1, entries // max(1, first[0].numel())) if len(first) else 1
        if step >= len(first):
            return function(*rows, **constants)
        split = [None if tensor is None else torch.split(tensor, step) for tensor in rows]
        total: Tensor | None = None
        for i in range(-(-len(first) // step)):
            found = function(*(None if parts is None else parts[i] for parts in split), **constants)
            total = found if total is None else total.add_(found)
        assert total is not None
        return total

    return run


@cache
def _compile(function: Pass) -> Pass:
    # Kernels for the very shapes: those for shapes in general are up to ten times slower (docs/performance.md). A
    # function meets a handful of shapes, and torch's own limit would leave the later ones uncompiled.
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(SHAPES, getattr(config, limit)))
    made: Pass = torch.compile(function, dynamic=False)
    return made


@one_pass
def gap(out: Tensor, prediction: Tensor, target: Tensor, rows: Tensor | None) -> Tensor:
    """``out = E = prediction - target``, every row as often as it counts."""
    torch.sub(prediction, target, out=out)
    if rows is not None:
        out.mul_(rows)
    return nothing(out)


def by_columns(W: Tensor) -> Tensor:
    """W, on a GPU stored by columns: a product with N rows from the left is a tenth faster then, and W is small."""
    return W.T.contiguous().T if on_gpu(W) else W


def column_sums(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """``sum_i x_i``, every row as often as it counts, float64."""
    return x.sum(0).double() if rows is None else (rows.T @ x)[0].double()


@one_pass
def advance(x: Tensor, move: Tensor, *, multiple: Tensor, shift: Tensor | None) -> Tensor:
    """``x += multiple move + shift``."""
    x.addcmul_(move, multiple)
    if shift is not None:
        x.add_(shift)
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
def _inner_products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    out.copy_((x * y).flatten(1).sum(1, dtype=torch.float64))
    return nothing(x)


def inner_products(x: Tensor, y: Tensor) -> Tensor:
    """``<x_i, y_i>`` of each row, float64."""
    out = x.new_empty(len(x), dtype=torch.float64)
    _inner_products(x, y, out)
    return out


@one_pass
def _descend(x: Tensor, d: Tensor, *, step: Tensor) -> Tensor:
    x.addcmul_(d, step, value=-1)
    return nothing(x)


@one_pass
def _descend_by_row(x: Tensor, d: Tensor, step: Tensor) -> Tensor:
    x.addcmul_(d, step, value=-1)
    return nothing(x)


def descend(x: Tensor, d: Tensor, step: Tensor) -> None:
    """``x -= step d`` in place; ``step`` is one number or one a row, and the host does not ask a GPU for it."""
    step = step.to(d.dtype)
    if step.ndim > 0 and len(step) != 1:  # none where a rank has no rows
        _descend_by_row(x, d, step.reshape(-1, *(1,) * (x.ndim - 1)))
    elif on_gpu(x):
        _descend(x, d, step=step.reshape(()))
    else:
        x.sub_(d, alpha=float(step))


def nothing(x: Tensor) -> Tensor:
    """What a pass returns that sums nothing."""
    return x.new_zeros((), dtype=torch.float64)
