""":class:`TableEncoder`: turns columns of numbers and categories with gaps into numbers for a network.

    number      its value, gaps filled by the median; if the training rows had gaps, a second column says where (0 or 1)
    category    one column of 0 and 1 per level, gaps filled by the most frequent level, a column for gaps as above

A level gets a column of its own if it has at least 1 % of the rows, or ten of them, and is among the 50 most frequent;
the others share one. A level that was not seen in training counts as one of those, and is zero in all columns where
there is none. Text that hardly repeats itself (names, identifiers) is left out, and so are columns without values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError
from dladmm.tables.frame import Frame, level, listed

Array = NDArray[Any]

MOST_LEVELS, ENOUGH_ROWS, ENOUGH_SHARE = 50, 10, 0.01
MOST_COLUMNS = 1_000_000
MEDIAN_ENTRIES = 1 << 20
"""Of the columns whose medians are found at once."""
VERSION = 1
OTHER, MISSING = "other", "missing"


@dataclass(frozen=True)
class ColumnCode:
    """How one column becomes numbers: what fills gaps, its levels, whether rare ones share a column (``other``)."""

    name: str
    kind: Literal["number", "category", "left out"]
    fill: float | str | None = None
    levels: tuple[str, ...] = ()
    other: bool = False
    indicator: bool = False

    @property
    def outputs(self) -> list[str]:
        """Names of the columns it becomes."""
        if self.kind == "left out":
            return []
        values = [self.name] if self.kind == "number" else [f"{self.name}={each}" for each in self.levels]
        values += [f"{self.name} ({OTHER})"] if self.other else []
        return [*values, f"{self.name} ({MISSING})"] if self.indicator else values

    def write(self, frame: Frame, out: Array) -> None:
        """Fill ``out`` (n_rows, len(outputs)), which is zero, with the column of the table."""
        gaps = frame.gaps(self.name)
        if self.indicator:
            out[:, -1] = gaps
        if self.kind == "number":
            out[:, 0] = np.where(gaps, float(self.fill or 0.0), _numbers(frame, self.name, gaps))
            return
        places = {each: place for place, each in enumerate(self.levels)}
        rest = len(self.levels) if self.other else -1
        filled = places.get(str(self.fill), rest)
        text = frame.is_text(self.name)
        known: dict[Any, int] = {}
        values = frame.columns[self.name].tolist()
        at = np.empty(len(values), dtype=np.int64)
        for row, (value, gap) in enumerate(zip(values, gaps.tolist(), strict=True)):
            if gap:
                at[row] = filled
            else:
                if value not in known:
                    known[value] = places.get(value if text else level(value), rest)
                at[row] = known[value]
        rows = np.flatnonzero(at >= 0)
        out[rows, at[rows]] = 1


def _numbers(frame: Frame, name: str, gaps: Array) -> Array:
    if not frame.is_text(name):
        return frame.columns[name]
    first = int(np.flatnonzero(~gaps)[0])
    raise DataError(
        f"{frame.source}, row {first + 2}, column {name!r}: {frame.columns[name][first]!r}, but the network was "
        "trained with numbers in this column."
    )


@dataclass(frozen=True)
class TableEncoder:
    """Turns a table into an array of numbers, as learned from the training rows by :meth:`fit`.

    It holds names, fills and levels alone, and is stored as JSON (:meth:`to_dict`) with a run or an estimator.

    Attributes
    ----------
    columns : tuple of ColumnCode
        One per column of the table, in order.
    notes : tuple of str
        What was left out and why, in sentences without a full stop.

    Examples
    --------
    >>> import numpy as np
    >>> from dladmm.tables import Frame, TableEncoder
    >>> colour = np.array(["red", "blue", None, "red"], dtype=object)
    >>> table = Frame({"colour": colour, "size": np.array([1.0, np.nan, 3.0, 5.0])}, 4)
    >>> encoder = TableEncoder.fit(table)
    >>> encoder.outputs
    ['colour=blue', 'colour=red', 'colour (missing)', 'size', 'size (missing)']
    >>> encoder.transform(table)[2]
    array([0., 1., 1., 3., 0.])
    """

    columns: tuple[ColumnCode, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def fit(cls, frame: Frame, keep: Sequence[str] = ()) -> TableEncoder:
        """Learn fills and levels from these rows; categories in ``keep`` are encoded even if they hardly repeat."""
        notes: list[str] = []
        medians = _medians(frame)
        codes = [_learned(frame, name, name in keep, notes, medians) for name in frame.names]
        if not any(code.outputs for code in codes):
            raise DataError(
                f"{frame.source} has no column to learn from: {'; '.join(notes) or 'it is empty'}."
            )
        return cls(tuple(codes), tuple(notes))

    @property
    def names(self) -> list[str]:
        """The columns that a table must have."""
        return [code.name for code in self.columns if code.kind != "left out"]

    @property
    def outputs(self) -> list[str]:
        """Names of the columns of the array."""
        return [name for code in self.columns for name in code.outputs]

    @property
    def plain(self) -> bool:
        """Whether the array is the table itself where that has no gaps."""
        return all(code.kind == "number" and not code.indicator for code in self.columns)

    def transform(self, frame: Frame) -> Array:
        """The table as numbers, shape (n_rows, len(outputs)); further columns are not looked at."""
        absent = [name for name in self.names if name not in frame.columns]
        if absent:
            raise DataError(
                f"{frame.source} lacks the columns {listed(absent)}, which the network was trained with."
            )
        widths = [len(code.outputs) for code in self.columns]
        out = np.zeros((frame.n_rows, sum(widths)))
        start = 0
        for code, width in zip(self.columns, widths, strict=True):
            if width:
                code.write(frame, out[:, start : start + width])
            start += width
        return out

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold; :meth:`from_dict` reads it."""
        standard = {each.name: each.default for each in fields(ColumnCode)}
        codes = [
            {key: value for key, value in asdict(code).items() if value != standard[key]}
            for code in self.columns
        ]
        return {"version": VERSION, "columns": codes}

    @classmethod
    def from_dict(cls, given: Any) -> TableEncoder:
        """The encoder that :meth:`to_dict` described; raises DataError for anything else."""
        if not isinstance(given, Mapping) or given.get("version") != VERSION:
            raise DataError(
                "the description of the columns is damaged, or of a later version; upgrade dladmm."
            )
        columns = given.get("columns")
        if not isinstance(columns, list) or len(columns) > MOST_COLUMNS:
            raise DataError("the description of the columns is damaged: it lists none, or too many.")
        return cls(tuple(_checked(column) for column in columns))


