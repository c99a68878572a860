"""Comparisons: every cell a run folder, none computed twice, and a table that says what the cells say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from command_line import in_this_process
from dladmm import InputError, Status, baselines
from dladmm.api import train as api
from dladmm.base.errors import DataError
from dladmm.cli.run_config import RunConfig
from dladmm.compare import comparison as compare
from dladmm.compare.comparison import Comparison, run_comparison
from dladmm.compare.contender import METHODS
from dladmm.compare.table import show, summary
from dladmm.report import read_report
from dladmm.report.data import Run
from dladmm.runs import running


@pytest.fixture
def own(tmp_path):
    """Three blobs in the plane, in a file of one's own."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(60, 2)) * 0.2 + np.c_[y, -y], y=y)
    return tmp_path / "own.npz"


@pytest.fixture
def undrawn(monkeypatch):
    """Without the figures of the comparison and of its cells, which take longer than the runs."""
    monkeypatch.setattr(compare, "write_figures", lambda *arguments, **options: [])
    monkeypatch.setattr("dladmm.training.run_folder.plot_curves", lambda *arguments: False)


def wanted(own, methods=("dladmm", "adam"), seeds=1, **settings):
    changes = settings.pop("changes", {})
    config = RunConfig(npz=str(own), hidden=(4,), device="cpu", **({"max_iter": 3} | settings))
    return Comparison(config, methods, seeds, changes)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.name == "history.csv"}


def test_every_method_gives_a_run_folder_with_everything_in_it(own, tmp_path):
    out = tmp_path / "all"
    runs = run_comparison(wanted(own, METHODS), out, progress=False)
    assert [run.name for run in runs] == [f"{method}-0" for method in METHODS]
    assert len(read_report(out).runs) == len(METHODS)
    for method, run in zip(METHODS, runs, strict=True):
        assert run.settings["method"] == method
        assert run.settings["dataset"] == "own"
        assert run.settings["seed"] == 0
        # Its looks at held-out rows
        assert len(run.columns["iteration"]) == (3 if method != "cross-fitted" else 2)
        assert None not in run.columns["val_accuracy"]
        baseline = method if method in baselines.METHODS else None
        assert run.certificate["baseline"] == baseline
        assert run.machine["device"] == "cpu"
    assert runs[METHODS.index("adam")].settings["lr"] == 1e-3
    assert runs[METHODS.index("admm")].settings["gamma"] == 10.0
    figures = {path.name for path in (out / "figures").iterdir()}
    for name in ("own-test-accuracy", "own-test-accuracy-by-seconds", "own-objective-f"):
        assert {f"{name}.png", f"{name}.svg"} <= figures


@pytest.mark.usefixtures("undrawn")
def test_the_cells_are_what_the_front_doors_give(own, tmp_path):
    runs = run_comparison(wanted(own, ("accelerated", "gd"), 2, changes={"gd": {"lr": 0.01}}), tmp_path / "o")
    again = baselines.train(
        "gd", *_problem(own), lr=0.01, max_iter=3, random_state=1, scale_inputs=True, device="cpu"
    )
    assert [run.seed for run in runs] == [0, 1, 0, 1]
    assert runs[3].column("lagrangian") == again.history["lagrangian"]
    accelerated = api.train(*_problem(own), mode="accelerated", max_iter=3, random_state=0, device="cpu")
    assert runs[0].column("lagrangian") == accelerated.history["lagrangian"]


def _problem(own):
    from dladmm.cli.run_data import load_rows
    from dladmm.network.chain import mlp

    rows = load_rows(RunConfig(npz=str(own)))
    return mlp([2, 4, 3]), rows.x_train, rows.y_train


