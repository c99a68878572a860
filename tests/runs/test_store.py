"""A finished cell is a run folder, whole or not there."""

from __future__ import annotations

import json

import pytest

from dladmm.base.errors import InputError
from dladmm.report import read_report
from dladmm.runs.store import finished, save_accuracy


def test_a_cell_from_before_a_setting_that_does_not_touch_it_is_the_same_cell(tmp_path):
    wanted = {"activation": "relu", "max_iter": 3, "ramps": True}
    metrics = tmp_path / "metrics.json"
    metrics.write_text('{"settings": {"activation": "relu", "max_iter": 3}}')
    assert finished(tmp_path, wanted)
    metrics.write_text('{"settings": {"activation": "relu", "max_iter": 3, "ramps": false}}')
    with pytest.raises(InputError, match=r"other settings \(ramps\)"):
        finished(tmp_path, wanted)
    metrics.write_text('{"settings": {"activation": "sign", "max_iter": 3}}')
    with pytest.raises(InputError, match=r"other settings \(ramps\)"):
        finished(tmp_path, wanted | {"activation": "sign"})


def test_how_a_run_is_executed_tells_timed_cells_apart_alone(tmp_path):
    (tmp_path / "metrics.json").write_text('{"settings": {"max_iter": 3, "compile": false}}')
    assert finished(tmp_path, {"max_iter": 3, "compile": "auto"})
    (tmp_path / "metrics.json").write_text(
        '{"settings": {"max_iter": 3, "compile": false, "device": "cuda"}}'
    )
    with pytest.raises(InputError, match=r"other settings \(compile\)"):
        finished(tmp_path, {"max_iter": 3, "compile": "auto", "device": "cuda"})


def test_what_has_no_iterations_is_a_run_of_one(tmp_path):
    settings = {"method": "logistic", "seed": 3}
    save_accuracy(0.75, 0.5, tmp_path / "digits-logistic-3", settings)
    assert finished(tmp_path / "digits-logistic-3", settings)
    (run,) = read_report(tmp_path).runs
    assert (run.status, run.iterations, run.last("val_accuracy")) == ("MEASURED", 1, 0.75)
    assert run.seconds_per_iteration == 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["digits-logistic-3"]
    metrics = json.loads((tmp_path / "digits-logistic-3/metrics.json").read_text())
    assert metrics["last"] == {"val_accuracy": 0.75}
