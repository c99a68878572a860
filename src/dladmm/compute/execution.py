"""How elementwise passes and products are executed: settings that change speed and rounding, never the mathematics.

Written as tensor operations, an update reads and writes N rows once per operation, and memory is what such operations
wait for. A function under :func:`one_pass` is written that way all the same, and is run

- on a CPU part by part, each small enough for the cache, so that memory is passed over once;
- on a GPU as a whole: as it is written, as one kernel made by ``torch.compile`` (``Execution.compiled``), or by a
  kernel written by hand beside it (``Execution.kernels``, :mod:`dladmm.compute.kernels`).

There is one definition for all devices. Reductions are returned and summed over the parts.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Literal

import torch
from torch import Tensor

from dladmm.compute.compiled import compiled
from dladmm.compute.hand_written import HandWritten
from dladmm.compute.products import by_hand, sums_over_rows

Precision = Literal["float32", "tf32", "bfloat16"]


class _Tf32:
    """Torch's switch for TF32, one per process: threads that need the same setting share it, others wait for them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = self._exact = 0
        self._wanted = False
        self._before = False, False
        self._during = False

    @contextmanager
    def allowed(self, wanted: bool) -> Iterator[None]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        with self._condition:
            self._condition.wait_for(lambda: self._inside == 0 or self._wanted == wanted)
            if self._inside == 0:
                self._before, self._wanted = (matmul.allow_tf32, cudnn.allow_tf32), wanted
                matmul.allow_tf32 = cudnn.allow_tf32 = wanted or self._before[0]
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                if self._inside == 0:
                    matmul.allow_tf32, cudnn.allow_tf32 = self._before
                    self._condition.notify_all()

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        matmul = torch.backends.cuda.matmul
        with self._condition:
            if self._exact == 0:
                self._during, matmul.allow_tf32 = matmul.allow_tf32, False
            self._exact += 1
        try:
            yield
        finally:
            with self._condition:
                self._exact -= 1
                if self._exact == 0:
                    matmul.allow_tf32 = self._during


_TF32 = _Tf32()


def product_precision(precision: Precision) -> AbstractContextManager[None]:
    """Within it, torch's float32 products on a GPU may be made in TF32; Gram matrices never are.

    ``"bfloat16"`` lets them be made in TF32 too: only directions are rounded to bfloat16
    (:attr:`dladmm.compute.execution.Execution.rounded_directions`), because the cached predictions must move by the
    same products that measured the step.

    Torch allows TF32 in convolutions unless told otherwise; here they are as exact as the other products. Runs of
    different precision in several threads take turns, an iteration at a time: torch has one switch for all.
    """
    return _TF32.allowed(precision != "float32")


def exact_products() -> AbstractContextManager[None]:
    """Within it no product is made in TF32, whatever the run allows."""
    return _TF32.forbidden()


SMALL_PRODUCT = 1 << 23
"""Multiplications of a sweep's largest product up to which a second thread on a CPU gains a tenth at most."""

_THREADS: list[int] = []  # of torch, before each of the small runs that are under way


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Within it torch has one CPU thread where a sweep's largest product is small.

    Threads that share cores with other work wait for each other after every operation: a fit of a tenth of a second
    takes seconds then. Torch has a number per Python thread and one for the process, so that the small runs of several
    Python threads all go back to what the first of them found.
    """
    if multiplications > SMALL_PRODUCT:
        yield
        return
    _THREADS.append(_THREADS[0] if _THREADS else torch.get_num_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_THREADS.pop())


CACHED, WHOLE = 1 << 18, 1 << 24
"""Entries of a part: on a CPU, and on a GPU where nothing is compiled, which bounds the memory of temporaries."""


def on_gpu(tensor: Tensor) -> bool:
    """Whether operations are launched, not done, when they return: asking for a number then means waiting."""
    return tensor.is_cuda


def part_rows(*rows: Tensor) -> int:
    """How many rows of the widest of these are a part."""
    return max(1, (WHOLE if on_gpu(rows[0]) else CACHED) // max(1, *(t.shape[1:].numel() for t in rows)))


def times(rows: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
    """``rows matrix``, of many rows, or of many columns of ``rows``."""
    done = by_hand(None, rows, matrix, 1.0, out) if on_gpu(rows) else None
    if done is not None:
        return done
    sums = sums_over_rows(rows.T, matrix) if on_gpu(rows) and rows.ndim == 2 else None
    if sums is not None:
        return sums.to(rows.dtype) if out is None else out.copy_(sums)
    return rows @ matrix if out is None else torch.mm(rows, matrix, out=out)


def copied(rows: Tensor, out: Tensor) -> Tensor:
    """``out = rows``; on a GPU by a kernel, because a copy of torch's that is recorded takes twice as long."""
    return torch.mul(rows, 1, out=out) if on_gpu(rows) else out.copy_(rows)


