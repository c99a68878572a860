"""What docs/results lacks of the paper's experiments is run, once, and put there."""

from __future__ import annotations

import json

import pytest
from experiments import paper

from dladmm.runs.running import Session
from small_experiments import ACCURACY, TIME, small

EXPERIMENTS = {"gcn-accuracy": small(ACCURACY, name="gcn-accuracy"), "mlp-time-neurons": small(TIME)}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "paper_experiment", EXPERIMENTS.__getitem__)
    folder = tmp_path / "results"
    folder.mkdir()
    stored = {"experiments": [{"id": "mlp-time-neurons", "revision": 0, "missing": 4, "findings": []}]}
    (folder / "reproduce-full.json").write_text(json.dumps(stored), encoding="utf-8")
    return folder


def names(found):
    return {
        one.experiment.id: [[c.name for c in part] for part in (one.alone, one.together)] for one in found
    }


def test_what_is_missing_is_run_once_and_kept(results, tmp_path):
    session = Session(tmp_path / "out", say=lambda line: None)
    found = paper.missing(results, "cpu", EXPERIMENTS)
    accuracy = names(found)["gcn-accuracy"]
    assert accuracy == [["karate-adam-0"], ["karate-dladmm-0", "karate-dladmm-1", "karate-adam-1"]]
    assert [len(part) for part in names(found)["mlp-time-neurons"]] == [4, 0]

    assert paper.run_alone(found, session)
    paper.keep(found, session, results)
    left = paper.missing(results, "cpu", EXPERIMENTS)
    assert names(left) == {"gcn-accuracy": [[], accuracy[1]], "mlp-time-neurons": [[], []]}
    assert [len(cells) for cells in names(paper.missing(results, "cuda", EXPERIMENTS))["gcn-accuracy"]] == [
        1,
        3,
    ]

    for share in ((1, 2), (2, 2)):  # two processes divide the work
        assert paper.run_together(left, Session(session.out, share=share, say=session.say))
    paper.keep(left, session, results)
    assert names(paper.missing(results, "cpu", EXPERIMENTS))["gcn-accuracy"] == [[], []]
    kept = {cell["name"]: cell for cell in paper.read("gcn-accuracy", results)["cells"]}
    assert [name for name, cell in kept.items() if "fit_seconds" in cell] == ["karate-adam-0"]  # it ran alone
    (said,) = paper.read("reproduce-full", results)["experiments"]
    assert said["missing"] == 0


def test_a_cell_with_other_settings_is_missing(results):
    (cell, *_) = paper.missing(results, "cpu", ["gcn-accuracy"])[0].together
    other = paper.plain(paper.shown_settings(cell)) | {"max_iter": 7}
    for settings, n in ((other, 3), (paper.plain(paper.shown_settings(cell)), 2)):
        record = {"cells": [{"name": cell.name, "settings": settings}]}
        (results / "gcn-accuracy.json").write_text(json.dumps(record), encoding="utf-8")
        assert len(paper.missing(results, "cpu", ["gcn-accuracy"])[0].together) == n
