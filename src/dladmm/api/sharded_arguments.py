"""How a run on several ranks comes to its data: every rank takes its own rows, and one refusal is everybody's."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.compute.communicator import Communicator, current
from dladmm.compute.shards import share

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

WHOLE = ("X", "y", "sample_weight", "target_mask")
"""The arguments that have one row per sample."""

SAMPLED = 64
"""Rows looked at to see whether all ranks were given the same data."""


def on_own_rows(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Hand ``train`` the rows of this rank, and let no rank wait for one that refused its arguments.

    Arrays are the whole data, the same on every rank, and are cut here (a memmap is read where it is cut); a function
    ``X(rank, world)`` gives a rank's own rows. Until ``train`` says :meth:`~Communicator.all_clear`, whatever it
    raises on one rank is raised on all.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        comm: Communicator = given.get("communicator") or current()
        if comm.alone and not any(callable(given.get(name)) for name in ("X", "validation")):
            return function(*args, **kwargs)
        given["communicator"] = comm
        whole = [name for name in WHOLE if given.get(name) is not None and not callable(given["X"])]
        with comm.together():
            marks = " ".join(_mark(_array(given[name])) for name in whole)
        check_same(marks, whole, comm)
        with comm.together():
            _take_own_rows(given, comm)
        if not comm.alone:
            given["random_state"] = _agreed_seed(given.get("random_state", 0), comm)
        with comm.refusals():
            return function(*bound.args, **bound.kwargs)

    return run


def on_whole_graph(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """The same for ``train_graph``, whose ranks are given the same graph and cut it themselves."""
    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        comm: Communicator = given.get("communicator") or current()
        if comm.alone:
            return function(*args, **kwargs)
        if callable(given["data"]) and given.get("partition") is not None:
            raise InputError("a graph in parts brings its partition; leave partition out.")
        given["communicator"] = comm
        given["random_state"] = _agreed_seed(given.get("random_state", 0), comm)
        with comm.refusals():
            return function(*bound.args, **bound.kwargs)

    return run


def _take_own_rows(given: dict[str, Any], comm: Communicator) -> None:
    names = [name for name in WHOLE if given.get(name) is not None]
    if callable(given["X"]):
        if given.get("y") is not None:
            raise InputError("y comes with the rows of a function X(rank, world); leave y out.")
        given |= dict(zip(("X", "y", "sample_weight"), _called(given["X"], "X", comm), strict=False))
    else:
        own = own_rows([given[name] for name in names], names, comm)
        given |= dict(zip(names, own, strict=True))
    held = given.get("validation")
    if callable(held):
        given["validation"] = _called(held, "validation", comm)
    elif held is not None:
        parts = [f"validation[{i}]" for i in range(len(held))]
        given["validation"] = tuple(own_rows(list(held), parts, comm))


def _called(function: Callable[[int, int], Any], name: str, comm: Communicator) -> tuple[Any, ...]:
    rows = function(comm.rank, comm.size)
    if not isinstance(rows, tuple) or len(rows) not in (2, 3):
        raise InputTypeError(
            f"{name}(rank, world) must return (X, y) or (X, y, sample_weight), got {type(rows).__name__}."
        )
    return rows


def own_rows(arrays: list[Any], names: list[str], comm: Communicator) -> list[Any]:
    """The rows of this rank of arrays that every rank was given whole."""
    if comm.alone:
        return arrays
    whole = [_array(array) for array in arrays]
    n_rows = len(whole[0]) if whole and np.ndim(whole[0]) else 0
    wrong = [n for n, a in zip(names, whole, strict=True) if a is not None and len(a) != n_rows]
    if wrong:
        raise InputError(f"{wrong[0]} and {names[0]} must have as many rows as each other.")
    part = share(n_rows, comm.rank, comm.size)
    return [None if array is None else array[part] for array in whole]


def check_same(marks: str, names: list[str], comm: Communicator) -> None:
    """Refuse data that differ between the ranks: some rows would count twice and others not at all."""
    if len(set(comm.texts(marks))) > 1:
        raise InputError(
            f"{', '.join(names)} must be the same whole arrays on all {comm.size} ranks, of which each takes its own "
            "rows, but they differ. Give a function X(rank, world) where each rank has its own rows already."
        )


def _array(value: Any) -> Any:
    if value is None or isinstance(value, Tensor | np.ndarray):
        return value
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise InputTypeError(f"data must be arrays on several ranks, got {type(value).__name__}.")
    return np.asanyarray(value)


def _mark(array: Any) -> str:
    """Shape and a checksum of some rows."""
    step = max(1, len(array) // SAMPLED) if np.ndim(array) else 1
    some = array[::step] if np.ndim(array) else array
    if isinstance(some, Tensor):
        if some.layout != torch.strided:
            return f"{tuple(some.shape)}"
        some = some.detach().cpu().numpy()
    return f"{tuple(array.shape)}:{zlib.crc32(np.ascontiguousarray(some).tobytes())}"


def _agreed_seed(seed: Any, comm: Communicator) -> Any:
    """Rank 0's, where it is a number: initial weights are the same everywhere."""
    said = comm.texts(repr(int(seed)) if isinstance(seed, (int, np.integer)) else "")
    return int(said[0]) if said[0] else seed
