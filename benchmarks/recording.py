"""Recording the matrix products a piece of code really does, and doing them again bare."""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "mv", "addmv")
FACTORISATIONS = ("linalg_cholesky_ex", "cholesky_solve", "_cholesky_solve_helper", "cholesky_inverse")
HERE = Path(__file__).resolve().parent
SOURCES = (str(HERE.parent / "src" / "dladmm"), str(HERE))
# Whose name says nothing about why a product is made: its caller's does
PASSED_OVER = ("forward", "linear", "input_gradient")


class Operation(NamedTuple):
    """A product or factorisation as it was called: operands with their strides, and the precision it ran in."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    tf32: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of a product (rows, inner, columns), whichever way round it was called; else of the first operand."""
        if self.kind != "product":
            return self.shapes[0]
        left, right = self.shapes
        return (*left, right[-1] if len(right) > 1 else 1)

    @property
    def precision(self) -> str:
        return "tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")

    @property
    def flops(self) -> int:
        """Of a product; factorisations are counted as none."""
        return 2 * math.prod(self.sizes) if self.kind == "product" else 0


class Recorder(TorchDispatchMode):
    """Logs products and factorisations with where they come from, and the most bytes its tensors held at once.

    Bytes are those of storages made while it watches, counted until they are freed; what an operator uses inside
    itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[Operation] = Counter()
        self.origins: dict[Operation, Counter[str]] = {}
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}

    def clear(self) -> None:
        """Forget the operations so far; memory goes on being counted."""
        self.operations.clear()
        self.origins.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in PRODUCTS or name in FACTORISATIONS:
            self._log(name, args)
        for tensor in _tensors((args, kwargs or {})):
            self._watch(tensor, new=False)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._watch(tensor, new=True)
        return result

    def _log(self, name: str, args: Any) -> None:
        operands = [a for a in args if isinstance(a, Tensor)]
        kind = name.removeprefix("linalg_").removesuffix("_ex").removeprefix("_").removesuffix("_helper")
        if name in PRODUCTS:
            kind, operands = "product", operands[-2:]
        first = operands[0]
        tf32 = first.is_cuda and first.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        operation = Operation(
            kind,
            tuple(tuple(a.shape) for a in operands),
            tuple(tuple(a.stride()) for a in operands),
            first.dtype,
            tf32,
        )
        self.operations[operation] += 1
        self.origins.setdefault(operation, Counter())[_origin()] += 1

    def _watch(self, tensor: Tensor, *, new: bool) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes() if new else 0  # what an argument brings along was there before
        self.live += size
        self.peak = max(self.peak, self.live)

        def freed(_: Any, key: int = key, size: int = size) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)


def _tensors(nested: Any) -> Iterable[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (tuple, list)):
        for item in nested:
            yield from _tensors(item)
    elif isinstance(nested, dict):
        yield from _tensors(list(nested.values()))


def _origin() -> str:
    """The function of the library or the benchmark that asked for it."""
    frame = sys._getframe(1)
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        inside = path.startswith(SOURCES) and not path.endswith(("subproblems.py", "recording.py"))
        if inside and name.rsplit(".", 1)[-1] not in PASSED_OVER:
            return name.rsplit("<locals>.", 1)[-1]
        frame = frame.f_back
    return "elsewhere"


class Operands:
    """Memory full of random numbers for the operands and results of any of these operations."""

    def __init__(self, operations: Iterable[Operation], device: torch.device) -> None:
        self.device = device
        sizes: dict[tuple[torch.dtype, int], int] = {}
        for op in operations:
            operands = zip(op.shapes, op.strides, strict=True)
            extents = [1 + sum((n - 1) * s for n, s in zip(*both, strict=True)) for both in operands]
            for place, extent in [*enumerate(extents), (-1, _result_size(op))]:
                sizes[op.dtype, place] = max(sizes.get((op.dtype, place), 0), extent)
        generator = torch.Generator().manual_seed(0)
        self._held = {
            key: torch.randn(size, generator=generator).to(device, key[0]) for key, size in sizes.items()
        }

    def operand(self, op: Operation, place: int) -> Tensor:
        return torch.as_strided(self._held[op.dtype, place], op.shapes[place], op.strides[place])

    def result(self, op: Operation) -> Tensor:
        left, right = op.shapes
        shape = (*left[:-1], *right[-1:]) if len(right) > 1 else left[:-1]
        return self._held[op.dtype, -1][: _result_size(op)].view(shape)


def _result_size(op: Operation) -> int:
    return math.prod(op.sizes[:-2] + op.sizes[-1:])


class Bare:
    """The recorded operations again, each as often as it was done, and nothing else.

    Operands have the recorded shapes, strides and dtype, hold random numbers and share memory, results are written
    over each other: what is timed is the products.
    """

    def __init__(self, operations: Counter[Operation], operands: Operands) -> None:
        self._calls: list[tuple[Callable[[], Any], int, bool]] = []
        for op, count in operations.items():
            if op.kind == "product":
                left, right = operands.operand(op, 0), operands.operand(op, 1)
                call = _calling(torch.matmul, left, right, out=operands.result(op))
            else:
                n = op.shapes[-1][-1]
                matrix = torch.eye(n, dtype=op.dtype, device=operands.device).add_(0.1 / n)
                if op.kind == "cholesky":
                    call = _calling(torch.linalg.cholesky_ex, matrix)
                elif op.kind == "cholesky_inverse":
                    call = _calling(torch.cholesky_inverse, torch.linalg.cholesky(matrix))
                else:
                    call = _calling(
                        torch.cholesky_solve, operands.operand(op, 0), torch.linalg.cholesky(matrix)
                    )
            self._calls.append((call, count, op.tf32))

    def __call__(self) -> None:
        allowed = torch.backends.cuda.matmul.allow_tf32
        try:
            for call, count, tf32 in self._calls:
                torch.backends.cuda.matmul.allow_tf32 = tf32
                for _ in range(count):
                    call()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed


def _calling(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)


def minimal_products(sizes: list[int], samples: int, dtype: torch.dtype, tf32: bool) -> Counter[Operation]:
    """What NUMERICS 2 says an iteration must cost: two products for each update of W and of a.

    W: ``d = E^T A`` and ``A d^T``; a: ``E W`` and ``d W^T``; each backward and forward, and the input is no variable.
    """
    products: Counter[Operation] = Counter()
    for l in range(len(sizes) - 1):
        n_in, n_out = sizes[l], sizes[l + 1]
        across = ((n_out, samples), (samples, n_in)), ((1, n_out), (n_in, 1))
        along = ((samples, n_in), (n_in, n_out)), ((n_in, 1), (1, n_in))
        back = ((samples, n_out), (n_out, n_in)), ((n_out, 1), (n_in, 1))
        for shapes, strides in (across, along) if l == 0 else (across, along, back, along):
            products[Operation("product", shapes, strides, dtype, tf32)] += 2
    return products
