"""Fields of files from outside, each checked for its type and its bounds before it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dladmm.base.errors import DataError

MOST = 2**31
"""The largest whole number that a field may hold, unless it says otherwise."""


def whole(name: str, value: Any, low: int = 0, high: int = MOST) -> int:
    """A whole number from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise DataError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")
    return value


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from ``low`` to ``high``."""
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high):
        bounds = "" if math.isinf(low) and math.isinf(high) else f" from {low:g} to {high:g}"
        raise DataError(f"{name} must be a finite number{bounds}, got {shown(value)}")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if type(value) is not bool:
        raise DataError(f"{name} must be true or false, got {shown(value)}")
    return value


def text(name: str, value: Any, among: Sequence[str] | None = None) -> str:
    """A text, one of some where they are given."""
    if type(value) is not str or (among is not None and value not in among):
        allowed = "a text" if among is None else f"one of {', '.join(among)}"
        raise DataError(f"{name} must be {allowed}, got {shown(value)}")
    return value


def items(name: str, value: Any, most: int = 10**7, least: int = 0) -> list[Any]:
    """A list of ``least`` to ``most`` entries."""
    if type(value) is not list or not least <= len(value) <= most:
        raise DataError(f"{name} must be a list of {least} to {most} entries, got {shown(value)}")
    return value


def fields(name: str, value: Any) -> dict[str, Any]:
    """A JSON object."""
    if type(value) is not dict:
        raise DataError(f"{name} must be an object with names, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """The beginning of a value, as it is quoted in a message."""
    if type(value) is int and abs(value) > 10**30:
        return "a whole number of too many digits"
    if type(value) in (list, dict, str) and len(value) > 100:
        return f"a {type(value).__name__} of {len(value):,} entries"
    words = repr(value)
    return words if len(words) <= 100 else words[:100] + " ..."
