"""Parameters that estimators share are described once: the others' docstrings are completed from there."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_SECTION = re.compile(r"Parameters\n-+\n(?P<entries>.*?)(?=\n\n\w[^\n]*\n-+\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


def with_parameters_of(other: type) -> Callable[[Class], Class]:
    """Class decorator: add to the docstring what ``other`` says of parameters that the class has and does not name."""

    def completed(cls: Class) -> Class:
        if cls.__doc__ is None or other.__doc__ is None:  # python -OO
            return cls
        text = cleandoc(cls.__doc__)
        own, known = (_entries(cleandoc(each)) for each in (text, other.__doc__))
        named = {name for entry in own for name in _names(entry)}
        names: Any = cls._get_param_names()  # type: ignore[attr-defined]
        missing = [e for e in known if not named & set(_names(e)) and set(_names(e)) <= set(names)]
        cls.__doc__ = _SECTION.sub(lambda found: "\n".join([found[0].rstrip(), *missing]), text, count=1)
        return cls

    return completed


def _entries(text: str) -> list[str]:
    """The entries of the section of parameters, each with its indented lines."""
    found = _SECTION.search(text)
    return (
        [] if found is None else [entry.rstrip() for entry in _ENTRY.split(found["entries"]) if entry.strip()]
    )


def _names(entry: str) -> list[str]:
    """The names that an entry describes, several of them with commas between."""
    return [name.strip() for name in entry.split("\n", 1)[0].split(" : ")[0].split(",")]
