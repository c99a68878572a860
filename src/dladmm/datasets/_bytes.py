"""Reads files that may be damaged or malicious, with bounded memory."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from dladmm.base.errors import DataError


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file; raises DataError if it is longer than `limit` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file") from error
    if len(data) > limit:
        raise DataError(f"{path}: longer than the {limit:,} bytes this file may have; fetch it again")
    return data


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in blocks."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file") from error


def inflate(data: bytes | memoryview, limit: int, source: str, *, raw: bool = False) -> bytes:
    """Decompress gzip (or, with `raw`, bare deflate as in a zip file) to at most `limit` bytes.

    The stream must end exactly where the data ends. zlib stops after limit + 1 bytes of output, so a decompression bomb
    costs no more memory than a valid file.
    """
    stream = zlib.decompressobj(wbits=-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 16)
    try:
        result = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise DataError(
            f"{source}: the compressed data are damaged ({error}); fetch the file again"
        ) from error
    if len(result) > limit:
        raise DataError(
            f"{source}: decompresses to more than the allowed {limit:,} bytes; fetch the file again"
        )
    if not stream.eof:
        raise DataError(f"{source}: the compressed data end too early (truncated); fetch the file again")
    if stream.unused_data:
        raise DataError(
            f"{source}: {len(stream.unused_data):,} bytes follow the compressed data; fetch it again"
        )
    return result
