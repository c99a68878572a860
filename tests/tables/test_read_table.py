"""Tables as people have them, by pyarrow and by the library's own reader alike; endless and hostile files."""

from __future__ import annotations

import csv
import gzip
import io
import os
import random
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dladmm import DataError, InputError
from dladmm.tables import Frame, read, read_table
from dladmm.tables.frame import typed

ADULT = """age,workclass,fnlwgt,education,sex,capital-gain,y
39, State-gov,77516, Bachelors, Male,2174, <=50K
50, ?,83311, Bachelors, Male,, <=50K
38, Private,NA, "HS, grad", Female,0, >50K
"""


def same(one, other):
    assert one.names == other.names
    for name in one.names:
        a, b = one.columns[name], other.columns[name]
        assert a.dtype == b.dtype, name
        if a.dtype == object:
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_array_equal(a, b)


def both(path, separator=None):
    frame = read_table(path, separator, engine="own")
    same(frame, read_table(path, separator, engine="auto"))
    return frame


@pytest.fixture
def write(tmp_path):
    def written(text, name="t.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return written


def test_text_gaps_and_quotes(write):
    frame = both(write(ADULT))
    assert [frame.is_text(name) for name in frame.names] == [False, True, False, True, True, False, True]
    assert frame.columns["workclass"].tolist() == ["State-gov", None, "Private"]
    assert np.isnan(frame.columns["capital-gain"][1])
    assert np.isnan(frame.columns["fnlwgt"][2])
    assert frame.columns["y"].tolist() == ["<=50K", "<=50K", ">50K"]
    assert frame.distinct("y") == 2
    assert not frame.has_fractions("age")


def test_pyarrow_is_used_where_it_is_installed(write, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(read, "_by_hand", lambda *args: pytest.fail("the own reader was called"))
    read_table(write("a,b\n1,x\n2,y\n"))


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_separator_is_recognised(write, mark):
    rows = [["a", "b", "c"], ["1", "x y", "2.5"], ["3", "z", ""]]
    frame = both(write("\n".join(mark.join(row) for row in rows)))
    assert frame.names == ["a", "b", "c"]
    assert frame.columns["a"].tolist() == [1, 3]


def test_a_separator_that_is_given_is_used(write):
    path = write("a;b,c\n1;2,3\n")
    assert both(path, ";").names == ["a", "b,c"]
    assert both(path, ",").names == ["a;b", "c"]
    with pytest.raises(InputError, match="separator must be one of"):
        read_table(path, "xx")


def test_decimal_commas_in_a_table_with_semicolons(write):
    assert both(write("a;b\n3,14;x\n-2;y\n")).columns["a"].tolist() == [3.14, -2]
    assert both(write('a,b\n"3,14",x\n')).is_text("a")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_and_gzip(write, encoding):
    text = "größe,stadt\n1,Köln\n2,Besançon\n"
    for data, name in (
        (text.encode(encoding), "a.csv"),
        (gzip.compress(text.encode(encoding)), "a.csv.gz"),
    ):
        frame = both(write(data, name))
        assert frame.names == ["größe", "stadt"]
        assert frame.columns["stadt"].tolist() == ["Köln", "Besançon"]
        assert (frame.notes != ()) == (encoding == "latin-1")


def test_line_ends_and_blank_lines(write):
    for text in ("a,b\r\n1,2\r\n\r\n3,4\r\n", "a,b\n1,2\n   \n3,4", "\n\na,b\n1,2\n3,4\n\n", "a,b\r1,2\r3,4"):
        assert both(write(text)).columns["b"].tolist() == [2, 4]


def test_numbers_are_pythons_numbers(write):
    cells = ["1e3", "-.5", "5.", "+7", "0.1", "123456789012345678901234567890", " 2 ", "1E-320"]
    frame = both(write("a,b\n" + "".join(f"{cell},x\n" for cell in cells)))
    assert frame.columns["a"].tolist() == [float(cell) for cell in cells]
    assert both(write("a,b\n1_000,x\n2,x\n")).is_text("a")


def test_a_slip_among_numbers_is_named_and_codes_are_categories(write):
    slip = "a,b\n" + "".join(f"{k},{k}.5\n" for k in range(40)) + "7,oops\n"
    for engine in ("own", "auto"):
        with pytest.raises(
            DataError, match=r"row 42, column 'b': 'oops' is not a finite number, but 40 of 41"
        ):
            read_table(write(slip), engine=engine)
    with pytest.raises(DataError, match="'inf' is not a finite number"):
        both(write(slip.replace("oops", "inf")))
    codes = both(write("code\n" + "".join(f"{k % 4}\n" for k in range(40)) + "V45\n"))
    assert codes.is_text("code")
    assert codes.columns["code"][0] == "0"


def test_row_numbers_that_pandas_writes_are_left_out(write):
    frame = both(write(",a,b\n0,5,x\n1,7,y\n2,9,z\n"))
    assert frame.names == ["a", "b"]
    assert "counts the rows" in frame.notes[-1]
    kept = both(write(",a\n4,5\n1,7\n"))
    assert kept.names == ["column_1", "a"]
    assert "without a name" in kept.notes[0]


def test_duplicate_and_blank_headers(write):
    for engine in ("own", "auto"):
        with pytest.raises(DataError, match="several columns of the same name: a"):
            read_table(write("a,b,a\n1,2,3\n"), engine=engine)
    assert both(write("a,,b,\n1,2,3,\n4,5,6,\n")).names == ["a", "column_2", "b", "column_4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no data"),
        ("a,b\n", "holds no data"),
        ("\n\n", "holds no data"),
        ("a,b\n1\n", "row 2: 1 fields, but the header has 2"),
        ("a,b\n1,2\n1,2,3\n", "row 3: 3 fields, but the header has 2"),
        (b"a,b\n1,\x00\n", "zero bytes"),
        (b"\x1f\x8bnot gzip at all", "could not be read"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:-20], "could not be read"),
    ],
)
def test_damaged_files_are_refused(write, text, message):
    for engine in ("own", "auto"):
        with pytest.raises(DataError, match=message):
            read_table(write(text), engine=engine)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes by name")