@pytest.mark.usefixtures("undrawn")
def test_what_is_done_is_not_done_again(own, tmp_path, monkeypatch):
    out = tmp_path / "o"
    run_comparison(wanted(own), out, progress=False)
    before = contents(out)
    more = wanted(own, ("dladmm", "adam", "lbfgs"), 2)
    trained, train = [], running.train

    def noted(cell, session, callbacks):
        trained.append(cell.name)
        return train(cell, session, callbacks)

    monkeypatch.setattr(running, "train", noted)
    runs = run_comparison(more, out, progress=False)
    assert trained == ["dladmm-1", "adam-1", "lbfgs-0", "lbfgs-1"]
    assert len(runs) == 6
    assert before.items() <= contents(out).items()
    monkeypatch.setattr(running, "train", None)
    assert len(run_comparison(more, out, progress=False)) == 6


@pytest.mark.usefixtures("undrawn")
def test_a_folder_with_other_settings_is_refused(own, tmp_path):
    run_comparison(wanted(own), tmp_path / "o", progress=False)
    with pytest.raises(InputError, match=r"dladmm-0 holds a run with other settings \(max_iter\)"):
        run_comparison(wanted(own, max_iter=4), tmp_path / "o", progress=False)
    (tmp_path / "o/cells/adam-0/metrics.json").write_text("[]")
    with pytest.raises(DataError, match="is not the metrics of a run"):
        run_comparison(wanted(own), tmp_path / "o", progress=False)


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_cell_is_not_kept_and_the_next_run_goes_on(own, tmp_path, monkeypatch):
    out, comparison = tmp_path / "o", wanted(own, ("adam", "gd"))
    train = running.train

    def interrupted(cell, session, callbacks):
        result = train(cell, session, callbacks)
        if cell.trainer == "gd":
            object.__setattr__(result, "status", Status.INTERRUPTED)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(running, "train", interrupted)
        assert run_comparison(comparison, out, progress=False) is None
    assert [path.name for path in (out / "cells").iterdir()] == ["adam-0"]
    (out / "cells/.gd-0.partial").mkdir()  # as a process leaves it that dies while it writes
    (out / "cells/.gd-0.partial/history.csv").write_text("half")
    assert len(run_comparison(comparison, out, progress=False)) == 2
    assert sorted(path.name for path in (out / "cells").iterdir()) == ["adam-0", "gd-0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"methods": ("sgd",)},
            "unknown method sgd; known are dladmm, accelerated, streaming, cross-fitted, gd",
        ),
        ({"methods": ()}, "no method was given"),
        ({"methods": ("adam", "adam")}, "named twice"),
        ({"methods": ("adam",), "seeds": 0}, "seeds must be a whole number >= 1"),
        ({"methods": ("adam",), "max_iter": 0}, "max_iter must be a whole number >= 1"),
        ({"methods": ("admm",), "network": "gcn"}, "trains MLPs only"),
        ({"methods": ("adam",), "network": "cnn"}, "network must be mlp or gcn"),
        ({"methods": ("adam",), "changes": {"fast": {}}}, "unknown method fast"),
    ],
)
def test_bad_comparisons_are_refused(own, arguments, message):
    with pytest.raises(InputError, match=message):
        wanted(own, **arguments)


@pytest.mark.usefixtures("undrawn")
def test_graphs_are_compared_too(tmp_path):
    config = RunConfig(network="gcn", dataset="karate", hidden=(8,), max_iter=4, device="cpu")
    comparison = Comparison(config, ("dladmm", "accelerated", "adam"))
    runs = run_comparison(comparison, tmp_path, progress=False)
    assert runs[0].settings["mu"] == 1.0  # the settings of docs/graphs.md
    assert runs[0].certificate["certified"]
    assert runs[2].settings["lr"] == 0.01
    regularised = Comparison(RunConfig(network="gcn", dataset="karate", regularizer="l2:0.5"), ("adam",))
    assert regularised.options("adam") == {"regularizer": {"name": "l2", "strength": 0.5}}


# The table ---------------------------------------------------------------------------------------------------------


