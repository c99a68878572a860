"""The default estimators on tables: every method sees the same folds, and the sums are those of the runs."""

from __future__ import annotations

import gzip
import json
import sys

import numpy as np
import pytest

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

from tabular import METHODS, joined, main, read_index, read_table, summarised


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabular")
    rng = np.random.default_rng(0)
    lines = ["name,kind,rows,features,classes,target"]
    for name, kind in (("car", "classification"), ("slope", "regression")):
        x = rng.normal(size=(90, 3))
        y = ["#a" if v > 0 else "b" for v in x[:, 0]] if kind == "classification" else 100 * x[:, 0] + x[:, 1]
        (folder / kind).mkdir()
        with gzip.open(folder / kind / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("p\ttarget\tq\tr\n")
            for row, value in zip(x, y, strict=True):
                file.write(
                    "\t".join([str(row[0]), str(value), str(row[1]), "x" if row[2] > 0 else "y"]) + "\n"
                )
        lines.append(f"{name},{kind},90,3,2,target")
    (folder / "index.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_tables_are_read_with_their_targets_apart(tables):
    index = read_index(tables)
    x, y = read_table(tables, index["car"], 50)
    assert x.shape == (50, 3)
    assert set(y) == {0, 1}
    assert set(x[:, 2]) == {0.0, 1.0}
    assert read_table(tables, index["slope"], 4000)[1].std() > 50


def test_a_run_has_every_method_on_every_fold(tables, tmp_path, capsys):
    out = tmp_path / "report.json"
    main(["--data", str(tables), "--folds", "0,2", "--depth", "1", "--out", str(out)])
    printed = capsys.readouterr()
    assert "3 of 3" in printed.err
    report = json.loads(out.read_text(encoding="utf-8"))
    for kind in ("classification", "regression"):
        assert [entry["method"] for entry in report[kind]] == list(METHODS)
        ours = report[kind][0]
        assert (ours["wins"], ours["ties"], ours["losses"], ours["our_time_over_its"]) == (0, 1, 0, 1)
        assert ours["score"] > 0.8
    assert len(report["depth"]) == 3
    assert len(report["runs"]) == 2 * (2 * len(METHODS) + 3)
    assert report["ours_warned"] == "0 of 6"
    assert "default fits that warned: 0 of 6" in printed.out


def test_ranks_wins_and_ratios():
    def row(table, method, score, seconds):
        return {
            "table": table, "kind": "regression", "fold": 2, "method": method, "score": score, "seconds": seconds,
        }  # fmt: skip

    rows = [
        row("s", "ours", 0.9, 1.0), row("s", "raw", 0.8, 2.0), row("t", "ours", 0.5, 3.0), row("t", "raw", 0.501, 2.0),
    ]  # fmt: skip
    ours, raw = summarised(rows)
    assert (raw["wins"], raw["ties"], raw["losses"]) == (1, 1, 0)
    assert raw["our_time_over_its"] == 1.0
    assert (ours["rank"], raw["rank"]) == (1.5, 1.5)


def test_recorded_runs_of_the_same_tables_join_others_do_not():
    def row(table, method, fold=2, depth=1):
        return {"table": table, "method": method, "fold": fold, "depth": depth}

    recorded = [row("a", "ours"), row("b", "ours"), row("a", "ours", fold=1), row("a", "ours", depth=8)]
    recorded += [row("a", "realmlp") | {"old": True}]
    assert joined(recorded, [row("a", "realmlp")]) == [row("a", "ours"), row("a", "realmlp")]
