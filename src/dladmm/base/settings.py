"""Numbers and switches of a settings dataclass, checked and brought to Python's own types."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from dladmm.base.errors import InputError

_KINDS: dict[type, tuple[Any, ...]] = {int: (Integral,), float: (Real,), bool: (bool, np.bool_)}


def plain(
    settings: Any,
    name: str,
    kind: type,
    allowed: str,
    fits: Callable[[Any], bool] = lambda value: True,
    *,
    optional: bool = False,
) -> None:
    """Replace a field by itself as ``kind``; numpy's numbers are welcome, a bool is no number, text is nothing."""
    value: Any = getattr(settings, name)
    if optional and value is None:
        return
    stranger = kind is not bool and isinstance(value, (bool, np.bool_))
    if stranger or not isinstance(value, _KINDS[kind]) or not math.isfinite(value) or not fits(value):
        raise InputError(f"{name} must be {allowed}, got {value!r}.")
    object.__setattr__(settings, name, kind(value))
