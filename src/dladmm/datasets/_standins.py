"""The inert objects that stand in for what a Planetoid pickle names, and the arrays made from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Refused(Exception):
    """Something the published files never do; the reader turns it into a DataError with the place."""


class Name(Enum):
    """The only names a file may mention. They stand for themselves: nothing is imported or called."""

    DTYPE = ("numpy", "dtype")
    NDARRAY = ("numpy", "ndarray")
    RECONSTRUCT = ("numpy.core.multiarray", "_reconstruct")
    CSR_MATRIX = ("scipy.sparse.csr", "csr_matrix")
    DEFAULTDICT = ("collections", "defaultdict")
    LIST = ("__builtin__", "list")


@dataclass
class SparseRows:
    """Stands in for scipy's csr_matrix; only ever a bag of attributes."""

    state: dict[bytes, Any] = field(default_factory=dict)


@dataclass
class Dtype:
    """Stands in for numpy's dtype: a code such as i4, and a byte order."""

    code: str
    order: str = ""


@dataclass
class Array:
    """Stands in for numpy's ndarray until its state arrives."""

    value: NDArray[Any] | None = None


DTYPES = {"i4", "i8", "f4", "f8"}


def short_text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) and len(value) <= 8 else ""


def array_of(shape: Any, dtype: Any, fortran: Any, raw: Any) -> NDArray[Any]:
    """The array a pickle describes, once its type, shape and bytes agree."""
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
    """The value itself, with arrays in place of their stand-ins."""
    if isinstance(value, SparseRows):
        return SparseRows({key: finished(item) for key, item in value.state.items() if not _nested(item)})
    if isinstance(value, Array):
        if value.value is None:
            raise Refused("an array without content")
        return value.value
    return value


def _nested(item: Any) -> bool:
    return isinstance(item, (SparseRows, dict, list))
