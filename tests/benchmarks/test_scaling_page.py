"""docs/scaling.md says what the benchmark measured, and the benchmark's model is what it says it is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scaling():
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "benchmarks" / "scaling.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report():
    return json.loads((ROOT / "docs" / "results" / "scaling-cpu.json").read_text(encoding="utf-8"))


def test_the_page_has_the_tables_of_the_figures(scaling, report):
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert scaling.written(page, report) == page


def test_what_was_told_was_the_formula(report):
    several = [run for run in report["runs"] if run["ranks"] > 1]
    assert {run["ranks"] for run in several} == {2, 3, 4}
    for run in several:
        assert (run["calls"], run["bytes"]) == (run["calls_formula"], run["bytes_formula"])
    for graph in report["graph"]:
        assert graph["exchanged"] == graph["exchanged_formula"]


def test_the_figures_on_paper_are_made_by_the_model(scaling, report):
    assert report["on_paper"] == scaling.rounded(scaling.on_paper(), 4)
    assert report["graph_on_paper"] == scaling.rounded(scaling.graph_on_paper(), 4)
