"""The file format of checkpoints and models: tensors and one JSON document in one file, without pickle.

It is a safetensors file that any safetensors reader opens: eight bytes with the length of the header, the header
(JSON: name, dtype, shape and offsets of every tensor), then the tensors' bytes. The header's ``__metadata__`` has

    ``dladmm``    {"format": "dladmm", "version": 1, "kind": ..., "library": ..., "meta": {...}} as JSON text
    ``sha256``    of the whole file, with these 64 digits set to zero

so that any changed bit is detected. It is read and written here, not by the safetensors library, because that library
maps files into memory (a file truncated meanwhile kills the process), and resuming a run must not depend on it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from dladmm._version import __version__
from dladmm.base.atomic import NotFlushed, replacing
from dladmm.base.errors import DataError, InputError

FORMAT, VERSION = "dladmm", 1
MAX_HEADER = 100_000_000  # the limit of the safetensors format
SMALL_HEADER = 1_000_000  # a larger one is parsed only when the file has its checksum
MAX_AXES = 64  # torch's own limit; more take it for ever
KINDS = {
    "training": "the state of a training run",
    "model": "a trained model",
    "certificate": "a certificate",
}

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_NO_DIGEST = "0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')


def save(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write tensors (from any device) and ``meta`` (what JSON can hold) to ``path``, atomically."""
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    path = Path(path)
    placed = _in_file_order(tensors)
    head = _head(placed, kind, meta)
    digest = hashlib.sha256(head)
    for tensor in placed.values():
        digest.update(_bytes(tensor))
    head = head.replace(_quoted(_NO_DIGEST), _quoted(digest.hexdigest()), 1)
    try:
        with replacing(path) as file:
            file.write(head)
            for tensor in placed.values():
                file.write(_bytes(tensor))
    except NotFlushed as error:
        raise DataError(
            f"{path} was written, but its folder could not be flushed to disk: {_reason(error)}. After a power cut the "
            "file that was there before may be back."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise DataError(
            f"cannot write {path}: {_reason(error)}. Nothing was changed there; check the folder, its permissions "
            "and the free space."
        ) from error


def load(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and ``meta`` of a file that :func:`save` wrote.

    Raises :class:`DataError` when the file is incomplete, damaged, or of another kind.
    """
    path = Path(path)
    try:
        with _opened(path) as file:
            return _read(file, kind, os.fstat(file.fileno()).st_size)
    except _Refused as refused:
        raise DataError(f"{path} {refused}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {_reason(error)}.") from error


class _Refused(Exception):
    """Why a file is rejected; the message is printed after the file's path."""


# Writing -------------------------------------------------------------------------------------------------------


def _in_file_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, widest dtype first, so that each is aligned in the file as the format recommends."""
    for name, tensor in tensors.items():
        if name == "__metadata__" or tensor.dtype not in _CODES or tensor.is_sparse:
            raise InputError(
                f"tensor {name!r} of {tensor.dtype} cannot be saved; allowed: dense, real tensors."
            )
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    return {name: tensors[name].detach().cpu().contiguous() for name in names}


def _head(placed: Mapping[str, Tensor], kind: str, meta: Mapping[str, Any]) -> bytes:
    document = {"format": FORMAT, "version": VERSION, "kind": kind, "library": __version__, "meta": meta}
    text = check_meta(document)
    header: dict[str, Any] = {"__metadata__": {"dladmm": text, "sha256": _NO_DIGEST}}
    place = 0
    for name, tensor in placed.items():
        end = place + tensor.nbytes
        code = _CODES[tensor.dtype]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    raw = json.dumps(header, separators=(",", ":")).encode("ascii")
    raw += b" " * (-len(raw) % 8)
    if len(raw) > MAX_HEADER:
        raise InputError(f"meta takes {len(raw):,} bytes as JSON; a file can hold {MAX_HEADER:,}.")
    return struct.pack("<Q", len(raw)) + raw


def check_meta(meta: Mapping[str, Any], what: str = "meta") -> str:
    """``meta`` as JSON text; raises InputError, which names ``what``, for values that JSON cannot hold."""
    try:
        return json.dumps(meta, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} must be what JSON can hold: {error}.") from error


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _quoted(digest: str) -> bytes:
    """The checksum as written in the header; quotes in JSON strings are escaped, so nothing else can match it."""
    return b'"sha256":"' + digest.encode("ascii") + b'"'


# Reading -------------------------------------------------------------------------------------------------------


def _opened(path: Path) -> BinaryIO:
    """The open file; only regular files are accepted, because opening a pipe would block."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise _Refused("is a folder or a device, not a file.")
    return path.open("rb")


def _read(file: BinaryIO, kind: str, size: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    length, raw = _raw_header(file, size)
    if len(raw) > SMALL_HEADER:
        _check_whole(file, length, raw)
    header = _parsed(raw, "header")
    metadata = header.pop("__metadata__", None)
    document = _document(metadata)
    found = _DIGEST.search(raw)
    if found is None:
        raise _Refused("is damaged: it has no checksum. Use an older copy.")
    places = _places(header)
    expected = 8 + len(raw) + max((end for _, _, _, end in places), default=0)
    if size != expected:
        raise _Refused(f"is cut off or damaged: it has {size:,} bytes and should have {expected:,}.")
    digest = hashlib.sha256(length + raw.replace(found[0], _quoted(_NO_DIGEST), 1))
    tensors = {name: _tensor(file, dtype, shape, digest) for name, dtype, shape, _ in places}
    if digest.hexdigest().encode("ascii") != found[1]:
        raise _Refused("is damaged: its contents do not have the checksum it states. Use an older copy.")
    if document.get("kind") != kind:
        holds = KINDS.get(str(document.get("kind")), "something unknown")
        raise _Refused(f"holds {holds}, not {KINDS[kind]}.")
    meta = document.get("meta")
    if not isinstance(meta, dict):
        raise _Refused("is damaged: its JSON document has no meta.")
    return tensors, meta


def _check_whole(file: BinaryIO, length: bytes, raw: bytes) -> None:
    """Compare the checksum before a large header is parsed, which takes some twenty times its size of memory."""
    found = _DIGEST.search(raw)
    digest = hashlib.sha256(length + _DIGEST.sub(_quoted(_NO_DIGEST), raw, count=1))
    while part := file.read(1 << 20):
        digest.update(part)
    if found is None or digest.hexdigest().encode("ascii") != found[1]:
        raise _Refused("is not a dladmm file, or damaged: its contents do not have the checksum it states.")
    file.seek(len(length) + len(raw))


def _raw_header(file: BinaryIO, size: int) -> tuple[bytes, bytes]:
    length = file.read(8)
    if len(length) < 8:
        raise _Refused(f"is not a dladmm file, or cut off: it has {size} bytes.")
    stated = struct.unpack("<Q", length)[0]
    if not 2 <= stated <= min(size - 8, MAX_HEADER):
        raise _Refused(
            f"is not a dladmm file, or cut off or damaged: it has {size:,} bytes, its header would take {stated:,}."
        )
    raw = file.read(stated)
    if len(raw) < stated:
        raise _Refused("is cut off: it became shorter while it was read.")
    return length, raw


def _parsed(text: bytes | str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _Refused(f"is not a dladmm file, or damaged: its {what} is not a JSON object.")
    return value


def _document(metadata: Any) -> dict[str, Any]:
    text = metadata.get("dladmm") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise _Refused("is not a dladmm file: it is another kind of safetensors file, or damaged.")
    document = _parsed(text, "document")
    version = document.get("version")
    if document.get("format") != FORMAT or isinstance(version, bool) or not isinstance(version, int):
        raise _Refused("is not a dladmm file, or damaged: it does not state the format and its version.")
    if version > VERSION:
        raise _Refused(
            f"has format version {version}, written by dladmm {document.get('library')}; this is dladmm "
            f"{__version__}, which reads versions up to {VERSION}. Upgrade dladmm."
        )
    if version < 1:
        raise _Refused(f"is damaged: there is no format version {version}.")
    return document


def _places(header: dict[str, Any]) -> list[tuple[str, torch.dtype, list[int], int]]:
    """Name, dtype, shape and end of every tensor, in file order and without gaps."""
    places, place = [], 0
    try:
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            if len(shape) > MAX_AXES:
                raise ValueError(name)
            whole = all(type(n) is int and 0 <= n < 2**62 for n in (*shape, begin, end))
            if not whole or begin != place or end - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(name)
            places.append((name, dtype, shape, end))
            place = end
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _Refused("is damaged: its table of tensors is inconsistent.") from None
    return places


def _tensor(file: BinaryIO, dtype: torch.dtype, shape: list[int], digest: Any) -> Tensor:
    try:
        tensor = torch.empty(shape, dtype=dtype)
    except (RuntimeError, MemoryError, TypeError, ValueError) as error:
        raise _Refused(f"holds a tensor of shape {shape} that memory cannot hold.") from error
    target = _bytes(tensor)
    if file.readinto(target) != len(target):  # type: ignore[attr-defined]
        raise _Refused("is cut off: it became shorter while it was read.")
    digest.update(target)
    return tensor


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
