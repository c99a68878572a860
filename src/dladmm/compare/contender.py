"""A method of a comparison with its own settings, as people write it: ``adam``, ``adam:batch=256:lr=0.002``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dladmm import baselines
from dladmm.api.choosing import CROSS_FITTED
from dladmm.base.errors import InputError
from dladmm.baselines.optimizers import WITHOUT_BATCHES

OWN = ("dladmm", "accelerated", "streaming", CROSS_FITTED)
METHODS = (*OWN, *baselines.METHODS)
"""dlADMM in convergent, accelerated and streaming mode and with cross-fitted copies, and the baselines."""

USUAL = (*METHODS, "adam:batch=32")
"""What is compared where no methods are named; mini-batch Adam is what most people would use instead."""

FEWEST_PASSES, MOST_PASSES, ROWS_SEEN = 10, 100, 256_000
"""Passes of methods with mini-batches where none are given: as many as make so many rows, within these bounds."""


def passes_for(n_rows: int) -> int:
    """The same for every method with mini-batches; small tables need many passes for enough steps."""
    return min(MOST_PASSES, max(FEWEST_PASSES, -(-ROWS_SEEN // max(n_rows, 1))))


def _flag(text: str) -> bool:
    return {"yes": True, "no": False}[text]


_SETTINGS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "batch": ("batch_size", int, "a whole number"),
    "lr": ("lr", float, "a number"),
    "passes": ("max_iter", int, "a whole number"),
    "schedule": ("schedule", str, "linear"),
    "scaled": ("scale_inputs", _flag, "yes or no"),
    "dropout": ("dropout", float, "a number"),
    "decay": ("weight_decay", float, "a number"),
    "objective": ("objective", str, "accelerated"),
    "rows": ("normalise_rows", _flag, "yes or no"),
}
"""What may follow a method's name: the option it stands for, how it is read, and what is allowed."""

_OF_BASELINES = {"weight_decay": "decay", "objective": "objective", "normalise_rows": "rows"}
"""Settings that dlADMM itself has not."""

_FORM = "a method is written as adam or adam:batch=256:lr=0.002"


@dataclass(frozen=True)
class Contender:
    """``label`` is what was written, ``method`` its name, ``options`` what was set."""

    label: str
    method: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``name:setting=value:...``; raises InputError for what is not understood."""
        method, *parts = (part.strip() for part in text.split(":"))
        if method not in METHODS:
            raise InputError(f"unknown method {method}; known are {', '.join(METHODS)}.")
        options: dict[str, Any] = {}
        for part in parts:
            name, equals, value = part.partition("=")
            if name not in _SETTINGS or not equals:
                raise InputError(f"{_FORM}; settings are {', '.join(_SETTINGS)}, got {part!r} in {text!r}.")
            option, read, allowed = _SETTINGS[name]
            try:
                options[option] = read(value)
            except (ValueError, KeyError) as error:
                raise InputError(f"{name} of {method} must be {allowed}, got {value!r}.") from error
        if "batch_size" in options and (method in WITHOUT_BATCHES or method in OWN[:2]):
            raise InputError(f"{method} sees all samples in every iteration; leave batch= out.")
        others = [_OF_BASELINES[option] for option in options if option in _OF_BASELINES]
        if others and method in OWN:
            raise InputError(f"{', '.join(others)} is for baselines; leave it out of {text!r}.")
        foreign = sorted(set(options) - {"batch_size", "max_iter"}) if method == CROSS_FITTED else []
        if foreign:
            raise InputError(
                f"{method} has the settings batch and passes alone; leave the others of {text!r} out."
            )
        return cls(":".join([method, *parts]), method, options)

    @property
    def folder(self) -> str:
        """The label as part of a folder's name."""
        return self.label.replace(":", "-").replace("=", "-")

    @property
    def counts_passes(self) -> bool:
        """Whether an iteration is one pass over mini-batches."""
        return self.method in ("streaming", CROSS_FITTED) or "batch_size" in self.options
