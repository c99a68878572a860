"""Accuracy by iteration, and the record of a cell."""

from __future__ import annotations

import json

import pytest

from dladmm.report.data import Run
from dladmm.runs.accuracy import by_iteration, first_reaching
from dladmm.runs.plan import cells
from dladmm.runs.record import merged, record, run_experiment, shown_settings
from small_experiments import ACCURACY, small


def test_accuracy_by_iteration_is_read_in_one_place():
    columns = {"iteration": [1.0, 2.0, 5.0], "val_accuracy": [0.5, None, 0.9]}
    run = Run("r", {}, "", "", columns, None, (), {})
    assert by_iteration(run) == {1: 0.5, 5: 0.9}
    assert [first_reaching(run, accuracy) for accuracy in (0.4, 0.9, 0.91)] == [1, 5, None]


@pytest.mark.parametrize("method", ["accelerated", "adam"])
def test_the_record_says_what_the_run_said(method, session):
    e = small(
        ACCURACY, network="mlp", datasets=["digits"], hidden=[20], max_iter=5, seeds=1, methods={method: {}},
        diagnostics_every=5, rows=300, own=True, name="own",
    )  # fmt: skip
    complete, evidence = run_experiment(e, session)
    assert complete
    written = json.loads((session.out / "own/record.json").read_text())
    assert written == record(e, evidence)
    (found,) = written["cells"]
    (cell,) = cells(e, "cpu")
    (run,) = evidence.runs.values()
    assert written["command"] == "python benchmarks/experiments/run.py own"
    assert found["settings"] == shown_settings(cell)
    assert list(found["test_accuracy"]) == ["1", "2", "3", "4", "5"]  # though the rest is measured once
    assert found["final"] == found["test_accuracy"]["5"] == round(run.last("val_accuracy"), 4)
    assert (found["iterations"], found["status"], found["samples"]) == (5, "MAX_ITER", 300)
    assert found["rises"] == len(run.certificate["descent_violations"])
    assert ("refused" in found) == (method == "accelerated")
    assert found["seconds_per_iteration"] == run.seconds_per_iteration


def test_cells_of_the_paper_are_timed_where_they_ran_alone(session):
    e = small(ACCURACY, seeds=2, methods={"adam": {}})
    _, evidence = run_experiment(e, session)
    assert not any("median_seconds" in cell for cell in record(e, evidence)["cells"])
    first, second = record(e, evidence, alone="other-*, *-adam-1")["cells"]
    assert "seconds_per_iteration" not in first
    assert second["seconds_per_iteration"] > 0
    assert second["median_seconds"] > 0


def test_new_cells_replace_those_of_the_same_name():
    old = {"experiment": "e", "cells": [{"name": "a", "final": 1}, {"name": "b", "final": 2}]}
    new = {"experiment": "e", "cells": [{"name": "b", "final": 3}, {"name": "c", "final": 4}]}
    assert merged(None, new) == new
    assert [cell["final"] for cell in merged(old, new)["cells"]] == [1, 3, 4]
