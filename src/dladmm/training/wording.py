"""What is said of data that hold no numbers: what came, and what to do about it."""

from __future__ import annotations

from typing import Any

import numpy as np

LOOKED_AT = 1000
"""Entries of an array of objects that are looked at for text."""


def no_numbers(name: str, array: np.ndarray[Any, Any]) -> str:
    """The message for an array whose dtype is none of numbers; ``name`` is the argument's."""
    if array.dtype.kind == "O" and array.ndim == 0:
        given = array.item()
        if given is not None:
            return f"{name} is a {type(given).__name__}, not an array of numbers."
        return "y is missing: give one entry for each row of X." if name == "y" else f"{name} is missing."
    few = array.ravel()[:LOOKED_AT].tolist() if array.dtype.kind == "O" else []
    text = array.dtype.kind in "US" or any(isinstance(entry, str) for entry in few)
    if few and not text:
        return f"{name} has dtype object; give it the type of its numbers, as {name}.astype(float)."
    if not text or name[:1] not in "Xy":
        return f"{name} must hold numbers, got dtype {array.dtype}."
    if name.startswith("y"):
        return (
            f"{name} holds text (dtype {array.dtype}). A regression needs numbers; classes must be the numbers 0, 1, "
            "2, ...: np.unique(y, return_inverse=True)[1] makes them, a data set or loader returns them, and "
            "MLPClassifier and ModuleClassifier take labels of any type."
        )
    return (
        f"{name} holds text (dtype {array.dtype}), but a network needs numbers: dladmm.tables.TableEncoder turns "
        "columns of text into numbers, and MLPClassifier and MLPRegressor do so themselves with data frames."
    )
