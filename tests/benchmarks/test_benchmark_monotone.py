"""The comparison of monotone estimators: constraints reach both, violations are counted, the page shows the record."""

from __future__ import annotations

import gzip
import json
import sys

import numpy as np
import pytest

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import monotone
from pages.tables import monotone_table


@pytest.fixture
def tables(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for kind, name in (("classification", "yes"), ("regression", "much")):
        (tmp_path / kind).mkdir()
        x = rng.normal(size=(90, 2))
        y = (x[:, 0] - x[:, 1] > 0).astype(int) if kind == "classification" else 9 * x[:, 0] - x[:, 1] ** 3
        with gzip.open(tmp_path / kind / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("up\tdown\ttarget\n")
            file.writelines(f"{a}\t{b}\t{c}\n" for (a, b), c in zip(x, y, strict=True))
    monkeypatch.setattr(monotone, "TABLES", {"yes": {"up": 1, "down": -1}, "much": {"up": 1}})
    monkeypatch.setattr(monotone, "PAIRS", 200)
    return tmp_path


def test_a_run_measures_every_method(tables, tmp_path):
    out = tmp_path / "m.json"
    monotone.main(["--data", str(tables), "--tables", "yes,much", "--folds", "1", "--out", str(out)])
    report = json.loads(out.read_text(encoding="utf-8"))
    assert [table["asked"] for table in report["tables"]] == [2, 1]
    assert [table["kind"] for table in report["tables"]] == ["accuracy", "R^2"]
    for table in report["tables"]:
        assert set(table["methods"]) == set(monotone.METHODS)
        for method, found in table["methods"].items():
            assert found["violations"] == 0 or not method.startswith("monotone")


def test_violations_are_counted_both_ways():
    class Falling:
        def predict(self, X):
            return -X[:, 0]

    X = np.random.default_rng(0).normal(size=(50, 2))
    assert monotone.violations(Falling(), False, X, [1, 0], 0) > 0.99 * monotone.PAIRS
    assert monotone.violations(Falling(), False, X, [-1, 1], 0) == 0


def test_the_recorded_networks_have_no_violations():
    rows = monotone_table().splitlines()[2:]
    assert len(rows) == len(monotone.TABLES)
    assert all("(0)" in row.split("|")[4] for row in rows)
