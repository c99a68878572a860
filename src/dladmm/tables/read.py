""":func:`read_table`: CSV files with any of the usual separators, with pyarrow where it is installed.

Both ways give the same table: pyarrow splits lines into cells and reads columns that are numbers throughout; everything
else, and every file that it rejects, goes through the reader here, whose errors name row and column.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import DataError, InputError
from dladmm.tables.content import normal, read_text
from dladmm.tables.frame import GAPS, Frame, listed, typed

Array = NDArray[Any]

SEPARATORS = {
    ",": ",",
    ";": ";",
    "\t": "\t",
    "|": "|",
    "tab": "\t",
    "comma": ",",
    "semicolon": ";",
    "\\t": "\t",
}
"""What ``separator`` may be, and the character it stands for."""

WIDE = 2_000
"""Columns up to which pyarrow is the quicker reader."""

LOOKED_AT = 50
"""Lines by which the separator is recognised."""


def read_table(path: str | Path, separator: str | None = None, *, engine: str = "auto") -> Frame:
    """Read a table with a header line: text and numbers, with gaps.

    Parameters
    ----------
    path : path
        A text file, or one packed by gzip, in UTF-8, UTF-16 or Latin-1.
    separator : {",", ";", "tab", "|"}, optional
        What parts the cells; None recognises it.
    engine : {"auto", "pyarrow", "own"}
        Who splits the lines; "auto" is pyarrow where it is installed. The table is the same.

    Returns
    -------
    Frame
        Columns of numbers or text. A column without a name gets one, with a note.
    """
    if separator is not None and separator not in SEPARATORS:
        raise InputError(f"separator must be one of , ; | and tab, got {separator!r}.")
    path = Path(path)
    text, notes = read_text(path)
    try:
        mark = _recognised(text) if separator is None else SEPARATORS[separator]
        header = next((line for line in _cells(text, mark) if line), [])
        names, said = _names(header, path)
        columns = None if engine == "own" else _by_pyarrow(text, mark, names, path)
        if columns is None:
            if engine == "pyarrow":
                raise DataError(f"{path} could not be read by pyarrow.")
            columns = _by_hand(text, mark, names, path)
    except csv.Error as error:
        raise DataError(f"{path} could not be read as CSV: {error}.") from error
    notes += said
    n_rows = len(next(iter(columns.values())))
    if n_rows == 0:
        raise DataError(f"{path} holds no data: a header line and at least one row are needed.")
    frame = Frame(columns, n_rows, tuple(notes), str(path))
    return _without_index(frame, header)


def _cells(text: str, mark: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True)


def _recognised(text: str) -> str:
    """The separator that splits the first lines into the same number of cells, the more the better."""
    start = text[: 2**20]
    best, most = ",", 1
    for mark in (",", ";", "\t", "|"):
        sizes: list[int] = []
        with suppress(csv.Error):  # a cell without end: another separator
            for line in _cells(start, mark):
                if line:
                    sizes.append(len(line))
                if len(sizes) == LOOKED_AT:
                    break
        whole = sizes[:-1] if len(start) < len(text) and 1 < len(sizes) < LOOKED_AT else sizes
        if whole and min(whole) == max(whole) and whole[0] > most:
            best, most = mark, whole[0]
    if most > 1:
        return best
    # no separator fits all lines: the one of the header, so that the error names the line that is wrong
    header = start.split("\n", 1)[0]
    return max((",", ";", "\t", "|"), key=header.count)


def _names(header: Sequence[str], path: Path) -> tuple[list[str], list[str]]:
    """The columns' names, and notes; raises for names that occur twice."""
    if not header:
        raise DataError(f"{path} holds no data: a header line and at least one row are needed.")
    names = [normal(name) for name in header]
    blank = [place for place, name in enumerate(names) if not name]
    taken, notes = set(names), []
    for place in blank:
        made = f"column_{place + 1}"
        while made in taken:
            made += "_"
        names[place] = made
        taken.add(made)
    if blank:
        notes.append(f"{len(blank)} columns without a name are called {listed([names[p] for p in blank], 5)}")
    if len(taken - {""}) < len(names):
        twice = [name for name, times in Counter(names).items() if times > 1]
        raise DataError(f"{path} has several columns of the same name: {listed(twice, 5)}. Rename them.")
    return names, notes