def _medians(frame: Frame) -> dict[str, float]:
    """The medians of the columns of numbers without gaps, many columns at once."""
    names = [name for name in frame.names if not frame.is_text(name) and not frame.gaps(name).any()]
    at_once = max(1, MEDIAN_ENTRIES // max(1, frame.n_rows))
    found: dict[str, float] = {}
    for start in range(0, len(names) if frame.n_rows else 0, at_once):
        some = names[start : start + at_once]
        values = np.median([frame.columns[name] for name in some], axis=1)
        found |= dict(zip(some, values.tolist(), strict=True))
    return found


def _learned(
    frame: Frame, name: str, keep: bool, notes: list[str], medians: Mapping[str, float]
) -> ColumnCode:
    if name in medians:
        return ColumnCode(name, "number", medians[name])
    gaps = frame.gaps(name)
    indicator, values = bool(gaps.any()), frame.columns[name][~gaps]
    if len(values) == 0:
        notes.append(f"column {name!r} has no values and is left out")
        return ColumnCode(name, "left out")
    if not frame.is_text(name):
        return ColumnCode(name, "number", float(np.median(values)), indicator=indicator)
    counts = Counter(values.tolist())
    order = sorted(counts, key=lambda each: (-counts[each], each))
    if len(counts) > MOST_LEVELS and 2 * len(counts) > len(values) and not keep:
        notes.append(
            f"column {name!r} has {len(counts)} different texts in {len(values)} rows and is left out"
        )
        return ColumnCode(name, "left out")
    if len(counts) == 1 and not indicator:
        notes.append(f"column {name!r} is {order[0]!r} in every row and is left out")
        return ColumnCode(name, "left out")
    enough = min(ENOUGH_ROWS, math.ceil(ENOUGH_SHARE * frame.n_rows))
    own = [each for each in order if counts[each] >= enough][:MOST_LEVELS]
    shared = len(counts) - len(own)
    if shared == 1 and len(own) < MOST_LEVELS:  # a single rare level has a column of its own
        own = order
    elif shared:
        notes.append(f"{shared} rare levels of column {name!r} share one input")
    return ColumnCode(name, "category", order[0], tuple(sorted(own)), len(own) < len(counts), indicator)


def _checked(given: Any) -> ColumnCode:
    known = {each.name for each in fields(ColumnCode)}
    if isinstance(given, Mapping) and set(given) <= known:
        levels, kind, fill = given.get("levels", ()), given.get("kind"), given.get("fill")
        right = {
            "number": isinstance(fill, (int, float)) and not isinstance(fill, bool) and math.isfinite(fill),
            "category": isinstance(fill, str),
            "left out": fill is None,
        }
        if (
            isinstance(given.get("name"), str)
            and right.get(str(kind), False)
            and isinstance(levels, (list, tuple))
            and len(levels) <= MOST_COLUMNS
            and all(isinstance(each, str) for each in levels)
            and (kind == "category" or not levels)
            and all(isinstance(given.get(key, False), bool) for key in ("other", "indicator"))
        ):
            return ColumnCode(**{**given, "levels": tuple(levels)})
    raise DataError("the description of the columns is damaged: a column is not described as it should be.")
