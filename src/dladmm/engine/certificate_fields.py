"""The fields of a certificate in a file, each of the type that the class says."""

from __future__ import annotations

import math
from dataclasses import Field
from typing import Any

from dladmm.base.errors import DataError
from dladmm.base.fields import fields, flag, items, real, text, whole


def checked(name: str, field: Field[Any], value: Any) -> Any:
    """The value of a field as ``to_dict`` wrote it; numbers that JSON could not hold come back as NaN."""
    kind = str(field.type)
    if value is None:
        if kind == "float":
            return math.nan
        if kind.endswith("| None"):
            return None
        raise DataError(f"{name} of the certificate is missing")
    kind = kind.removesuffix(" | None")
    if kind == "bool":
        return flag(name, value)
    if kind == "int":
        return whole(name, value)
    if kind == "float":
        return real(name, value)
    if kind == "str":
        return text(name, value)
    if kind == "tuple[int, ...]":
        return tuple(whole(name, item) for item in items(name, value))
    wanted = {"Recomputed": {"reported", "recomputed"}, "Curvature": {"smallest", "largest"}}.get(kind)
    if wanted is None or set(fields(name, value)) != wanted:
        raise DataError(f"{name} of the certificate has other fields than it should")
    return {key: math.nan if item is None else real(f"{name}.{key}", item) for key, item in value.items()}
