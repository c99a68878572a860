"""Buffers that a block's updates use again and again."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Scratch:
    """Buffers by name and shape. On a CPU fresh pages of memory cost several times the arithmetic done in them."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int, int], Tensor] = {}
        self._left: dict[str, tuple[Tensor, Tensor]] = {}
        self._leaving: dict[str, tuple[Tensor, Tensor]] = {}
        self._staying: dict[str, tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, memory: dict[str, Any]) -> Scratch:
        """The one that lives in a block's memory."""
        found = memory.get("scratch")
        if found is None:
            found = memory["scratch"] = cls()
        return found if isinstance(found, cls) else cls()

    def take(self, name: str, like: Tensor, columns: int | None = None, rows: int | None = None) -> Tensor:
        """A buffer whose content is whatever was left there."""
        shape = (like.shape[0] if rows is None else rows, like.shape[1] if columns is None else columns)
        buffer = self._buffers.get((name, *shape))
        if buffer is None:
            buffer = self._buffers[(name, *shape)] = like.new_empty(shape)
        return buffer

    def next_update(self) -> None:
        """An update begins: it finds what the one before it left, and of older things what was left to stay."""
        self._left, self._leaving = self._leaving, {}

    def leave(self, name: str, first: Tensor, second: Tensor, *, stays: bool = False) -> None:
        """The buffer holds ``first - second``, which the next update will ask for.

        With ``stays`` a later one will: neither tensor changes before, and nobody else takes the buffer.
        """
        self._staying.pop(name, None)
        (self._staying if stays else self._leaving)[name] = first, second

    def left(self, name: str, first: Tensor, second: Tensor) -> bool:
        """Whether ``first - second`` was left in the buffer, which the caller is about to take."""
        entries = [left.pop(name, (None, None)) for left in (self._left, self._staying)]
        return any(found[0] is first and found[1] is second for found in entries)

    def forget(self) -> None:
        """Nothing was left: the state was changed by hand."""
        for left in (self._left, self._leaving, self._staying):
            left.clear()

    def swap(self, name: str, replacement: Tensor) -> None:
        """Take ``replacement`` as the buffer from now on: the one handed out before belongs to its taker."""
        self._buffers[(name, replacement.shape[0], replacement.shape[1])] = replacement
