"""Rows worked on in chunks, so that what is made of them on the way stays small.

Whatever can be cut by ``[start:stop]`` has rows: a tensor, and a :class:`Source`, which makes a chunk of rows when it
is asked for one. ``at_once`` is the number of rows of a chunk everywhere; None is one chunk of all rows, the tensors
themselves.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Made = TypeVar("Made")

Change = Callable[[Tensor, slice], Tensor]
"""What is done to a chunk of rows; it is told which rows they are."""


def slices(n_rows: int, at_once: int) -> Iterator[slice]:
    """``n_rows`` cut into chunks of ``at_once``."""
    return (slice(start, min(start + at_once, n_rows)) for start in range(0, n_rows, at_once))


def in_chunks(at_once: int | None, *rows: Any) -> Iterator[tuple[Any, ...]]:
    """Chunk after chunk of all of them, cut alike; one that is None stays None."""
    if at_once is None:
        yield rows
        return
    n_rows = next(len(each) for each in rows if each is not None)
    if at_once >= n_rows and all(isinstance(r, Tensor | None) for r in rows):
        yield rows
        return
    for part in slices(n_rows, at_once) if n_rows else (slice(0, 0),):  # a rank may have no rows
        yield tuple(None if each is None else each[part] for each in rows)


def concatenated(at_once: int | None, function: Callable[..., Tensor], *rows: Any) -> Tensor:
    """``function`` of every chunk, which keeps the number of rows, put together."""
    if at_once is None:
        return function(*rows)
    found: Tensor | None = None
    begun = 0
    for part in in_chunks(at_once, *rows):
        made = function(*part)
        if found is None:
            n_rows = next(len(each) for each in rows if each is not None)
            if len(made) == n_rows:
                return made
            found = made.new_empty((n_rows, *made.shape[1:]))
        found[begun : begun + len(made)] = made
        begun += len(made)
    assert found is not None
    return found


class Source:
    """Rows that are not held in memory: a chunk is read, cast and changed each time it is used.

    ``read(rows)`` gives a chunk as it is stored. It stands where a tensor of inputs does, for blocks that work by
    chunks.
    """

    layout = torch.strided

    def __init__(
        self,
        read: Callable[[slice], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        changes: tuple[Change, ...] = (),
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._read, self._changes = read, changes

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def __getitem__(self, rows: slice) -> Tensor:
        part = self._read(rows).to(device=self.device, dtype=self.dtype)
        for change in self._changes:
            part = change(part, rows)
        return part

    def changed(self, change: Change) -> Source:
        """The same rows with one more thing done to them."""
        return Source(self._read, self.shape, self.dtype, self.device, (*self._changes, change))


def reader(stored: np.ndarray[Any, Any] | Tensor) -> Callable[[slice], Tensor]:
    """Reads chunks of an array, a tensor or a memmap; a chunk that has to be copied is, the whole never."""
    if isinstance(stored, Tensor):
        return lambda rows: stored[rows]
    mapped = memmap_of(stored)
    if mapped is None:
        return lambda rows: viewed(stored[rows])

    def read(rows: slice) -> Tensor:
        part = torch.from_numpy(np.array(stored[rows]))
        release(mapped)
        return part

    return read


def memmap_of(stored: Any) -> np.memmap[Any, Any] | None:
    """The memmap whose rows these are, if they lie in a file and not in memory."""
    while isinstance(stored, np.ndarray):
        if isinstance(stored, np.memmap):
            return stored
        stored = stored.base
    return None


def few(rows: Tensor, most: int) -> Tensor:
    """At most so many of the rows, evenly spaced."""
    return rows[:: -(-len(rows) // most)]


def viewed(array: np.ndarray[Any, Any]) -> Tensor:
    """The array as a tensor on the same memory, never written to; copied only where torch cannot read it so."""
    if any(stride < 0 for stride in array.strides):
        array = np.array(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def release(mapped: np.memmap[Any, Any]) -> None:
    """Give pages of a memmap back to the system: it would keep every page once read until memory is short.

    A private mapping ("c") is left alone: what was changed there exists nowhere else.
    """
    held = getattr(mapped, "_mmap", None)
    if isinstance(held, mmap.mmap) and mapped.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)
