"""What travels between a silo and the server: a message of tensors and a text, as bytes and back without pickle.

Matrices may be rounded to float32 or bfloat16 on the way, and of a symmetric one only a half travels. Vectors and
numbers keep their dtype: they cost nothing, and steps are decided by them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from dladmm.base.errors import DladmmError, InputError

FORMAT = 1
"""The number of this format; a message of another one is refused."""

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
}
PRECISIONS = ("exact", "float32", "bfloat16")
LONGEST_HEADER = 1 << 24


class MessageError(DladmmError, ValueError):
    """Bytes that are no message of this format."""


@dataclass(frozen=True)
class Part:
    """One tensor of a message: as it was handed in, how it travels, and whether its largest entries are asked for.

    ``masked``: it travels as numbers of 128 bits under a mask (:mod:`dladmm.silos.secure`), shape (count, 2).
    """

    shape: tuple[int, ...]
    dtype: str
    wire: str
    half: bool = False
    largest: bool = False
    masked: bool = False

    @property
    def count(self) -> int:
        """How many numbers travel."""
        if self.half:
            return self.shape[0] * (self.shape[0] + 1) // 2
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.count * (16 if self.masked else DTYPES[self.wire].itemsize)


@dataclass(frozen=True, eq=False)
class Message:
    """``kind`` says what is asked, ``number`` which message of its silo this is; ``tensors`` are on the CPU."""

    kind: str
    number: int = 0
    text: str = ""
    parts: tuple[Part, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @classmethod
    def of(
        cls,
        kind: str,
        number: int,
        tensors: Sequence[Tensor],
        halves: Collection[int] = (),
        precision: str = "exact",
        largest: bool = False,
    ) -> Message:
        """A message of these tensors, rounded as they will travel; asks for their sums, or their largest entries."""
        parts, rounded = [], []
        for i, tensor in enumerate(tensors):
            name = _name(tensor.dtype)
            wire = _wire(name, tensor.ndim, precision)
            parts.append(Part(tuple(tensor.shape), name, wire, i in halves, largest))
            rounded.append(tensor.detach().cpu().to(DTYPES[wire]))
        return cls(kind, number, "", tuple(parts), tuple(rounded))

    def like(self, totals: Sequence[Tensor]) -> Message:
        """The answer to this message: the totals in its shapes and dtypes."""
        pairs = zip(totals, self.parts, strict=True)
        rounded = tuple(t.to(DTYPES[part.wire]).reshape(part.shape) for t, part in pairs)
        return Message(
            self.kind, self.number, "", tuple(replace(p, masked=False) for p in self.parts), rounded
        )

    def back(self, like: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in the dtypes and on the devices of those that were handed in."""
        pairs = zip(self.tensors, like, strict=True)
        return [t.to(device=old.device, dtype=old.dtype).reshape(old.shape) for t, old in pairs]

    def joined(self, other: Message) -> Message:
        """This message and another in one."""
        return replace(self, parts=self.parts + other.parts, tensors=self.tensors + other.tensors)

    def split(self, lengths: Sequence[int]) -> list[Message]:
        """Messages of so many tensors each."""
        ends = list(accumulate(lengths, initial=0))
        return [replace(self, parts=self.parts[i:j], tensors=self.tensors[i:j]) for i, j in pairwise(ends)]

    def finite(self) -> bool:
        """Whether all that is to be added is; the largest entry of no rows is -infinity. Of masks the text says it."""
        if any(part.masked for part in self.parts):
            return not self.text
        pairs = zip(self.tensors, self.parts, strict=True)
        return all(bool(t.isfinite().all()) for t, part in pairs if not part.largest)

    def to_bytes(self) -> bytes:
        parts = [
            [list(p.shape), p.dtype, p.wire, p.half, p.largest, *([True] if p.masked else [])]
            for p in self.parts
        ]
        says = {
            "format": FORMAT, "kind": self.kind, "number": self.number, "text": self.text, "parts": parts,
        }  # fmt: skip
        header = json.dumps(says, separators=(",", ":")).encode()
        body = [_packed(t, part) for t, part in zip(self.tensors, self.parts, strict=True)]
        return b"".join([struct.pack("<I", len(header)), header, *body])

    @classmethod
    def from_bytes(cls, raw: bytes) -> Message:
        """The message that :meth:`to_bytes` wrote; anything else raises :class:`MessageError`."""
        try:
            (length,) = struct.unpack_from("<I", raw)
            if length > min(LONGEST_HEADER, len(raw) - 4):
                raise MessageError("it ends within its header")
            says = json.loads(raw[4 : 4 + length])
            if says["format"] != FORMAT:
                raise MessageError(f"it has format {says['format']!r}, this is format {FORMAT}")
            kind, number, text = str(says["kind"]), int(says["number"]), str(says["text"])
            parts = tuple(_part(*each) for each in says["parts"])
        except (struct.error, ValueError, KeyError, TypeError) as error:
            reason = str(error) if isinstance(error, MessageError) else type(error).__name__
            raise MessageError(f"not a message of a silo: {reason}.") from error
        at = 4 + length
        if len(raw) - at != sum(part.n_bytes for part in parts):
            raise MessageError("not a message of a silo: its length is not what its header says.")
        tensors = []
        for part in parts:
            tensors.append(_unpacked(raw[at : at + part.n_bytes], part))
            at += part.n_bytes
        return cls(kind, number, text, parts, tuple(tensors))


def check_precision(precision: str) -> str:
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")
    return precision


def _part(shape: Any, dtype: Any, wire: Any, half: Any, largest: Any, masked: Any = False) -> Part:
    how = bool(half), bool(largest), bool(masked)
    part = Part(tuple(int(n) for n in shape), str(dtype), str(wire), *how)
    if part.dtype not in DTYPES or part.wire not in DTYPES or any(n < 0 for n in part.shape):
        raise MessageError(f"it has a tensor of {part.dtype} as {part.wire} and shape {part.shape}")
    if part.half and (len(part.shape) != 2 or part.shape[0] != part.shape[1]):
        raise MessageError(f"half of a matrix of shape {part.shape}")
    return part


def _name(dtype: torch.dtype) -> str:
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise InputError(f"a tensor of {dtype} cannot be sent; {', '.join(DTYPES)} can.")


def _wire(dtype: str, ndim: int, precision: str) -> str:
    """How a tensor travels: only matrices of floats are rounded, and never to something longer."""
    if ndim < 2 or precision == "exact" or dtype == "int64":
        return dtype
    return min(dtype, precision, key=lambda name: DTYPES[name].itemsize)


def half_of(matrix: Tensor) -> Tensor:
    """The entries of a symmetric matrix on and above its diagonal."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def whole_of(half: Tensor, shape: Sequence[int]) -> Tensor:
    """The symmetric matrix of which these are :func:`half_of`."""
    rows, columns = torch.triu_indices(*shape)
    whole = half.new_empty(tuple(shape))
    whole[rows, columns] = half
    whole[columns, rows] = half
    return whole


def _packed(tensor: Tensor, part: Part) -> bytes:
    if part.half and not part.masked:
        tensor = half_of(tensor)
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _unpacked(raw: bytes, part: Part) -> Tensor:
    dtype = torch.int64 if part.masked else DTYPES[part.wire]
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    if part.masked:
        return flat.reshape(-1, 2)
    return whole_of(flat, part.shape) if part.half else flat.reshape(part.shape)
