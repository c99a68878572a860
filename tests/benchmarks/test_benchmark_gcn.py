"""The graph benchmark has every cell it was asked for, the paper's figure, and ratios of what it prints."""

from __future__ import annotations

import argparse
import json
import sys

import pytest
import torch

from running_benchmarks import BENCHMARKS, run_benchmark_apart

sys.path.insert(0, str(BENCHMARKS))

from gcn import MODES, NAMES, line, measure, missing, paper_seconds
from pages.results import render

from dladmm.reproduce import paper


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    empty = str(tmp_path_factory.mktemp("no data"))
    sizes = ["--datasets", "karate", "cora", "--hidden", "4", "16", "--repeats", "2", "--threads", "1"]
    return run_benchmark_apart("gcn.py", *sizes, DLADMM_DATA=empty, XDG_CACHE_HOME=empty)


def test_every_cell_of_a_data_set_that_is_there_has_a_row_and_the_others_are_named(run):
    report, table = run
    assert [(row["dataset"], row["hidden"]) for row in report["results"]] == [("karate", 4), ("karate", 16)]
    assert report["skipped"] == ["cora"]
    assert [words for words in table.splitlines() if "cora" in words and "skipped" in words]
    assert all(line(row) in table for row in report["results"])
    assert report["machine"]["threads"] == 1


def test_ratios_are_those_of_the_printed_seconds(run):
    for row in run[0]["results"]:
        assert set(row["modes"]) == set(MODES)
        for of in row["modes"].values():
            assert of["iteration_seconds"] > 0
            assert len(of["attempts"]) == 2
            ratio = of["iteration_seconds"] / row["adam_epoch_seconds"]
            assert of["ratio_to_adam"] == pytest.approx(ratio, rel=1e-4)
            assert of["times_as_fast_as_the_paper"] is None  # the paper has no karate
        assert row["iteration_seconds"] == row["modes"]["certified"]["iteration_seconds"]
        assert row["ratio"] == row["modes"]["certified"]["ratio_to_adam"]
        assert row["memory_bytes"] > 0


def test_paper_has_a_figure_for_every_cell_of_the_five_graphs():
    for name in NAMES:
        for hidden in (16, 32, 64, 128, 256):
            assert sorted(paper_seconds(name, hidden)) == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    assert paper_seconds("cora", 128)[1e-3] == 0.2877
    assert paper_seconds("coauthor-physics", 256)[1e-6] == 0.9585
    assert paper_seconds("cora", 100) == {}
    assert paper_seconds("karate", 16) == {}
    graphs = set(paper.figures()["tab:running time 3"]) - {"caption", "claims"}
    assert graphs == {name.replace("-", "_") for name in NAMES}


@pytest.mark.realdata
def test_cell_of_a_real_graph_is_compared_with_the_paper():
    if missing("cora"):
        pytest.skip("Cora is not found")
    settings = argparse.Namespace(
        rows="all",
        solver="exact",
        rho=1e-3,
        compile=False,
        device="cpu",
        threads=torch.get_num_threads(),
        repeats=2,
    )
    row = measure("cora", 16, settings)
    assert row["paper_seconds"] == 0.2836
    assert row["paper_seconds_lowest_of_all_rho"] == 0.1848
    for of in row["modes"].values():
        faster = row["paper_seconds"] / of["iteration_seconds"]
        assert of["times_as_fast_as_the_paper"] == pytest.approx(faster)
    assert "0.2836" in line(row)


def test_results_page_still_reads_the_report(run, tmp_path):
    (tmp_path / "gcn-benchmark-cpu.json").write_text(json.dumps(run[0]))
    assert "| karate | 16 |" in render(tmp_path)
