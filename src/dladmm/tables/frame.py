""":class:`Frame`: the columns of a table, each numbers or text, with gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError, InputError
from dladmm.tables.content import has_hidden, printable

Array = NDArray[Any]

GAPS = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "nil", "."})
"""What stands for a missing value, in small letters."""

FEW_LEVELS = 20
"""Distinct numbers up to which a column that also holds other words is one of categories."""

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")


@dataclass(frozen=True)
class Frame:
    """The columns of a table by name, in order.

    Attributes
    ----------
    columns : dict of str to array of shape (n_rows,)
        Numbers as float64 with NaN for a gap, text as object with None for a gap.
    n_rows : int
    notes : tuple of str
        What was guessed or left out while it was read, in sentences without a full stop.
    source : str
        What the table is called in messages.
    """

    columns: dict[str, Array]
    n_rows: int
    notes: tuple[str, ...] = ()
    source: str = "the table"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def is_text(self, name: str) -> bool:
        """Whether a column holds text."""
        return self.columns[name].dtype == object

    def gaps(self, name: str) -> Array:
        """Where a column has no value, shape (n_rows,)."""
        column = self.columns[name]
        found: Any = column == None if column.dtype == object else np.isnan(column)  # noqa: E711 (by entry)
        return np.asarray(found, dtype=bool)

    def distinct(self, name: str) -> int:
        """How many distinct values a column has, gaps not counted."""
        return len(set(self.columns[name][~self.gaps(name)].tolist()))

    def has_fractions(self, name: str) -> bool:
        """Whether a column holds numbers that are not whole."""
        if self.is_text(name):
            return False
        numbers = self.columns[name][~self.gaps(name)]
        return bool((numbers != np.rint(numbers)).any())

    def take(self, rows: Any) -> Frame:
        """The rows with these indices, or where a mask is true."""
        chosen = np.arange(self.n_rows)[rows]
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Frame(columns, len(chosen), self.notes, self.source)

    def without(self, names: Iterable[str], option: str = "drop") -> Frame:
        """The table without these columns, which must be there."""
        dropped = set(self.known(list(names), option))
        columns = {name: column for name, column in self.columns.items() if name not in dropped}
        return Frame(columns, self.n_rows, self.notes, self.source)

    def known(self, names: Sequence[str], option: str) -> Sequence[str]:
        """The names, if all are columns; raises InputError."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            raise InputError(
                f"{option} {', '.join(map(repr, absent[:5]))} is not a column of {self.source}; its columns are "
                f"{listed(self.names)}."
            )
        return names

    def values_of(self, name: str) -> Array:
        """A column without gaps as text, as whole numbers (int64) where all are, or as float64; for targets."""
        column = self.columns[name]
        if self.is_text(name):
            return column.astype(str)
        whole = not self.has_fractions(name) and bool((np.abs(column) < 2**53).all())
        return column.astype(np.int64) if whole else column


def listed(names: Sequence[str], most: int = 30) -> str:
    """Names with commas, the first ``most`` of them."""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(printable, names[:most])) + more


def typed(name: str, cells: Sequence[str], source: str, *, comma: bool = False, first_row: int = 2) -> Array:
    """A column of text cells as numbers if all that is not a gap is a number, else as text.

    Raises DataError for a column of numbers in which some cells are words: a slip of the keyboard would otherwise turn
    a measurement into thousands of categories. ``comma`` reads 3,14 as a number.
    """
    quick = _all_numbers(cells)
    if quick is not None:
        return quick
    stripped = [cell.strip() for cell in cells]
    values = [None if cell.lower() in GAPS else cell for cell in stripped]
    numbers, wrong = _numbers(values, comma)
    if not wrong:
        return numbers
    kinds = set(numbers[np.isfinite(numbers)].tolist())
    filled = sum(value is not None for value in values)
    if len(kinds) > FEW_LEVELS and 2 * len(wrong) < filled:
        row = wrong[0]
        raise DataError(
            f"{source}, row {row + first_row}, column {name!r}: {printable(str(values[row]))!r} is not a finite "
            f"number, but {filled - len(wrong)} of {filled} cells are. Correct it, leave it blank, or leave "
            "the column out (--drop)."
        )
    clean: dict[str | None, str | None] = {
        value: printable(value) for value in set(values) if value is not None and has_hidden(value)
    }
    column = np.empty(len(values), dtype=object)
    column[:] = [clean.get(value, value) for value in values] if clean else values
    return column


