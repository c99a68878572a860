"""The growth benchmark has every size, and its exponents are fitted from the rows it prints."""

from __future__ import annotations

import math
import sys

import pytest

from running_benchmarks import BENCHMARKS, run_benchmark

sys.path.insert(0, str(BENCHMARKS))

from compact_json import rounded
from growth import BARE, fitted, table

SAMPLES, WIDTHS, NODES = [30, 60, 90], [4, 8, 16, 32], [200, 400]


@pytest.fixture(scope="module")
def run():
    def listed(values):
        return ",".join(map(str, values))

    mlp = ["--inputs", "12", "--classes", "3", "--samples", listed(SAMPLES), "--width", "8"]
    mlp += ["--widths", listed(WIDTHS), "--width-samples", "40"]
    graph = ["--nodes", listed(NODES), "--degree", "6", "--features", "20", "--hidden", "4"]
    graph += ["--graph-modes", "paper", "accelerated"]
    return run_benchmark("growth.py", *mlp, *graph, "--iterations", "2", "--warmup", "1", "--threads", "1")


def sizes(report, axis, mode):
    return [row["size"] for row in report["rows"] if (row["axis"], row["mode"]) == (axis, mode)]


def test_every_size_has_a_row_in_every_mode(run):
    report, _ = run
    for mode in ("quadratic", "exact", "accelerated"):
        assert sizes(report, "samples", mode) == SAMPLES
        assert sizes(report, "width", mode) == WIDTHS
    for mode in ("paper", "accelerated", BARE):
        edges = sizes(report, "edges", mode)
        assert len(edges) == len(NODES)
        for found, nodes in zip(edges, NODES, strict=True):
            assert found == pytest.approx(3 * nodes, rel=0.2)
    assert len(report["rows"]) == 3 * (len(SAMPLES) + len(WIDTHS)) + 3 * len(NODES)
    for row in report["rows"]:
        assert 0 < row["lowest_seconds"] <= row["seconds"]
        assert len(row["attempts"]) == 2
        if row["axis"] == "edges" and row["mode"] != BARE:
            assert row["trials"] >= 2  # the hidden W, backward and forward


def test_exponents_are_those_of_the_printed_rows(run):
    report, shown = run
    assert len(report["exponents"]) == 3 + 3 + 3
    assert report["exponents"] == rounded(fitted(report["rows"]))
    for fit in report["exponents"]:
        rows = [r for r in report["rows"] if (r["axis"], r["mode"]) == (fit["axis"], fit["mode"])]
        low, high = sorted(rows, key=lambda row: row["size"])[-2:]
        top = math.log(high["seconds"] / low["seconds"]) / math.log(high["size"] / low["size"])
        assert fit["top"] == pytest.approx(top, abs=1e-4)
    assert table(report) in shown


def test_exponents_of_known_growth():
    rows = [
        {
            "axis": axis,
            "mode": "exact",
            "size": size,
            "seconds": 3e-4 * size**power,
            "lowest_seconds": 1e-4 * size**power,
        }
        for axis, power in (("samples", 1), ("width", 2))
        for size in (10, 40, 20)
    ]
    found = {fit["axis"]: fit for fit in fitted(rows)}
    for axis, power in (("samples", 1), ("width", 2)):
        assert [found[axis][key] for key in ("exponent", "top", "of_lowest")] == pytest.approx([power] * 3)
    assert fitted(rows[:1]) == []