def _without_index(frame: Frame, header: Sequence[str]) -> Frame:
    """The table without the row numbers that pandas writes into a first column without a name."""
    first = frame.names[0]
    if header[0].strip() or len(frame.columns) < 2 or frame.is_text(first):
        return frame
    steps = frame.columns[first] - frame.columns[first][0]
    if frame.n_rows < 2 or not np.array_equal(steps, np.arange(frame.n_rows)):
        return frame
    kept = {name: column for name, column in frame.columns.items() if name != first}
    word = "the first column, without a name, counts the rows and is left out"
    notes = (*(note for note in frame.notes if "without a name" not in note), word)
    return Frame(kept, frame.n_rows, notes, frame.source)


def _by_hand(text: str, mark: str, names: Sequence[str], path: Path) -> dict[str, Array]:
    reader = _cells(text, mark)
    rows: list[list[str]] = []
    n_names = len(names)
    for line in reader:
        if not line or (n_names > 1 and len(line) == 1 and not line[0].strip()):
            continue
        if len(line) != n_names and rows:
            raise DataError(f"{path}, row {len(rows) + 1}: {len(line)} fields, but the header has {n_names}.")
        rows.append(line)
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else ([] for _ in names)
    comma = mark == ";"
    return {name: typed(name, cell, str(path), comma=comma) for name, cell in zip(names, cells, strict=True)}


def _by_pyarrow(text: str, mark: str, names: Sequence[str], path: Path) -> dict[str, Array] | None:
    """The columns as :func:`_by_hand` returns them; None where pyarrow is missing or rejects the file."""
    # Pyarrow reads it as a letter
    quote_after_blank = re.compile(rf'(?:^|{re.escape(mark)}) +"', re.MULTILINE)
    if len(names) > WIDE or quote_after_blank.search(text):
        return None
    try:
        import pyarrow
        from pyarrow import compute
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    places = [f"f{place}" for place in range(len(names))]  # pyarrow's own names for columns without one
    data = text.encode("utf-8", "surrogatepass")
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(data),
            read_options=arrow_csv.ReadOptions(
                autogenerate_column_names=True, block_size=max(2**20, min(len(data) + 1, 2**24))
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=mark, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(places, pyarrow.string()), strings_can_be_null=False
            ),
        )
    except (pyarrow.ArrowException, UnicodeError):
        return None
    if table.num_columns != len(names):
        return None
    gaps = pyarrow.array(sorted(GAPS))
    columns: dict[str, Array] = {}
    for place, name in enumerate(names):
        cells = table.column(place).slice(1)
        numbers = _all_numbers(cells, gaps, compute, pyarrow)
        columns[name] = (
            typed(name, cells.to_pylist(), str(path), comma=mark == ";") if numbers is None else numbers
        )
    return columns


def _all_numbers(cells: Any, gaps: Any, compute: Any, pyarrow: Any) -> Array | None:
    """Numbers if every cell is a finite number or a gap, else None; its grammar is a part of Python's."""
    stripped = compute.utf8_trim_whitespace(cells)
    missing = compute.is_in(compute.utf8_lower(stripped), value_set=gaps)
    filled = compute.if_else(missing, pyarrow.scalar(None, pyarrow.string()), stripped)
    try:
        numbers = compute.cast(filled, pyarrow.float64())
    except pyarrow.ArrowException:
        return None
    found = np.array(numbers.to_numpy(), dtype=np.float64)
    return None if bool((~np.isfinite(found) & ~np.asarray(missing.to_numpy(), dtype=bool)).any()) else found
