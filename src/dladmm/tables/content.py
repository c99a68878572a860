"""The text of a file that may be damaged, endless or packed to fill the memory: checked before it is read."""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from pathlib import Path
from typing import BinaryIO

from dladmm.base.errors import DataError
from dladmm.base.table_file import MOST_UNPACKED, SMALL_ARCHIVE, regular_file

MOST_BYTES = 4 * 2**30
"""The longest file that is read as one table, in bytes."""

PIECE = 2**20
_GZIP = b"\x1f\x8b"
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def read_text(path: Path) -> tuple[str, list[str]]:
    """The content of a text file, unpacked if it is gzip, and notes on what was guessed.

    UTF-8 (with or without a mark at the start), UTF-16 with a mark, and else Latin-1, in which every file can be read.
    """
    data = _content(path)
    if b"\x00" in data[:4096] and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is not a text file: it holds zero bytes. Save the table as CSV.")
    try:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return data.decode("utf-16"), []
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        return data.decode("latin-1"), ["the file is not UTF-8 and was read as Latin-1"]


def _content(path: Path) -> bytes:
    size = regular_file(path).st_size
    if size > MOST_BYTES:
        raise DataError(
            f"{path} has {size:,} bytes, more than the {MOST_BYTES:,} that are read as one table; store it as npz, or "
            "train from Python with batches (docs/streaming.md)."
        )
    limit = MOST_BYTES
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            if packed:
                limit = min(MOST_BYTES, max(SMALL_ARCHIVE, MOST_UNPACKED * size))
                with gzip.GzipFile(fileobj=file) as unpacked:
                    data = _bounded(unpacked, limit)
            else:
                data = _bounded(file, limit)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} could not be read: {reason}.") from error
    if len(data) > limit:
        raise DataError(f"{path} unpacks to more than the {limit:,} bytes that a file of its size may hold.")
    return data


def _bounded(file: BinaryIO | gzip.GzipFile, limit: int) -> bytes:
    """The content, read piece by piece and at most one piece beyond ``limit``: read(n) would reserve n bytes."""
    data = bytearray()
    while len(data) <= limit and (piece := file.read(PIECE)):
        data += piece
    return bytes(data)


def printable(text: str) -> str:
    r"""The text with control characters and invisible ones spelled out (``\x1b``): a terminal does not obey it."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def has_hidden(text: str) -> bool:
    """Whether :func:`printable` would change the text."""
    return _HIDDEN.search(text) is not None


def normal(name: str) -> str:
    """A column's name as it is compared and shown: no outer blanks, composed letters, nothing hidden."""
    return printable(unicodedata.normalize("NFC", name.strip()))