def made(method, seed, seconds, accuracy, status="MAX_ITER"):
    columns = {
        "iteration": [float(k + 1) for k in range(len(seconds))],
        "seconds": seconds,
        "val_accuracy": accuracy,
    }
    return Run(f"{method}-{seed}", {"method": method, "seed": seed}, status, "", columns, None, (), {})


def test_the_table_counts_as_one_would_by_hand(capsys):
    runs = [
        made("adam", 0, [1.0, 2.0, 4.0], [0.5, 0.91, 0.90]),
        made("adam", 1, [1.0, 2.0, 3.0], [0.5, 0.6, 0.96], "CONVERGED"),
        made("gd", 0, [2.0], [None], "NON_FINITE"),
        made("admm", 0, [], [], "STALLED"),
        made("muon", 0, [1.0], [0.1], "NO_BETTER_THAN_CONSTANT"),
    ]
    table = summary(runs)
    adam = table["adam"]
    assert list(table) == ["adam", "gd", "admm", "muon"]
    assert adam["test_accuracy"]["mean"] == pytest.approx(0.93)
    assert adam["test_accuracy"]["deviation"] == pytest.approx(np.std([0.9, 0.96], ddof=1))
    assert adam["best_test_accuracy"]["mean"] == pytest.approx((0.91 + 0.96) / 2)
    assert adam["seconds_per_iteration"] == 1.0
    assert adam["reached"]["0.90"] == {"runs": 2, "iteration": 2.5, "seconds": 2.5}
    assert adam["reached"]["0.95"] == {"runs": 1, "iteration": 3.0, "seconds": 3.0}
    assert adam["reached"]["0.97"] == {"runs": 0, "iteration": None, "seconds": None}
    assert adam["reached"]["best"] == {"runs": 2, "iteration": 2.5, "seconds": 2.5}
    assert adam["status"] == {"MAX_ITER": 1, "CONVERGED": 1}
    assert table["gd"]["test_accuracy"] == {"mean": None, "deviation": None}
    assert table["admm"]["seconds_per_iteration"] is None
    json.dumps(table, allow_nan=False)
    show(table, "by hand")
    shown = capsys.readouterr().out
    for words in (
        "0.9300",
        "±0.0424",
        "k 2.5",
        "2.5 s",
        "1 of 2",
        "NON_FINITE",
        "NO BETTER",
        "THAN CONSTANT",
    ):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_the_command_line_prints_the_table_or_one_json_object(own, tmp_path):
    def dladmm(*arguments):
        return in_this_process("compare", *arguments, cwd=tmp_path)

    flags = ("mlp", "--npz", own, "--hidden", 4, "--max-iter", 3, "--methods", "adam, gd", "--lr", "gd=0.1")
    shown = dladmm(*flags, "--out", "o")
    assert shown.returncode == 0, shown.stderr
    assert "gd, seed 0 (2 of 2)" in shown.stderr
    assert "dladmm report o" in shown.stdout
    printed = dladmm(*flags, "--out", "o", "--json")
    table = json.loads(printed.stdout)
    assert printed.stderr == ""  # nothing was left to do
    assert list(table["methods"]) == ["adam", "gd"]
    assert table["cells"][1]["settings"]["lr"] == 0.1
    written = json.loads((tmp_path / "o/comparison.json").read_text())
    assert written["methods"] == table["methods"]
    assert str(tmp_path) not in json.dumps(written)
    refused = dladmm("mlp", "--npz", own, "--lr", "gd")
    assert refused.returncode == 2
    assert "--lr must look like adam=0.01" in refused.stderr


def test_a_run_that_ends_at_once_is_a_cell_too(own, tmp_path):
    changes = {"gd": {"lr": 1e30}}
    (run,) = run_comparison(wanted(own, ("gd",), changes=changes), tmp_path / "o", progress=False)
    assert run.status == "NON_FINITE"
    assert torch.isfinite(torch.tensor(run.certificate["largest_norm"] or 0.0))
    assert summary([run])["gd"]["runs"] == 1
