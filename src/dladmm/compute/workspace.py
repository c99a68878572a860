"""Buffers and cached quantities of one engine; a stale entry can never be taken.

Every entry remembers what it was made from: the memory, shape and version counter of each tensor (torch counts every
in-place write, also through views), and plain numbers. An entry is found only while all of them, and the stored tensor
itself, are unchanged. So nothing has to be invalidated: changing a state by hand is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dladmm.compute.foresight import Foresight

Made = TypeVar("Made")

KEPT = 2
"""Entries per name, made from different memory: such as the Gram matrix of the inputs, and of inputs with dropout."""


def version(thing: Any) -> Hashable:
    """Changes whenever the content of a tensor does; other objects are told apart by identity.

    Writes to tensors made under ``torch.inference_mode`` are not counted, so those are never the same twice.
    """
    if isinstance(thing, Tensor) and thing.is_inference():
        return object()
    if isinstance(thing, Tensor) and thing.layout == torch.strided:
        return _place(thing), thing._version, tuple(thing.shape), thing.stride(), thing.dtype
    return id(thing)


def _place(thing: Any) -> Hashable:
    """Where a tensor lies. Storages are told apart also where a rank has no rows, whose addresses are all 0.

    Every rank must find and miss the same entries, because making one may sum over all ranks.
    """
    if isinstance(thing, Tensor) and thing.layout == torch.strided:
        return thing.untyped_storage()._cdata, thing.storage_offset()
    return id(thing)


@dataclass
class Entry:
    """A stored value and what it was made from, kept alive so that no other tensor gets the same address."""

    value: Any
    own_versions: tuple[Hashable, ...]
    sources: tuple[Any, ...]
    versions: tuple[Hashable, ...]
    numbers: Hashable

    def valid_for(self, versions: tuple[Hashable, ...], numbers: Hashable) -> bool:
        return self.versions == versions and self.numbers == numbers and self.intact

    @property
    def intact(self) -> bool:
        """Whether nothing was written into the stored value."""
        return self.own_versions == tuple(version(tensor) for tensor in tensors_of(self.value))

    @property
    def places(self) -> tuple[Hashable, ...]:
        return tuple(_place(source) for source in self.sources)


class Workspace:
    """Buffers by name and shape, and cached quantities by owner and name.

    On a CPU fresh pages of memory cost several times the arithmetic done in them, so buffers are shared by all updates
    of an engine. A buffer may be the value of an entry: taking it for something else makes the entry stale.
    """

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tensor] = {}
        self._entries: dict[Hashable, list[Entry]] = {}
        self._foresight: Foresight | None = None

    @property
    def foresight(self) -> Foresight:
        """How long the engine's loops are where nobody may ask."""
        if self._foresight is None:
            self._foresight = Foresight()
        return self._foresight

    def buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A buffer with this shape; its content is whatever was written there last."""
        key = (name, shape, like.dtype, like.device)
        found = self._buffers.get(key)
        if found is None:
            found = self._buffers[key] = like.new_empty(shape)
        return found

    def swap(self, name: str, replacement: Tensor) -> None:
        """Use ``replacement`` as the buffer from now on: the one handed out before belongs to its taker."""
        key = (name, tuple(replacement.shape), replacement.dtype, replacement.device)
        self._buffers[key] = replacement

    def find(self, key: Hashable, sources: Sequence[Any], numbers: Hashable = ()) -> Any | None:
        """The entry made from exactly these sources as they are now and these numbers; None if there is none."""
        entries = self._entries.get(key)
        if entries is None:
            return None
        versions = tuple(version(source) for source in sources)
        for entry in entries:
            if entry.valid_for(versions, numbers):
                return entry.value
        return None

    def keep(self, key: Hashable, value: Made, sources: Sequence[Any], numbers: Hashable = ()) -> Made:
        """Store a value made from ``sources``. Older entries of the same memory can never be valid again and go."""
        versions = tuple(version(source) for source in sources)
        own = tuple(version(tensor) for tensor in tensors_of(value))
        entry = Entry(value, own, tuple(sources), versions, numbers)
        others = [old for old in self._entries.get(key, ()) if old.places != entry.places]
        self._entries[key] = [entry, *others[: KEPT - 1]]
        return value

    def cached(
        self, key: Hashable, sources: Sequence[Any], make: Callable[[], Made], numbers: Hashable = ()
    ) -> Made:
        """The stored value, made now where there is none."""
        found: Made | None = self.find(key, sources, numbers)
        return self.keep(key, make(), sources, numbers) if found is None else found

    def memory(self, key: Hashable, sources: Sequence[Any], shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Where to make an entry that was not found: in the memory of the one that it will replace, which goes."""
        places = tuple(_place(source) for source in sources)
        for entry in self._entries.get(key, ()):
            old = entry.value
            if (
                entry.places == places
                and isinstance(old, Tensor)
                and (old.shape, old.dtype) == (shape, like.dtype)
            ):
                return old
        return like.new_empty(shape)

    def newest(self, key: Hashable) -> Any | None:
        """The value stored last, valid or not: for snapshots."""
        entries = self._entries.get(key)
        return entries[0].value if entries else None

    def release(self) -> None:
        """Free all memory."""
        self._buffers.clear()
        self._entries.clear()

    # For recorded launches -------------------------------------------------------------------------------------

    def addresses(self) -> tuple[int, ...]:
        """Where the stored tensors lie: a recorded iteration reads them there."""
        return tuple(tensor.data_ptr() for tensor in self._stored())

    def mark(self) -> dict[Hashable, list[Entry]]:
        """The entries as they are now, for :meth:`settle`."""
        return {key: list(entries) for key, entries in self._entries.items()}

    def settle(self, before: dict[Hashable, list[Entry]]) -> None:
        """Copy what replaced the newest value of ``before`` to where that lay: there the next replay will look for it.

        An entry whose buffer was taken for something else stays stale.
        """
        for key, entries in self._entries.items():
            newest, old = entries[0], before.get(key)
            if not old or newest is old[0]:
                continue
            if newest.intact:
                newest.value = settled(newest.value, old[0].value)
                newest.own_versions = tuple(version(tensor) for tensor in tensors_of(newest.value))
            self._entries[key] = [newest, *(entry for entry in entries[1:] if entry is not old[0])]

    def _stored(self) -> Iterator[Tensor]:
        for entries in self._entries.values():
            for entry in entries:
                yield from tensors_of(entry.value)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of a stored value: itself, or those of a tuple."""
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, Tensor):
            yield each


def settled(now: Any, was: Any) -> Any:
    """``now``, its tensors copied to where those of ``was`` lie."""
    if isinstance(now, Tensor) and isinstance(was, Tensor) and now is not was and now.shape == was.shape:
        return was.copy_(now)
    if isinstance(now, tuple) and isinstance(was, tuple):
        parts = [settled(*both) for both in zip(now, was, strict=True)]
        return type(now)(*parts) if hasattr(now, "_fields") else tuple(parts)
    return now


@dataclass(frozen=True)
class UpdatePlan:
    """What may be computed in the pass that applies a move, read off the schedule (:mod:`dladmm.engine.schedule`).

    An update of V_l has link l behind its variable (``in``) and link l + 1 behind its block's prediction (``out``); an
    update of B_l has link l as ``out``.

    Parameters
    ----------
    in_residual, out_residual : bool
        The next update begins with ``prediction - target`` of that link.
    out_offset : bool
        The next update begins with ``variable - prediction`` of that link.
    in_offset_lasts : bool
        The next sweep will, and neither tensor changes before.
    offsets_last : bool
        Sweeps continue each other, so that every link has a buffer of its own for that.
    out_prediction_dead : bool
        The prediction is overwritten before anybody reads it.
    in_settled : bool
        Nothing moves that link any more before the iteration ends, so its tie is worth measuring.
    in_holds : bool
        The sweep began at a feasible point and nothing has moved that link since: the variable is its prediction.
    """

    in_residual: bool = False
    out_residual: bool = False
    out_offset: bool = False
    in_offset_lasts: bool = False
    offsets_last: bool = False
    out_prediction_dead: bool = False
    in_settled: bool = True
    in_holds: bool = False


NO_PLAN = UpdatePlan()