def plus_times(
    start: Tensor, rows: Tensor, matrix: Tensor, scale: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """``start + scale rows matrix``; start is a matrix, or one row that is the same for all. ``out`` may be start."""
    done = by_hand(start, rows, matrix, scale, out) if on_gpu(rows) else None
    return torch.addmm(start, rows, matrix, alpha=scale, out=out) if done is None else done


@dataclass(frozen=True)
class Execution:
    """How the work of an engine is executed.

    Parameters
    ----------
    compiled : bool
        Passes on a GPU are compiled into single kernels; the first call of each takes a second or more.
    recorded : bool
        The launches of an iteration are recorded (CUDA graphs), so no update may ask the device for a number.
    rounded_directions : bool
        Products that only give a direction round their factors to bfloat16.
    shortcuts : bool
        Cached products, joined passes and joined updates. Off, every quantity is computed where it is used.
    kernels : bool
        Passes on a GPU that have a hand-written kernel and are not compiled use it.
    """

    compiled: bool = False
    recorded: bool = False
    rounded_directions: bool = False
    shortcuts: bool = True
    kernels: bool = True

    def avoids_waiting(self, tensor: Tensor) -> bool:
        """Whether computing more is cheaper than asking the device for a number."""
        return (self.compiled or self.recorded) and on_gpu(tensor)

    def compiles(self, tensor: Tensor) -> bool:
        """Whether a pass over this tensor is a kernel made by ``torch.compile``."""
        return self.compiled and on_gpu(tensor)

    def never_waits(self, tensor: Tensor) -> bool:
        """Whether the device must not be asked for a number, because its launches may be recorded."""
        return self.recorded and on_gpu(tensor)

    def direction(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """``left @ right`` where the answer is a direction; how far to go is found from exact products.

        In bfloat16 the factors are rounded, their products added in float32; a CPU without such makes them in float32.
        """
        if not self.rounded_directions or left.dtype != torch.float32:
            return times(left, right, out)
        left, right = left.bfloat16(), right.bfloat16()
        if left.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):  # since torch 2.8
            product: Tensor = torch.mm(left, right, out_dtype=torch.float32)
        else:
            product = left.float() @ right.float()
        return product if out is None else out.copy_(product)

    def add_direction(
        self, start: Tensor, left: Tensor, right: Tensor, scale: float, out: Tensor | None = None
    ) -> Tensor:
        """``start + scale direction(left, right)``, written to ``out``, or over ``start`` without one."""
        out = start if out is None else out
        if not self.rounded_directions:
            return plus_times(start, left, right, scale, out)
        return torch.add(start, self.direction(left, right), alpha=scale, out=out)


EAGER = Execution()
"""As torch runs it, with all shortcuts."""


class Pass:
    """``function(*rows, **constants)``: works in place on tensors with N rows each and returns a sum over the rows.

    Called as ``run(how, *rows, **constants)``. A tensor among ``rows`` may be None; ``constants`` are the same for
    every part. ``writes`` names what is written, whose version counters a kernel may leave as they were.
    """

    def __init__(self, function: Callable[..., Tensor], writes: tuple[str, ...], kernel: str | None) -> None:
        update_wrapper(self, function)
        self.function, self.kernel = function, None if kernel is None else HandWritten(kernel)
        names = list(inspect.signature(function).parameters)
        self._written = tuple(names.index(name) for name in writes)

    def __call__(self, how: Execution, *rows: Tensor | None, **constants: Any) -> Tensor:
        first = next(tensor for tensor in rows if tensor is not None)
        if how.compiles(first):
            found: Tensor = compiled(self.function)(*rows, **constants)
            self._count_writes(rows)
            return found
        done = self._by_hand(*rows, **constants) if how.kernels and on_gpu(first) else None
        if done is not None:
            self._count_writes(rows)
            return done
        n_rows, step = first.shape[0], part_rows(first)
        if step >= n_rows:
            return self.function(*rows, **constants)
        split = [None if tensor is None else torch.split(tensor, step) for tensor in rows]
        total: Tensor | None = None
        for i in range(-(-n_rows // step)):
            part = self.function(*(None if parts is None else parts[i] for parts in split), **constants)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _by_hand(self, *rows: Tensor | None, **constants: Any) -> Tensor | None:
        """What the hand-written kernel returns; None where there is none, or none for such arguments."""
        return None if self.kernel is None else self.kernel(*rows, **constants)

    def _count_writes(self, rows: tuple[Tensor | None, ...]) -> None:
        written = (rows[i] for i in self._written)
        torch.autograd.graph.increment_version([tensor for tensor in written if tensor is not None])


def one_pass(*writes: str, kernel: str | None = None) -> Callable[[Callable[..., Tensor]], Pass]:
    """Decorator: makes a :class:`Pass` of a function that writes these arguments; ``kernel`` does the same by hand."""
    return lambda function: Pass(function, writes, kernel)


class Numbers:
    """Arithmetic on a few numbers of a device, as one launch where launches are recorded.

    Called as ``run(how, first, ...)``. Elsewhere it is called as it is: numbers of the host may change each time.
    """

    def __init__(self, function: Callable[..., Any], kernel: str) -> None:
        update_wrapper(self, function)
        self.function, self.kernel = function, HandWritten(kernel)

    def __call__(self, how: Execution, first: Tensor, *others: Any, **constants: Any) -> Any:
        if how.never_waits(first) and how.compiled:
            return compiled(self.function)(first, *others, **constants)
        done = None
        if how.never_waits(first) and how.kernels:
            done = self.kernel(first, *others, **constants)
        return self.function(first, *others, **constants) if done is None else done


def one_launch(kernel: str) -> Callable[[Callable[..., Any]], Numbers]:
    """Decorator: makes :class:`Numbers` of a function; ``kernel`` does the same by hand."""
    return lambda function: Numbers(function, kernel)


def nothing(x: Tensor) -> Tensor:
    """The return value of a pass that sums nothing."""
    return x.new_zeros((), dtype=torch.float64)