def _all_numbers(cells: Sequence[str]) -> Array | None:
    """The cells as float64 if every one is a finite number or a gap, else None."""
    try:
        numbers = np.array(
            [float(cell) if cell else np.nan for cell in cells] if "" in cells else list(map(float, cells))
        )
    except ValueError:
        return None
    odd = ~np.isfinite(numbers)
    if odd.any() and any(cells[place].strip().lower() not in GAPS for place in np.flatnonzero(odd).tolist()):
        return None
    return None if any("_" in cell for cell in cells) else numbers


def _numbers(values: Sequence[str | None], comma: bool) -> tuple[Array, list[int]]:
    """The values as float64, NaN where there is none, and the places of those that are no finite numbers."""
    numbers, wrong = np.full(len(values), np.nan), []
    for place, value in enumerate(values):
        if value is None:
            continue
        text = value.replace(",", ".") if comma and _DECIMAL_COMMA.fullmatch(value) else value
        try:
            number = float(text)
        except ValueError:
            number = np.inf
        if number - number != 0 or "_" in text:  # infinite; Python reads 1_000 as a number, a table does not
            wrong.append(place)
        else:
            numbers[place] = number
    return numbers, wrong


def frame_of(X: Any, categorical: Iterable[str] | None = None, source: str = "X") -> Frame:
    """A data frame of pandas, polars or pyarrow as a :class:`Frame`.

    Parameters
    ----------
    X : data frame with ``columns`` and ``X[name]``
    categorical : names, optional
        Columns that are categories whatever they hold; None takes those that hold text or categories.
    source : str
        What the table is called in messages.
    """
    names = [str(label) for label in X.columns]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InputError(f"{source} has two columns named {twice[0]!r}; rename one of them.")
    columns = {
        name: column_of(X[label], name, source, None if categorical is None else name in set(categorical))
        for name, label in zip(names, X.columns, strict=True)
    }
    return Frame(columns, len(X), source=source)


def is_text_column(column: Any) -> bool:
    """Whether a column of a data frame holds text or categories, by its type or (object) by its values."""
    words = str(getattr(column, "dtype", "")).lower()
    if words.startswith(
        ("category", "categorical", "str", "boolean", "utf8", "enum", "dictionary", "large_string")
    ):
        return True
    return words == "object" and any(
        isinstance(value, (str, bool)) for value in np.asarray(column, dtype=object)
    )


def column_of(column: Any, name: str, source: str, categorical: bool | None) -> Array:
    """One column of a data frame as of a :class:`Frame`; ``categorical`` None decides by its type."""
    text = is_text_column(column) if categorical is None else categorical
    if not text and isinstance(getattr(column, "dtype", None), np.dtype) and column.dtype.kind in "biuf":
        return _finite(np.array(column, dtype=np.float64), name, source)
    values = np.asarray(column, dtype=object)
    missing = np.array([_is_gap(value) for value in values], dtype=bool)
    if text:
        found = np.empty(len(values), dtype=object)
        found[:] = [None if gap else level(value) for gap, value in zip(missing, values, strict=True)]
        return found
    numbers = np.full(len(values), np.nan)
    try:
        numbers[~missing] = values[~missing].astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {name!r} of {source} is neither numbers nor categories ({error}); convert it, or leave it out."
        ) from error
    return _finite(numbers, name, source)


def _finite(numbers: Array, name: str, source: str) -> Array:
    if np.isinf(numbers).any():
        raise InputError(f"column {name!r} of {source} contains infinity; replace it, or set it to NaN.")
    return numbers


def _is_gap(value: Any) -> bool:
    """None, NaN, and what pandas writes for them."""
    if value is None or (isinstance(value, (float, np.floating)) and value != value):
        return True
    return str(value) in ("<NA>", "NaT")


def level(value: Any) -> str:
    """A category as text: 1, 1.0 and "1" are the same one."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    return str(value).strip()
