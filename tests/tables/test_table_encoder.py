"""Columns of text and numbers with gaps become numbers, by rules learned from the training rows alone."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from dladmm import DataError, InputError
from dladmm.tables import Frame, TableEncoder, frame_of


def text(*values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def frame(**columns):
    made = {k: v if isinstance(v, np.ndarray) else np.array(v, dtype=float) for k, v in columns.items()}
    return Frame(made, len(next(iter(made.values()))))


def test_numbers_levels_fills_and_indicators():
    train = frame(colour=text("red", None, "blue", "red"), size=[1.0, np.nan, 3.0, 8.0], plain=[1, 2, 3, 4])
    encoder = TableEncoder.fit(train)
    names = ["colour=blue", "colour=red", "colour (missing)", "size", "size (missing)", "plain"]
    assert encoder.outputs == names
    expected = [[0, 1, 0, 1, 0, 1], [0, 1, 1, 3, 1, 2], [1, 0, 0, 3, 0, 3], [0, 1, 0, 8, 0, 4]]
    np.testing.assert_array_equal(encoder.transform(train), expected)


def test_new_rows_with_unknown_levels_and_new_gaps():
    encoder = TableEncoder.fit(frame(c=text("a", "b", "a"), n=[1.0, 2.0, 6.0]))
    new = frame(n=[np.nan, 4.0], c=text("never seen", None), further=[0, 0])
    np.testing.assert_array_equal(encoder.transform(new), [[0, 0, 2], [1, 0, 4]])


def test_rare_levels_share_a_column_and_unknown_ones_join_them():
    values = ["a"] * 600 + ["b"] * 390 + [f"rare{k}" for k in range(10)]
    encoder = TableEncoder.fit(frame(c=text(*values)))
    assert encoder.outputs == ["c=a", "c=b", "c (other)"]
    assert "10 rare levels" in encoder.notes[0]
    np.testing.assert_array_equal(
        encoder.transform(frame(c=text("rare3", "new", "b"))), [[0, 0, 1], [0, 0, 1], [0, 1, 0]]
    )


def test_the_number_of_inputs_is_bounded():
    rng = np.random.default_rng(0)
    values = [f"city{k}" for k in rng.integers(0, 2000, size=50_000)]
    encoder = TableEncoder.fit(frame(c=text(*values), n=rng.normal(size=50_000)))
    assert len(encoder.outputs) == 52


def test_identifiers_constants_and_empty_columns_are_left_out_with_a_word():
    n = 60
    table = frame(
        name=text(*(f"Ms {k}" for k in range(n))),
        empty=np.full(n, np.nan),
        same=text(*["x"] * n),
        v=np.arange(n),
    )
    encoder = TableEncoder.fit(table)
    assert encoder.outputs == ["v"]
    assert len(encoder.notes) == 3
    with pytest.raises(DataError, match="no column to learn from"):
        TableEncoder.fit(frame(empty=np.full(3, np.nan)))


def test_columns_that_lack_or_changed_are_named():
    encoder = TableEncoder.fit(frame(a=[1, 2], b=text("x", "y")))
    with pytest.raises(DataError, match="lacks the columns b"):
        encoder.transform(frame(a=[1]))
    with pytest.raises(
        DataError, match=r"row 2, column 'a': 'oops', but the network was trained with numbers"
    ):
        encoder.transform(frame(a=text("oops"), b=text("x")))


def test_categories_that_look_like_numbers_in_new_rows_are_found():
    encoder = TableEncoder.fit(frame(code=text("1", "2", "V45", "1")))
    np.testing.assert_array_equal(encoder.transform(frame(code=[2, 1])), [[0, 1, 0], [1, 0, 0]])


def test_json_and_back():
    encoder = TableEncoder.fit(frame(c=text("a", None, "b"), n=[1, np.nan, 2]))
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder


GOOD = {"version": 1, "columns": [{"name": "n", "kind": "number", "fill": 1.0}]}


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"version": 2, "columns": []},
        {"version": 1},
        {"version": 1, "columns": [{"name": "n", "kind": "number"}]},
        {"version": 1, "columns": [{"name": "n", "kind": "number", "fill": float("nan")}]},
        {"version": 1, "columns": [{"name": "n", "kind": "number", "fill": "1"}]},
        {"version": 1, "columns": [{"name": 3, "kind": "number", "fill": 1.0}]},
        {"version": 1, "columns": [{"name": "n", "kind": "pickle", "fill": 1.0}]},
        {"version": 1, "columns": [{"name": "n", "kind": "category", "fill": "a", "levels": "abc"}]},
        {"version": 1, "columns": [{"name": "n", "kind": "category", "fill": "a", "levels": [1]}]},
        {"version": 1, "columns": [{"name": "n", "kind": "number", "fill": 1.0, "code": "x"}]},
        {"version": 1, "columns": [{"name": "n", "kind": "number", "fill": 1.0, "indicator": 1}]},
    ],
)
def test_a_damaged_description_is_refused(wrong):
    assert TableEncoder.from_dict(GOOD).names == ["n"]
    with pytest.raises(DataError, match="damaged"):
        TableEncoder.from_dict(wrong)


def test_data_frames_of_pandas():
    data = pd.DataFrame(
        {
            "c": pd.Categorical(["a", None, "b"]),
            "s": ["x", "y", None],
            "b": [True, False, True],
            "n": [1, 2, 3],
            "m": pd.array([1, None, 3], dtype="Int64"),
            "f": [0.5, np.nan, 2.0],
        }
    )
    found = frame_of(data)
    assert [found.is_text(name) for name in found.names] == [True, True, False, False, False, False]
    assert found.columns["c"].tolist() == ["a", None, "b"]
    assert np.isnan(found.columns["m"][1])
    assert frame_of(data[["n"]], categorical=["n"]).columns["n"].tolist() == ["1", "2", "3"]
    with pytest.raises(InputError, match="two columns named 'a'"):
        frame_of(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InputError, match="contains infinity"):
        frame_of(pd.DataFrame({"a": [np.inf, 1]}))
    with pytest.raises(InputError, match="neither numbers nor categories"):
        frame_of(pd.DataFrame({"a": [[1], [2]]}))


def test_a_level_with_exactly_enough_rows_has_a_column():
    """One in a hundred, or ten: with 300 rows that is three."""
    values = ["a"] * 292 + ["three"] * 3 + ["two"] * 2 + ["also two"] * 2 + ["one"]
    assert TableEncoder.fit(frame(c=text(*values))).outputs == ["c=a", "c=three", "c (other)"]
    values = ["a"] * 1981 + ["ten"] * 10 + ["nine"] * 5 + ["few"] * 4
    assert TableEncoder.fit(frame(c=text(*values))).outputs == ["c=a", "c=ten", "c (other)"]


def test_a_rare_level_that_would_share_with_nobody_has_its_own_column():
    one = Frame({"c": text(*["a"] * 500 + ["b"] * 499 + ["r"])}, 1000)
    assert TableEncoder.fit(one).outputs == ["c=a", "c=b", "c=r"]
    two = Frame({"c": text(*["a"] * 500 + ["b"] * 498 + ["r", "s"])}, 1000)
    assert TableEncoder.fit(two).outputs == ["c=a", "c=b", "c (other)"]


def test_text_that_hardly_repeats_is_encoded_where_that_was_asked_for():
    frame = Frame({"id": text(*[f"n{k}" for k in range(60)]), "x": np.arange(60.0)}, 60)
    assert TableEncoder.fit(frame).outputs == ["x"]
    assert len(TableEncoder.fit(frame, keep=["id"]).outputs) == 50 + 1 + 1
