"""Methods with settings of their own: ``adam:batch=256`` and what it becomes."""

from __future__ import annotations

import pytest

from dladmm import InputError, baselines
from dladmm.cli.run_config import RunConfig
from dladmm.compare.comparison import Comparison, run_comparison
from dladmm.compare.contender import METHODS, Contender
from dladmm.compare.table import show, summary
from dladmm.report.data import Run


def test_a_name_alone_has_no_settings():
    assert Contender.parse(" adam ") == Contender("adam", "adam", {})
    assert set(METHODS) == {"dladmm", "accelerated", "streaming", "cross-fitted", *baselines.METHODS}


def test_settings_follow_the_name():
    found = Contender.parse("adam:batch=256:lr=0.002:schedule=linear:passes=3:scaled=yes")
    assert found.method == "adam"
    assert found.options == {
        "batch_size": 256,
        "lr": 0.002,
        "schedule": "linear",
        "max_iter": 3,
        "scale_inputs": True,
    }
    assert found.folder == "adam-batch-256-lr-0.002-schedule-linear-passes-3-scaled-yes"
    assert found.counts_passes
    assert Contender.parse("streaming").counts_passes
    assert not Contender.parse("adam").counts_passes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd:batch=8", "unknown method sgd; known are dladmm, accelerated, streaming"),
        ("adam:batch", "a method is written as adam or adam:batch=256"),
        (
            "adam:speed=9",
            "settings are batch, lr, passes, schedule, scaled, dropout, decay, objective, rows, got",
        ),
        ("accelerated:decay=0.1", "decay is for baselines; leave it out of 'accelerated:decay=0.1'"),
        ("adam:batch=many", "batch of adam must be a whole number, got 'many'"),
        ("adam:scaled=maybe", "scaled of adam must be yes or no, got 'maybe'"),
        ("lbfgs:batch=8", "lbfgs sees all samples in every iteration"),
        ("accelerated:batch=8", "accelerated sees all samples in every iteration"),
        ("cross-fitted:lr=0.1", "cross-fitted has the settings batch and passes alone"),
    ],
)
def test_what_is_not_understood_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        Contender.parse(text)


def comparison(*methods, **settings):
    config = RunConfig(dataset="digits", hidden=(8,), device="cpu", **settings)
    return Comparison(config, methods, passes=2)


def test_graphs_take_no_batches():
    with pytest.raises(InputError, match="adam:batch=8 has mini-batches of rows"):
        Comparison(RunConfig(network="gcn", dataset="karate"), ("adam:batch=8",))


def test_one_method_may_stand_there_with_several_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("dladmm.compare.comparison.write_figures", lambda *arguments, **options: [])
    monkeypatch.setattr("dladmm.training.run_folder.plot_curves", lambda *arguments: False)
    methods = ("streaming", "adam:batch=128", "adam:batch=256:lr=0.01:passes=3", "adam")
    wanted = comparison(*methods, max_iter=4)
    assert [cell.max_iter for cell in wanted.cells()] == [2, 2, 3, 4]
    runs = run_comparison(wanted, tmp_path, progress=False)
    assert [run.settings["method"] for run in runs] == list(methods)
    assert [run.iterations for run in runs] == [2, 2, 3, 4]
    assert (runs[1].settings["batch_size"], runs[1].settings["lr"]) == (128, 1e-3)
    assert (runs[2].settings["batch_size"], runs[2].settings["lr"]) == (256, 0.01)
    assert runs[0].certificate["baseline"] is None
    names = ["dlADMM (streaming)", "Adam (batch 128)", "Adam (batch 256, lr 0.01, passes 3)", "Adam"]
    assert [run.method_name for run in runs] == names
    with pytest.raises(InputError, match="named twice"):
        comparison("adam:batch=8", "adam: batch=8")


def test_levels_are_those_asked_for(capsys):
    columns = {"iteration": [1.0, 2.0], "seconds": [0.5, 1.5], "val_accuracy": [0.96, 0.984]}
    run = Run("a", {"method": "adam:batch=8", "seed": 0}, "MAX_ITER", "", columns, None, (), {})
    table = summary([run], (0.95, 0.983))
    entry = table["adam:batch=8"]
    assert (entry["iterations"], entry["seconds"]) == (2, 1.5)
    assert entry["reached"]["0.95"] == {"runs": 1, "iteration": 1, "seconds": 0.5}
    assert entry["reached"]["0.983"] == {"runs": 1, "iteration": 2, "seconds": 1.5}
    show(table, "levels")
    shown = capsys.readouterr().out
    for words in ("98.3 %", "batch=8", "1.5 s", "k 2"):
        assert words in shown
