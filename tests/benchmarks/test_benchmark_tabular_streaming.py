"""Small tables: the sums are those of the runs, and settings are chosen on other folds than those reported."""

from __future__ import annotations

import gzip
import json
import sys

import numpy as np
import pytest

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

from tabular_streaming import (
    Fold,
    Variant,
    chosen,
    main,
    measured,
    read_table,
    run_variants,
    summarised,
    table,
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        y = rng.integers(0, 3, 120)
        x = rng.normal(size=(120, 4)) + np.c_[y, -y, y * 0, y * 0]
        with gzip.open(folder / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("a\tb\ttarget\tc\td\n")
            for row, label in zip(x, y, strict=True):
                file.write("\t".join([*map(str, row[:2]), f"class {label}", *map(str, row[2:])]) + "\n")
    return folder


def test_a_table_is_read_with_its_target_apart(tables):
    x, y = read_table(tables / "one.tsv.gz")
    assert x.shape == (120, 4)
    assert set(y) == {0, 1, 2}
    assert abs(x[:, 2].mean()) < 0.5


def test_settings_are_chosen_on_two_folds_and_reported_on_the_third(tables, capsys):
    settings = [
        "--passes",
        "2,3",
        "--smoothing",
        "0",
        "--batch",
        "rows/8",
        "--planned",
        "yes,no",
        "--most",
        "1000",
    ]
    main(["--data", str(tables), "--tables", "one,two", "--rows", "100", "--grid", *settings, "--json"])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    choosing = report["choosing"]
    assert {row["fold"] for row in choosing["runs"]} == {0, 1}
    assert {row["fold"] for row in report["runs"]} == {2}
    own = [row for row in choosing["summary"] if row["method"] != "scikit-learn"]
    assert len(own) == 5
    best = max(row["accuracy"] for row in own)
    assert next(row for row in own if row["method"] == choosing["chosen"])["accuracy"] == best
    assert table(report) in printed.err
    for row in report["runs"]:
        assert row["seconds"] > 0
        assert 0.4 < row["accuracy"] <= 1
        assert row["rows"] in (66, 67)


def test_lengths_of_an_unplanned_run_are_those_of_the_longest():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = rng.normal(size=(60, 3)) + y[:, None]
    fold = Fold("t", 0, x[:40], y[:40], x[40:], y[40:])
    variants = [Variant(passes, planned=False) for passes in (2, 4)]
    found = run_variants(fold, variants, 0)
    alone = run_variants(fold, variants[:1], 0)
    name = variants[0].name
    assert found[name]["passes"] == 2
    assert found[name]["log_loss"] == pytest.approx(alone[name]["log_loss"], rel=1e-4)
    assert found[variants[1].name]["passes"] == 4


def test_batches_of_a_share_of_the_rows_have_bounds():
    assert Variant(batch="rows/8").batch_size(100) == 32
    assert Variant(batch="rows/8").batch_size(800) == 100
    assert Variant(batch="rows/8").batch_size(80_000) == 256
    assert Variant(batch=7).batch_size(800) == 7
    assert Variant(batch=64, l2=0.5).name == "batch 64, l2 0.5"
    assert Variant().name == "defaults"


def test_sums_are_of_the_rows():
    def row(method, fold, accuracy, seconds):
        return {
            "table": "t",
            "fold": fold,
            "method": method,
            "accuracy": accuracy,
            "log_loss": 1.0,
            "seconds": seconds,
        }

    rows = [
        row("scikit-learn", 0, 0.8, 2.0), row("fast", 0, 0.7, 0.5), row("slow", 0, 0.9, 4.0),
        row("scikit-learn", 1, 0.8, 4.0), row("fast", 1, 0.8, 2.0), row("slow", 1, 0.9, 4.0),
    ]  # fmt: skip
    summary = summarised(rows)
    fast = next(entry for entry in summary if entry["method"] == "fast")
    assert fast["accuracy"] == pytest.approx(0.75)
    assert fast["ratio"] == pytest.approx((0.25 + 0.5) / 2)
    assert (fast["not_below"], fast["runs"]) == (1, 2)
    assert chosen(summary, 0.5) == "fast"
    assert chosen(summary, 2.0) == "slow"
    assert chosen(summary, 0.01) == "fast"


def test_log_loss_is_clipped():
    fold = Fold("t", 0, np.zeros((1, 1)), np.zeros(1), np.zeros((2, 1)), np.array([0, 1]))
    found = measured(fold, np.array([[1.0, 0.0], [1.0, 0.0]]), 1.0)
    assert found["accuracy"] == 0.5
    assert found["log_loss"] == pytest.approx(-np.log(1e-15) / 2)
