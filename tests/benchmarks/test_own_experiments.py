"""The library's own experiments: small runs of each kind through the one machinery."""

from __future__ import annotations

import json

import numpy as np
import pytest
from experiments import estimators, run
from experiments.catalogue import NAMES, experiment
from experiments.networks import NETWORKS, StraightThrough

import dladmm
from dladmm.base.errors import InputError
from dladmm.cli.run_data import TableData
from dladmm.network.chain import Chain
from dladmm.runs.plan import cells
from dladmm.runs.problem import Problem


def rows(pixels: int) -> TableData:
    rng = np.random.default_rng(0)
    x, y = rng.random((12, pixels), dtype=np.float32), np.arange(12) % 10
    return TableData(x, y, x, y, 10, list(range(10)))


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_an_experiment_of_this_library(name):
    e = experiment(name)
    assert e.own
    assert not e.paper
    planned = cells(e, "cpu")
    assert len({cell.name for cell in planned}) == len(planned) > 0


@pytest.mark.parametrize("name", ["cnn", "elman", "gru"])
@pytest.mark.parametrize("pixels", [64, 784])
def test_networks_take_images_of_both_sizes(name, pixels):
    data = rows(pixels)
    network = NETWORKS[name](data, "accelerated", (), "relu")
    result = dladmm.train(network, data.x_train, data.y_train, max_iter=1, mode="accelerated", device="cpu")
    assert result.history.n_iter == 1


def test_signs_are_trained_by_adam_with_the_straight_through_estimator():
    assert isinstance(NETWORKS["sign"](rows(64), "accelerated", (), "relu"), Chain)
    assert any(isinstance(part, StraightThrough) for part in NETWORKS["sign"](rows(64), "adam", (), "relu"))


def test_rows_are_shuffled_alike_and_held_out_from_the_end():
    problem = Problem("mlp", rows(3))
    one, two = problem.shuffled(), problem.shuffled()
    assert (one.data.x_train == two.data.x_train).all()
    assert sorted(one.data.y_train) == sorted(problem.data.y_train)
    held = problem.holding_out(5).first(4)
    assert (held.data.x_train == problem.data.x_train[:4]).all()
    assert (held.data.y_test == problem.data.y_train[-5:]).all()
    with pytest.raises(InputError, match="network must be one of gcn, mlp"):
        Problem("cnn", rows(64))


def test_inputs_of_cross_validation_are_scaled():
    X = np.array([[1.0, 5.0], [3.0, 5.0]])
    assert (estimators._prepared(X, "times 100") == 100 * X).all()
    assert estimators._prepared(X, "standardised").tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert estimators._prepared(X, "as they are") is X


def test_the_command_runs_resumes_and_records(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    shared = ["convergent-digits", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert run.main([*shared, "--only", "digits-logistic-0", "--record"]) == 0
    assert "digits-logistic-0" in capsys.readouterr().out
    assert run.main([*shared, "--only", "digits-logistic-[01]", "--record"]) == 0
    assert "1 of 1, digits-logistic-1: MEASURED" in capsys.readouterr().err
    record = json.loads((tmp_path / "results/convergent-digits.json").read_text())
    recorded = {cell["name"]: cell["final"] for cell in record["cells"]}
    assert recorded == {"digits-logistic-0": 0.9583, "digits-logistic-1": 0.9583}
    assert run.main(["--list"]) == 0
    assert "networks-sign" in capsys.readouterr().out
    assert run.main(["nothing"]) == 2
    assert "unknown experiment 'nothing'; known are accelerated" in capsys.readouterr().err
