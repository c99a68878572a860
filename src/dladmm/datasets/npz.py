"""Reads numeric arrays from npz files (a zip of npy files) without trusting the file.

Only the requested members are read (Coauthor's `class_names` is a pickle). Every declared size is checked against the
actual bytes and against a limit before anything is allocated; no Python object is built from the file.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError
from dladmm.datasets._bytes import inflate

MAX_MEMBERS = 64
MAX_BYTES = 64 * 2**20  #: of all requested arrays together; Coauthor Physics needs 13 MiB

_END = struct.Struct("<4s4H2LH")  # end of central directory: signature, disks, entries, size, offset, comment
_ENTRY = struct.Struct("<4s6H3L5H2L")  # an entry of the central directory
_LOCAL = struct.Struct("<4s5H3L2H")  # the header in front of a member's data
_STORED, _DEFLATED = 0, 8
_UTF8_FLAG = 0x0800

_NPY_HEADER = re.compile(
    rb"\{'descr': '(?P<descr><[iuf][248]|\|[iu]1)', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>|\d{1,12},|\d{1,12}(?:, \d{1,12}){1,7})\), \} *\n"
)


@dataclass(frozen=True)
class _Member:
    name: str
    method: int
    crc: int
    compressed: int
    size: int
    offset: int


def parse_npz(
    data: bytes, source: str, wanted: Iterable[str], *, limit: int = MAX_BYTES
) -> dict[str, NDArray[Any]]:
    """The `wanted` arrays of an npz file by name, of at most `limit` bytes together."""
    members = _directory(memoryview(data), source)
    arrays: dict[str, NDArray[Any]] = {}
    for key in wanted:
        member = members.get(f"{key}.npy")
        if member is None:
            raise DataError(
                f"{source}: has no array {key!r}; it holds {', '.join(sorted(members)) or 'nothing'}"
            )
        limit -= member.size
        if limit < 0:
            raise DataError(f"{source}: array {key!r} declares {member.size:,} bytes, more than may be read")
        arrays[key] = parse_npy(_contents(memoryview(data), member, source), f"{source}: array {key!r}")
    return arrays


def parse_npy(data: bytes, source: str) -> NDArray[Any]:
    """The array of an npy file (format 1.0 or 2.0) of little-endian numbers."""
    if data[:6] != b"\x93NUMPY" or data[6:8] not in (b"\x01\x00", b"\x02\x00"):
        raise DataError(f"{source}: is not an npy file of format 1.0 or 2.0 (starts with {data[:8].hex()})")
    width = 2 * data[6]
    start = 8 + width
    stop = start + int.from_bytes(data[8:start], "little")
    match = _NPY_HEADER.fullmatch(data[start:stop]) if start < stop <= len(data) else None
    if match is None:
        raise DataError(
            f"{source}: its npy header is damaged, or describes something other than plain numbers"
        )
    shape = tuple(int(size) for size in match["shape"].split(b",") if size.strip())
    dtype = np.dtype(match["descr"].decode("ascii"))
    if math.prod(shape) * dtype.itemsize != len(data) - stop:
        raise DataError(f"{source}: declares shape {shape} of {dtype}, but {len(data) - stop:,} bytes follow")
    order = "F" if match["fortran"] == b"True" else "C"
    return np.frombuffer(data[stop:], dtype=dtype).reshape(shape, order=order)  # type: ignore[call-overload, no-any-return]


def _directory(data: memoryview, source: str) -> dict[str, _Member]:
    """The members in the zip file's directory, which must be at the end of the file."""
    if len(data) < _END.size:
        raise DataError(f"{source}: {len(data)} bytes are too short for an npz file; fetch it again")
    end_at = len(data) - _END.size
    mark, disk, first_disk, here, entries, size, offset, comment = _END.unpack_from(data, end_at)
    if mark != b"PK\x05\x06" or comment:
        raise DataError(f"{source}: does not end like an npz (zip) file; it is truncated or not an npz file")
    if disk or first_disk or here != entries or entries > MAX_MEMBERS or offset + size != end_at:
        raise DataError(
            f"{source}: the zip directory is damaged ({entries} entries, {size} bytes at {offset})"
        )
    members: dict[str, _Member] = {}
    at = offset
    for _ in range(entries):
        if at + _ENTRY.size > end_at:
            raise DataError(f"{source}: the zip directory is cut short")
        fields = _ENTRY.unpack_from(data, at)
        mark, flags, method, crc, compressed, size = fields[0], fields[3], fields[4], *fields[7:10]
        name_length, extra, note = fields[10:13]
        name_at, at = at + _ENTRY.size, at + _ENTRY.size + name_length + extra + note
        if mark != b"PK\x01\x02" or at > end_at:
            raise DataError(f"{source}: the zip directory is damaged at byte {name_at - _ENTRY.size:,}")
        name = bytes(data[name_at : name_at + name_length]).decode("ascii", "backslashreplace")
        if flags & ~_UTF8_FLAG or method not in (_STORED, _DEFLATED) or name in members:
            raise DataError(f"{source}: member {name!r} is encrypted, oddly compressed or listed twice")
        members[name] = _Member(name, method, crc, compressed, size, offset=fields[16])
    if at != end_at:
        raise DataError(f"{source}: the zip directory is longer than its {entries} entries")
    return members


def _contents(data: memoryview, member: _Member, source: str) -> bytes:
    """The bytes of one member, checked against the declared length and checksum."""
    where = f"{source}: member {member.name!r}"
    start = member.offset + _LOCAL.size
    if start > len(data) or bytes(data[member.offset : member.offset + 4]) != b"PK\x03\x04":
        raise DataError(f"{where}: the zip directory points to the wrong place")
    name_length, extra = _LOCAL.unpack_from(data, member.offset)[-2:]
    start += name_length + extra
    packed = data[start : start + member.compressed]
    if len(packed) != member.compressed:
        raise DataError(f"{where}: runs past the end of the file (truncated)")
    contents = bytes(packed) if member.method == _STORED else inflate(packed, member.size, where, raw=True)
    if len(contents) != member.size:
        raise DataError(f"{where}: has {len(contents):,} bytes where {member.size:,} are declared")
    if zlib.crc32(contents) != member.crc:
        raise DataError(f"{where}: its checksum (CRC-32) is wrong; fetch the file again")
    return contents
