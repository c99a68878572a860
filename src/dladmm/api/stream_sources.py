"""Where the rows of a stream come from, before they are checked: files, sparse rows, data sets, loaders, iterators.

A source gives raw batches ``(x, y)`` or ``(x, y, weight)``, pass by pass. Rows that can be read by number (memmaps,
sparse rows, map-style data sets) are shuffled from the seed, anew for every pass; what comes by itself (loaders,
iterators, generators, functions) keeps its own order and batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.chunks import memmap_of, release, viewed
from dladmm.engine.batches import default_batch_size, shuffled

SAMPLES_AT_ONCE = 256
"""Samples of an iterable data set in one batch, where the number of rows is unknown."""


class Source(Protocol):
    """Raw batches, pass by pass."""

    n_rows: int | None
    n_batches: int | None
    one_shot: bool
    """Whether there is one pass and no other."""
    by_number: bool
    """Whether rows are read by number, so that a pass can be begun anywhere and again."""

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Any]:
        """The batches of pass ``number`` (from 0), without the first ``skip``."""


def source_of_stream(X: Any, batch_size: int | None, seed: int) -> Source:
    """The source that X, for which :func:`is_stream` holds, stands for."""
    if isinstance(X, DataLoader):
        _refuse_batch_size(batch_size, "a DataLoader")
        return LoaderSource(X, seed)
    if isinstance(X, IterableDataset):
        return SampleSource(X, batch_size or SAMPLES_AT_ONCE)
    if isinstance(X, Dataset):
        return DatasetSource(X, batch_size, seed)
    _refuse_batch_size(batch_size, "a stream of batches")
    if callable(X) and not hasattr(X, "__iter__"):
        return BatchSource(X, None, one_shot=False)
    return BatchSource(lambda: X, len(X) if hasattr(X, "__len__") else None, one_shot=iter(X) is X)


def _refuse_batch_size(batch_size: int | None, what: str) -> None:
    if batch_size is not None:
        raise InputError(f"{what} has its own batches; leave batch_size out.")


class ShuffledRows(ABC):
    """Rows that are read by number, shuffled anew for every pass; all batches have about the size asked for.

    The few rows that are left over wait for the next pass. In a batch rows lie in the order they are stored in.
    """

    one_shot, by_number = False, True

    def __init__(self, n_rows: int, batch_size: int | None, seed: int) -> None:
        if n_rows == 0:
            raise InputError("X is empty; at least one row is needed.")
        size = default_batch_size(n_rows, convolutions=False) if batch_size is None else batch_size
        self.seed = seed
        self.n_rows: int | None = n_rows
        self.n_batches: int | None = max(1, round(n_rows / size))
        self._rows, self._cuts = n_rows, self.n_batches

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Any]:
        order = shuffled(self._rows, self.seed, number).numpy()
        size = self._rows // self._cuts
        for j in range(skip, self._cuts):
            yield self.read(np.sort(order[j * size : (j + 1) * size]))

    @abstractmethod
    def read(self, rows: np.ndarray[Any, Any]) -> Any:
        """The raw batch of these rows."""


class RowSource(ShuffledRows):
    """Rows of an array, of a memmap (read where they lie, never the whole) or of a sparse matrix (dense per batch)."""

    def __init__(self, X: Any, y: Any, weight: Any, batch_size: int | None, seed: int) -> None:
        self.X = X.tocsr() if sparse.issparse(X) else X
        self.y, self.weight = y, weight
        for name, each in (("y", y), ("sample_weight", weight)):
            n_rows = X.shape[0] if each is None else (len(each) if np.ndim(each) else 0)
            if n_rows != X.shape[0]:
                raise InputError(f"{name} has {n_rows} rows, but there are {X.shape[0]} samples.")
        super().__init__(X.shape[0], batch_size, seed)

    def read(self, rows: np.ndarray[Any, Any]) -> Any:
        return _taken(self.X, rows), _taken(self.y, rows), _taken(self.weight, rows)


def _taken(stored: Any, rows: np.ndarray[Any, Any]) -> Any:
    if stored is None:
        return None
    if sparse.issparse(stored):
        return stored[rows].toarray()
    if isinstance(stored, Tensor):
        return stored[torch.from_numpy(rows).to(stored.device)]
    mapped = memmap_of(stored)
    found = np.asarray(stored[rows])
    if mapped is not None:
        release(mapped)
    return viewed(found)


class DatasetSource(ShuffledRows):
    """A map-style data set: its samples by number, put together as a DataLoader does."""

    def __init__(self, dataset: Any, batch_size: int | None, seed: int) -> None:
        self.dataset = dataset
        try:
            n_rows = len(dataset)
        except TypeError as error:
            raise InputTypeError(
                "a Dataset needs __len__ to be shuffled; give a DataLoader or an IterableDataset."
            ) from error
        super().__init__(n_rows, batch_size, seed)

    def read(self, rows: np.ndarray[Any, Any]) -> Any:
        numbers = rows.tolist()
        several = getattr(self.dataset, "__getitems__", None)
        items = [self.dataset[i] for i in numbers] if several is None else several(numbers)
        return collated(items)


class SampleSource:
    """An iterable data set, sample after sample; ``batch_size`` of them make a batch, the last may be short."""

    one_shot, by_number = False, False
    n_rows: int | None = None
    n_batches: int | None = None

    def __init__(self, dataset: Iterable[Any], batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Any]:
        samples = iter(self.dataset)
        for _ in islice(samples, skip * self.batch_size):
            pass
        while items := list(islice(samples, self.batch_size)):
            yield collated(items)


class BatchSource:
    """Batches made by the caller: an iterable, begun anew for every pass, or an iterator, which has one."""

    by_number = False
    n_rows: int | None = None

    def __init__(self, make: Callable[[], Iterable[Any]], n_batches: int | None, one_shot: bool) -> None:
        self._make, self.n_batches, self.one_shot = make, n_batches, one_shot

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Any]:
        made = self._make()
        if not hasattr(made, "__iter__"):
            raise InputTypeError(f"X() must return an iterable of batches, got {type(made).__name__}.")
        yield from islice(made, skip, None)


class LoaderSource:
    """A DataLoader, in its own order and with its own transforms.

    Torch's random numbers that loader and transforms draw in this process follow the seed and the pass, so that a run
    can be repeated and resumed; those of the program are left as they are. A loader with a generator of its own uses
    that.
    """

    one_shot, by_number = False, False
    n_rows: int | None = None

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed
        try:
            self.n_batches: int | None = len(loader)
        except TypeError:
            self.n_batches = None

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        state, batches, done = generator.get_state(), None, object()
        for j in range(1 << 62):
            outside = torch.get_rng_state()
            torch.set_rng_state(state)
            try:
                batches = iter(self.loader) if batches is None else batches
                batch = next(batches, done)
                state = torch.get_rng_state()
            finally:
                torch.set_rng_state(outside)
            if batch is done:
                return
            if j >= skip:
                yield with_parts(batch)


def collated(items: list[Any]) -> Any:
    """Samples put together as a DataLoader does."""
    try:
        return with_parts(default_collate(items))
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        raise InputTypeError(
            f"the samples of the Dataset cannot be put together in a batch: {error} Let it return (x, y) as tensors, "
            "arrays or numbers of one shape, or give a DataLoader with its own collate_fn."
        ) from error


def with_parts(batch: Any) -> Any:
    """A collated batch whose x and y of several arrays are tuples: torch makes lists of the tuples of samples."""
    if not isinstance(batch, (tuple, list)):
        return batch
    return tuple(
        tuple(part) if isinstance(part, list) and part and all(isinstance(t, Tensor) for t in part) else part
        for part in batch
    )
