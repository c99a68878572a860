"""Checks the fields of a settings dataclass and converts them to int, float or bool."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from dladmm.base.errors import InputError

_KINDS: dict[type, tuple[Any, ...]] = {int: (Integral,), float: (Real,), bool: (bool, np.bool_)}


def check_setting(
    settings: Any,
    name: str,
    kind: type,
    allowed: str,
    fits: Callable[[Any], bool] = lambda value: True,
    *,
    optional: bool = False,
) -> None:
    """Convert the field ``name`` to ``kind`` in place, or raise :class:`InputError`.

    NumPy scalars are accepted. Bools are rejected where a number is expected, strings are always rejected. ``fits`` is
    a further condition, ``allowed`` describes the allowed values in the message, ``optional`` lets None pass.
    """
    value: Any = getattr(settings, name)
    if optional and value is None:
        return
    unexpected_bool = kind is not bool and isinstance(value, (bool, np.bool_))
    if unexpected_bool or not isinstance(value, _KINDS[kind]) or not math.isfinite(value) or not fits(value):
        raise InputError(f"{name} must be {allowed}, got {value!r}.")
    object.__setattr__(settings, name, kind(value))
