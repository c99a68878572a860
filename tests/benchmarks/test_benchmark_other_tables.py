"""Tables from elsewhere: every table is in one half, and what is written is what ``tabular.py`` reads."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

from other_tables import folder_of, generated, halves, write
from tabular import read_index, read_table


def test_every_table_is_in_one_half_that_its_name_decides():
    tables = list(generated())
    found = list(halves(tables))
    assert sorted(t[0] for _, t in found) == sorted(t[0] for t in tables)
    for kind in ("classification", "regression"):
        counts = [sum(half == each and t[1] == kind for half, t in found) for each in ("look", "aside")]
        assert abs(counts[0] - counts[1]) <= 1
    again = {t[0]: half for half, t in halves(tables[::-1])}
    assert again == {t[0]: half for half, t in found}


def test_generated_tables_come_out_the_same_twice_and_are_read_as_they_were_written(tmp_path):
    tables = [t for t in generated() if t[0] in ("generated.thirty_rows", "generated.forty_rows")]
    words = pd.DataFrame({"a": ["x", "y", "x"], "b": [1.5, 2.0, 0.25]})
    write(tmp_path, [*tables, ("own.words", "classification", words, pd.Series(["no", "yes", "no"]))])
    index = read_index(tmp_path)
    assert index["own.words"]["classes"] == "2"
    x, y = read_table(tmp_path, index["own.words"], 10)
    assert x.tolist() == [[0, 1.5], [1, 2.0], [0, 0.25]]
    assert y.tolist() == [0, 1, 0]
    for name, _, features, target in (t for t in generated() if t[0] in index):
        x, y = read_table(tmp_path, index[name], 4000)
        assert np.array_equal(x, features.to_numpy())
        assert np.array_equal(y, target.to_numpy())


def test_a_package_that_is_missing_is_named():
    with pytest.raises(SystemExit, match="no_such_package is not installed"):
        folder_of("no_such_package")
