"""Inert placeholders for the classes a Planetoid pickle names, and the arrays built from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Refused(Exception):
    """The file does something the published files never do; the reader converts this into a DataError."""


class Name(Enum):
    """The only names a file may contain. They are markers: nothing is imported or called."""

    DTYPE = ("numpy", "dtype")
    NDARRAY = ("numpy", "ndarray")
    RECONSTRUCT = ("numpy.core.multiarray", "_reconstruct")
    CSR_MATRIX = ("scipy.sparse.csr", "csr_matrix")
    DEFAULTDICT = ("collections", "defaultdict")
    LIST = ("__builtin__", "list")


@dataclass
class SparseRows:
    """Placeholder for scipy's csr_matrix: a dictionary of attributes."""

    state: dict[bytes, Any] = field(default_factory=dict)


@dataclass
class Dtype:
    """Placeholder for numpy's dtype: a code such as i4, and a byte order."""

    code: str
    order: str = ""


@dataclass
class Array:
    """Placeholder for numpy's ndarray until its state is read."""

    value: NDArray[Any] | None = None


DTYPES = {"i4", "i8", "f4", "f8"}


def short_text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) and len(value) <= 8 else ""


def array_of(shape: Any, dtype: Any, fortran: Any, raw: Any) -> NDArray[Any]:
    """The array a pickle describes, after checking that type, shape and bytes are consistent."""
    if not isinstance(dtype, Dtype) or dtype.code not in DTYPES or dtype.order != "<":
        raise Refused("an array of something other than little-endian numbers")
    sizes = (
        isinstance(shape, tuple) and 1 <= len(shape) <= 2 and all(type(n) is int and n >= 0 for n in shape)
    )
    if not sizes or not isinstance(fortran, bool) or not isinstance(raw, bytes):
        raise Refused("an array with a damaged shape")
    kind = np.dtype("<" + dtype.code)
    if math.prod(shape) * kind.itemsize != len(raw):
        raise Refused(f"an array of shape {shape} of {kind} with {len(raw):,} bytes")
    return np.frombuffer(raw, dtype=kind).reshape(shape, order="F" if fortran else "C")


def finished(value: Any) -> Any:
    """The value with arrays in place of their placeholders."""
    if isinstance(value, SparseRows):
        return SparseRows({key: finished(item) for key, item in value.state.items() if not _nested(item)})
    if isinstance(value, Array):
        if value.value is None:
            raise Refused("an array without content")
        return value.value
    return value


def _nested(item: Any) -> bool:
    return isinstance(item, (SparseRows, dict, list))
