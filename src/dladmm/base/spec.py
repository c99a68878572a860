"""Checked settings, and names and dictionaries for objects chosen by name: activations, losses, penalties.

A *spec* is what such an object looks like in a JSON file: ``{"name": "leaky_relu", "slope": 0.1}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.fields import shown

LARGEST = 2**63
"""No integer so large is a setting: floats and torch could not hold it."""

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
    if unexpected_bool or not isinstance(value, _KINDS[kind]) or not _resolved(value) or not fits(value):
        raise InputError(f"{name} must be {allowed}, got {shown(value)}.")
    object.__setattr__(settings, name, kind(value))


def _resolved(value: Any) -> bool:
    """Whether a number is finite, and no integer beyond what a float or torch can hold."""
    return abs(int(value)) < LARGEST if isinstance(value, Integral) else math.isfinite(value)


class Named:
    """A frozen dataclass with a name, whose fields are its parameters."""

    name: ClassVar[str]

    def to_spec(self) -> dict[str, Any]:
        """The name and the parameters, ready for JSON."""
        return {"name": self.name} | {field: getattr(self, field) for field in parameters(type(self))}


T = TypeVar("T", bound=Named)


def parameters(cls: type[Named]) -> list[str]:
    """The names of the parameters of a class of named objects."""
    return [field.name for field in fields(cls)]  # type: ignore[arg-type]


def from_spec(kind: str, known: Mapping[str, type[T]], base: type[Named], spec: object) -> T:
    """The object described by ``spec``: a name, a dictionary with a name, or the object itself."""
    if isinstance(spec, base):
        return cast(T, spec)
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise InputTypeError(
            f"{kind} must be a name, a dictionary with a 'name', or a dladmm {base.__name__}; got {spec!r}"
        )
    arguments = dict(spec)
    name = arguments.pop("name")
    if name not in known:
        raise InputError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")
    allowed = parameters(known[name])
    for argument in arguments:
        if argument not in allowed:
            raise InputError(
                f"{kind} {name!r} has no parameter {argument!r}; allowed: {', '.join(allowed) or 'none'}"
            )
    return known[name](**arguments)


def given_only(spec: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """A spec without the parameters that are at their defaults, as files had it before there were such parameters."""
    kept = {name: value for name, value in spec.items() if name not in defaults or value != defaults[name]}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def number(argument: str, value: object, *, low: float = -float("inf"), strict: bool = False) -> float:
    """``value`` as a finite float >= low (> low if strict); raises an error that names the argument otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputTypeError(f"{argument} must be a number; got {shown(value)}")
    result = float(value) if abs(value) < LARGEST or isinstance(value, float) else math.inf
    if not abs(result) < float("inf") or result < low or (strict and result == low):
        bound = "" if low == -float("inf") else f" {'>' if strict else '>='} {low:g}"
        raise InputError(f"{argument} must be a finite number{bound}; got {shown(value)}")
    return result


def plain_values(value: Any, otherwise: Callable[[Any], str] = str) -> Any:
    """The same as JSON can hold it: what it cannot, and numbers that are not finite, by ``otherwise``."""
    if isinstance(value, dict):
        return {str(key): plain_values(item, otherwise) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(item, otherwise) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else otherwise(value)


def is_several(value: Any) -> bool:
    """Whether something can be iterated over; an array of no dimensions says so and cannot."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0
