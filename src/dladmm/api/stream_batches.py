"""Checked batches of a stream, the first rows of it, and batches of several ranks side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.api.stream_sources import Source
from dladmm.base.errors import BatchError, DladmmError, InputError, InputTypeError
from dladmm.base.parts import Parts
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import Communicator, DistributedError
from dladmm.engine.batches import Batch, Batches

FIRST_ROWS, FIRST_BYTES = 16_384, 1 << 28
"""The first rows of a stream are read before it begins: so many, or what fits into 256 MB; at least one batch."""

KEPT = (
    "What was learned from the batches before it is kept: a module has the network, and a Checkpoint goes on from "
    "there with resume=True."
)

Check = Callable[[Any, Any, Any], Batch]
"""``check(x, y, weight)``: a raw batch as tensors for the engine, or an InputError."""


def unpacked(raw: Any) -> tuple[Any, Any, Any]:
    """x, y and weight (or None) of a raw batch."""
    if not isinstance(raw, (tuple, list)) or len(raw) not in (2, 3):
        got = f"{type(raw).__name__}{f' of {len(raw)}' if isinstance(raw, (tuple, list)) else ''}"
        raise InputTypeError(f"a batch must be (x, y) or (x, y, weight), got {got}.")
    x, y, *weight = raw
    inputs, targets = Parts.of(x), Parts.of(y)
    y = y if targets is None else targets.pack(y, "y")
    if inputs is not None:
        x = inputs.pack(x, "x")
    elif sparse.issparse(x):
        x = x.toarray()
    return x, y, weight[0] if weight else None


@dataclass
class FirstRows:
    """The first batches of a stream as arrays, and how the first pass goes on after them."""

    source: Source
    batches: list[tuple[Any, Any, Any]] = field(default_factory=list)
    rest: Iterator[Any] | None = None
    whole: bool = False
    """Whether these are all rows there are."""
    inputs: Parts | None = None
    targets: Parts | None = None
    """Of batches whose inputs or targets are tuples or dictionaries."""

    @classmethod
    def read(cls, source: Source) -> FirstRows:
        """Read up to ``FIRST_ROWS`` rows, in whole batches."""
        found = cls(source, rest=source.one_pass(0))
        rows = size = 0
        while rows < FIRST_ROWS and size < FIRST_BYTES:
            try:
                raw = next(found.rest) if found.rest is not None else None
            except StopIteration:
                found.whole = True
                break
            except DladmmError as error:
                raise BatchError(f"batch {len(found.batches) + 1} of pass 1: {error}") from error
            with naming(0, len(found.batches)):
                x, y, weight = unpacked(raw)
                if not found.batches and raw is not None:
                    found.inputs, found.targets = Parts.of(raw[0]), Parts.of(raw[1])
                n_rows = x.shape[0] if hasattr(x, "shape") and len(x.shape) else len(np.atleast_1d(x))
            found.batches.append((x, y, weight))
            rows += n_rows
            size += x.nbytes if hasattr(x, "nbytes") else np.asarray(x).nbytes
        if not found.batches:
            raise InputError("X brought no batch; at least one batch of rows is needed.")
        return found

    def samples(self) -> float:
        """How many samples these rows count for."""
        return sum(len(x) if w is None else float(np.sum(_array(w))) for x, _, w in self.batches)


class CheckedBatches:
    """The batches of a source, each checked when its turn comes; on the way to a GPU they lie in pinned memory.

    The first pass goes on where the first rows ended, so that an iterator which can be read once is read once.
    """

    scaled = False
    rows_at_once = math.inf

    def __init__(
        self, source: Source, first: FirstRows, check: Check, shape: tuple[int, ...], pinned: bool
    ) -> None:
        self.source, self.check, self.shape, self.pinned = source, check, shape, pinned
        self.at_least = first.samples()
        weighted = first.batches[0][2] is not None
        known = None if weighted else source.n_rows
        self.n_samples: float | None = self.at_least if first.whole else known
        self._n_batches = len(first.batches) if first.whole else source.n_batches
        self._first: FirstRows | None = None if source.by_number else first
        if source.by_number:
            first.batches, first.rest = [], None

    def batches_per_pass(self) -> int | None:
        return self._n_batches

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        found = None
        for j, raw in enumerate(self._raw(number, skip), skip):
            with naming(number, j, begun=True):
                found = self._checked(raw)
            yield found
        if number == 0:
            self._first = None
        if found is None and skip == 0:
            raise BatchError(
                f"pass {number + 1} brought no batch: X must be an iterable that can be read again, or a function that "
                "returns a new iterable each time; or ask for one pass (max_iter=1)."
            )

    def _raw(self, number: int, skip: int) -> Iterator[Any]:
        first = self._first if number == 0 else None
        raw = self.source.one_pass(number, skip) if first is None else _continued(first, skip)
        for j in range(1 << 62):
            try:
                item = next(raw)
            except StopIteration:
                return
            except DladmmError as error:
                raise BatchError(f"batch {skip + j + 1} of pass {number + 1}: {error}") from error
            yield item

    def _checked(self, raw: Any) -> Batch:
        batch = self.check(*unpacked(raw))
        if tuple(batch.x.shape[1:]) != self.shape:
            raise InputError(
                f"its samples have shape {tuple(batch.x.shape[1:])}, those before had {self.shape}."
            )
        if not self.pinned:
            return batch
        tensors = (t if t is None or t.is_cuda else t.pin_memory() for t in batch)
        return Batch(*tensors)  # type: ignore[arg-type]  # x and target are never None


def _continued(first: FirstRows, skip: int) -> Iterator[Any]:
    """The first pass from the batch ``skip`` on; what was read already is not read again."""
    yield from first.batches[skip:]
    if first.rest is not None:
        yield from islice(chain(first.rest), max(0, skip - len(first.batches)), None)


class Together:
    """Every rank's own batches, side by side: a pass ends when the first rank has none left.

    A batch that one rank refuses ends the run on all of them.
    """

    def __init__(self, own: Batches, comm: Communicator) -> None:
        self.own, self.comm, self.scaled, self.rows_at_once = own, comm, own.scaled, own.rows_at_once
        lengths = [float(text) for text in comm.texts(repr(float(own.batches_per_pass() or math.nan)))]
        samples = [float(text) for text in comm.texts(repr(float(own.n_samples or math.nan)))]
        self.at_least = sum(float(text) for text in comm.texts(repr(float(own.at_least))))
        self.n_samples: float | None = None if math.isnan(sum(samples)) else sum(samples)
        self._n_batches = None if math.isnan(sum(lengths)) else int(min(lengths))

    def batches_per_pass(self) -> int | None:
        return self._n_batches

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        batches = self.own.one_pass(number, skip)
        while True:
            batch, refusal = None, None
            try:
                batch = next(batches, None)
            except DladmmError as error:
                refusal = error
            own = 2 if refusal is not None else int(batch is None)
            device = getattr(self.comm, "device", torch.device("cpu"))
            worst = int(self.comm.largest(torch.tensor([own], device=device))[0])
            if refusal is not None:
                raise refusal
            if worst == 2:
                raise DistributedError("another rank refused its batch; its own output says why.")
            if worst == 1 or batch is None:
                return
            yield batch


class naming:
    """Errors within it name the batch, and what was kept; ``begun``: the run has begun."""

    def __init__(self, number: int, j: int, begun: bool = False) -> None:
        self.where, self.begun = f"batch {j + 1} of pass {number + 1}", begun

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, BatchError) or not isinstance(
            error, (DladmmError, TypeError, ValueError, RuntimeError)
        ):
            return
        raise BatchError(
            f"{self.where}: {error} Mend or leave out that batch. {KEPT if self.begun else ''}".strip()
        ) from error


def _array(value: Any) -> np.ndarray[Any, Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