def test_pipes_devices_and_folders_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")

    def late(*_):
        raise AssertionError("the reader waits for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        for path in (tmp_path / "pipe", tmp_path / "link", "/dev/zero", tmp_path):
            with pytest.raises(DataError, match="not a file"):
                read_table(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_sizes_are_checked_before_reading(tmp_path, write, monkeypatch):
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(5 * 2**30)  # holds no blocks on disk
    with pytest.raises(DataError, match="more than the"):
        read_table(huge)
    monkeypatch.setattr("dladmm.tables.content.SMALL_ARCHIVE", 10_000)
    bomb = write(gzip.compress(b"a\n" + b"1\n" * 2_000_000), "bomb.csv.gz")
    with pytest.raises(DataError, match="unpacks to more than"):
        read_table(bomb)


def test_a_hundred_thousand_columns_take_seconds(write):
    n = 100_000
    line = ",".join(str(k % 7) for k in range(n))
    path = write(",".join(f"c{k}" for k in range(n)) + f"\n{line}\n{line}\n")
    began = time.monotonic()
    assert len(read_table(path).names) == n
    assert time.monotonic() - began < 30  # was 279 s, quadratic in the columns


def test_terminal_escapes_are_spelled_out(write):
    frame = both(write("a\x1b[2J,b\n\x1b]0;title\x07x,1\n\u202eevil,2\n"))
    assert frame.names == ["a\\x1b[2J", "b"]
    assert frame.columns["a\\x1b[2J"].tolist() == ["\\x1b]0;title\\x07x", "\\u202eevil"]
    with pytest.raises(InputError) as caught:
        frame.known(["\x1b[31m"], "target")
    assert "\x1b" not in str(caught.value)


CELLS = (
    st.text(st.sampled_from(list("a1.,;\"' \t?eE-é_|")), max_size=6) | st.floats().map(str) | st.just("NA")
)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6), mark=st.sampled_from(",;\t|"))
def test_both_readers_read_what_was_written(tmp_path_factory, rows, mark):
    pytest.importorskip("pyarrow")
    text = io.StringIO()
    csv.writer(text, delimiter=mark).writerows([("u", "v", "w"), *rows])
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    own = read_table(path, mark, engine="own")
    assert own.n_rows == len(rows)
    same(own, read_table(path, mark))


def test_damaged_bytes_raise_our_own_errors(write):
    rng = random.Random(0)
    for _ in range(300):
        data = bytearray(ADULT.encode())
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path, found = write(bytes(data)), []
        for engine in ("own", "auto"):
            try:
                found.append(read_table(path, engine=engine))
            except (DataError, InputError) as error:
                found.append(str(error))
        if isinstance(found[0], str):
            assert found[0] == found[1]
        else:
            same(*found)


def test_the_first_of_two_separators_that_fit_alike_is_taken(tmp_path):
    (tmp_path / "t.csv").write_text("a,b;c\n1,2;3\n4,5;6\n")
    assert read_table(tmp_path / "t.csv").names == ["a", "b;c"]


def test_numbers_among_mostly_words_are_words():
    numbers, words = [str(k) for k in range(30)], [f"w{k % 9}" for k in range(40)]
    assert typed("x", numbers + words, "t.csv").dtype == object
    with pytest.raises(DataError, match="is not a finite number, but 30 of 40 cells are"):
        typed("x", numbers + words[:10], "t.csv")


def test_whole_targets_beyond_what_float64_counts_stay_as_they_are():
    for largest, kind in ((2.0**53 - 1, np.int64), (2.0**53, np.float64), (2.0**60, np.float64)):
        assert Frame({"y": np.array([1.0, largest])}, 2).values_of("y").dtype == kind
