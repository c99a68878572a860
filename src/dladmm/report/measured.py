"""What metrics.json says of the finished network, checked: the file is untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dladmm.base.errors import InputError

LARGEST_NUMBER = 1e200
"""Larger values are treated as gaps, like infinity, so that no mean, square or axis overflows."""

MOST_CLASSES, MOST_BINS = 100, 100
"""Rows of a confusion matrix, and of a table of predicted against true numbers, at most."""

FIGURES = ("accuracy", "balanced_accuracy", "most_frequent_class", "log_loss", "auc", "r2", "mae", "rmse")
BIN = ("rows", "predicted", "true")


def checked_standing(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """The network beside a constant answer and a linear model; empty if there is none."""
    if not found:
        return {}
    texts = all(isinstance(found.get(key), str) for key in ("measure", "rows"))
    figures = [value for key in ("network", "constant", "linear") if (value := found.get(key)) is not None]
    numbers = all(map(_is_number, figures))
    said = found.get("warning") is None or isinstance(found["warning"], str)
    if not (texts and numbers and said and "network" in found and "constant" in found):
        raise InputError(f"{path}: 'standing' does not hold what a run writes there.")
    return found


def checked_tested(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """Measures of the test rows, as :func:`dladmm.cli.measures.of_test_rows` writes them; empty if there are none."""
    if not found:
        return {}
    figures = all(found.get(name) is None or _is_number(found[name]) for name in FIGURES)
    counted = _is_count(found.get("n_rows"))
    if not (counted and figures and _is_confusion(found) and _is_bins(found.get("predicted_against_true"))):
        raise InputError(f"{path}: 'tested' does not hold what a run writes there.")
    return found


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_confusion(found: Mapping[str, Any]) -> bool:
    """Whether there is no confusion matrix, or a square one with as many rows as classes are named."""
    classes, confusion = found.get("classes"), found.get("confusion")
    if classes is None and confusion is None:
        return True
    if not (isinstance(classes, list) and isinstance(confusion, list)):
        return False
    n = len(classes)
    square = all(isinstance(row, list) and len(row) == n and all(map(_is_count, row)) for row in confusion)
    named = all(isinstance(name, str) for name in classes)
    return 0 < n <= MOST_CLASSES and len(confusion) == n and square and named


def _is_bins(found: Any) -> bool:
    return found is None or (
        isinstance(found, list)
        and len(found) <= MOST_BINS
        and all(isinstance(each, dict) and all(_is_number(each.get(k)) for k in BIN) for each in found)
    )
