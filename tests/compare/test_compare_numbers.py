"""Comparisons where numbers are predicted: prices of houses were once taken for 420 classes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from command_line import in_this_process
from dladmm import InputError, baselines
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import load_rows
from dladmm.cli.run_train import run_training
from dladmm.compare.comparison import Comparison, run_comparison, usual_methods
from dladmm.compare.contender import USUAL, Contender, passes_for
from dladmm.compare.table import show, summary
from dladmm.network.chain import mlp

METHODS = ("dladmm", "accelerated", "streaming", "adam:batch=32", "lbfgs", "admm", "cross-fitted")


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """A table as people have it: semicolons, words, gaps, and prices that are all different whole numbers."""
    rng = np.random.default_rng(0)
    rows = 420
    area, town = rng.uniform(40, 240, rows), rng.choice(["Ulm", "Bonn", "Kiel"], rows)
    dear = np.array([{"Ulm": 1.0, "Bonn": 1.5, "Kiel": 0.8}[each] for each in town])
    price = 60_000 + 2_100 * area * dear + rng.permutation(rows)
    gap = rng.random(rows) < 0.1
    lines = [
        f"{'' if g else format(a, '.1f')};{t};{p:.0f}"
        for a, t, p, g in zip(area, town, price, gap, strict=True)
    ]
    path = tmp_path_factory.mktemp("houses") / "houses.csv"
    path.write_text("area;town;price\n" + "\n".join(lines))
    return path


@pytest.fixture(scope="module")
def compared(houses, tmp_path_factory):
    """Every kind of method on the houses, without pictures."""
    out = tmp_path_factory.mktemp("compared")
    config = RunConfig(csv=str(houses), target="price", hidden=(8,), max_iter=8, device="cpu")
    comparison = Comparison(config, METHODS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dladmm.compare.comparison.write_figures", lambda *arguments, **options: [])
        patch.setattr("dladmm.training.run_folder.plot_curves", lambda *arguments: False)
        runs = run_comparison(comparison, out, progress=False)
    return comparison, runs


def test_prices_are_numbers_for_every_method(compared):
    comparison, runs = compared
    assert comparison.problem.task.kind == "regression"
    assert comparison.problem.data.n_outputs == 1
    for run in runs:
        assert run.settings["loss"] == "squared"
        assert run.settings["scale_targets"] is True
        assert run.settings.get("scale_inputs", False) is (run.method != "cross-fitted")  # copies always do
        assert run.last("val_accuracy") is None
        assert None not in run.column("val_r2")
        assert run.tested["task"] == "regression"
        if run.method != "cross-fitted":  # whose history is of rows that a copy did not see
            assert run.tested["r2"] == pytest.approx(run.last("val_r2"), abs=1e-4)
    assert runs[1].last("val_r2") > 0.7  # accelerated mode, in the target's own units


def test_errors_are_in_units_of_the_target(houses, compared):
    comparison, runs = compared
    rows = load_rows(comparison.config)
    result = baselines.train(
        "lbfgs",
        mlp([rows.x_train.shape[1], 8, 1]),
        rows.x_train,
        rows.y_train,
        loss="squared",
        scale_inputs=True,
        scale_targets=True,
        max_iter=8,
        device="cpu",
    )
    import torch

    with torch.no_grad():
        wrong = result.module(torch.as_tensor(rows.x_test, dtype=torch.float32)).numpy() - rows.y_test
    tested = runs[METHODS.index("lbfgs")].tested
    assert tested["mae"] == pytest.approx(np.abs(wrong).mean(), rel=1e-4)
    assert tested["rmse"] == pytest.approx(np.sqrt((wrong**2).mean()), rel=1e-4)
    assert tested["n_rows"] == 84


def test_the_table_has_r2_mae_and_rmse(compared, capsys):
    _, runs = compared
    table = summary(runs)
    entry = table["accelerated"]
    assert entry["test_r2"]["mean"] == runs[1].tested["r2"]
    assert entry["mae"]["mean"] == runs[1].tested["mae"]
    assert list(entry["reached"]) == ["0.50", "0.80", "best"]
    first = next(k for k, r2 in enumerate(runs[1].column("val_r2"), 1) if r2 >= 0.5)
    assert entry["reached"]["0.50"]["iteration"] == first
    assert summary(runs, (0.1,))["accelerated"]["reached"].keys() == {"0.10", "best"}
    show(table, "houses")
    shown = capsys.readouterr().out
    for words in ("R^2", "MAE", "RMSE", "≥ 0.5", f"{entry['rmse']['mean']:,.0f}"):
        assert words in shown
    assert "…" not in shown  # nothing is cut off in 80 columns


def test_copies_are_those_of_dladmm_train_and_judged_by_the_test_rows(compared, tmp_path):
    comparison, runs = compared
    run = runs[METHODS.index("cross-fitted")]
    asked = replace(
        comparison.config, mode="cross-fitted", dtype="auto", max_iter=8, out=str(tmp_path / "own")
    )
    trained = json.loads((run_training(asked, False).folder / "metrics.json").read_text())
    assert run.tested["mae"] == pytest.approx(trained["tested"]["mae"], rel=1e-6)
    entry = summary([run])["cross-fitted"]
    assert entry["test_r2"]["mean"] == run.tested["r2"] != run.last("val_r2")
    assert entry["best_test_r2"]["mean"] is None


def test_what_cannot_be_cross_fitted_is_left_out_or_refused(houses):
    given = {"csv": str(houses), "target": "price"}
    assert "cross-fitted" in usual_methods(RunConfig(**given))
    assert "cross-fitted" not in usual_methods(RunConfig(**given, regularizer="l2:0.1"))
    assert "cross-fitted" not in usual_methods(RunConfig(network="gcn", dataset="karate"))
    with pytest.raises(InputError, match="has no penalty on the weights"):
        Comparison(RunConfig(**given, regularizer="l2:0.1"), ("cross-fitted",))


def test_the_task_can_be_asked_for(houses, tmp_path):
    few = tmp_path / "few.csv"
    few.write_text("a,stars\n" + "\n".join(f"{k % 7},{k % 5 + 1}" for k in range(60)))
    config = {"csv": str(few), "target": "stars", "hidden": (4,)}
    assert Comparison(RunConfig(**config), ("adam",)).problem.task.kind == "classification"
    asked = Comparison(RunConfig(**config, task="regression"), ("adam",))
    assert asked.cell("adam", 0).loss == "squared"
    with pytest.raises(InputError, match="nodes of a graph are classified"):
        Comparison(RunConfig(network="gcn", dataset="karate", task="regression"), ("adam",))


def test_the_command_says_what_was_decided(houses, tmp_path, monkeypatch):
    monkeypatch.setattr("dladmm.compare.comparison.write_figures", lambda *arguments, **options: [])
    monkeypatch.setattr("dladmm.training.run_folder.plot_curves", lambda *arguments: False)
    given = ("mlp", "--csv", houses, "--target", "price", "--hidden", 4, "--max-iter", 2, "--methods", "adam")
    done = in_this_process("compare", *given, "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "regression, loss squared (the target has 420 distinct numbers; --task" in done.stderr
    assert "336 training rows, 84 test rows, 5 features, 1 output" in done.stderr
    assert "RMSE" in done.stdout
    written = json.loads((tmp_path / "o/comparison.json").read_text())
    assert written["task"]["kind"] == "regression"
    assert written["methods"]["adam"]["test_r2"]["mean"] < 1


def test_mini_batch_adam_is_among_the_usual_methods():
    usual = [Contender.parse(name) for name in USUAL]
    assert any(each.method == "adam" and each.counts_passes for each in usual)
    assert [passes_for(n) for n in (100, 10_000, 60_000)] == [100, 26, 10]
