"""The command runs what is missing, draws, sums up and says how it stands beside the paper."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dladmm.base.errors import InputError
from dladmm.base.history import Status
from dladmm.report import read_report
from dladmm.reproduce import ORDER, reproduce
from dladmm.reproduce.__main__ import main
from dladmm.reproduce.command import reproduce_one, run, write_summary
from dladmm.reproduce.outcomes import outcome
from dladmm.reproduce.pages import markdown, show
from dladmm.runs import running as running_module
from dladmm.runs.evidence import gather
from dladmm.runs.plan import cells
from small_experiments import ACCURACY, small


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr("dladmm.reproduce.command.find_spec", lambda name: None)


@pytest.mark.usefixtures("undrawn")
def test_cells_are_run_folders_and_none_runs_twice(session, monkeypatch):
    e = small()
    assert reproduce_one(e, session)
    runs = read_report(session.out).runs
    assert len(runs) == 4
    assert all(run.settings["experiment"] == e.id and run.settings["train_rows"] == 50 for run in runs)
    assert [run.settings["device"] for run in runs] == ["cpu"] * 4
    monkeypatch.setattr(running_module, "train", None)  # would fail if anything ran
    assert reproduce_one(e, session)
    found = outcome(e, gather(session.out / e.id, cells(e, "cpu")))
    assert found.missing == 0
    assert found.table[0] == ["digits", "neurons", "2", "4"]
    assert [finding["verdict"] for finding in found.findings] == ["no figure of the paper"] * 2


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_cell_is_run_again_and_the_others_stay(session, monkeypatch):
    e, train = small(ACCURACY, name="gcn-accuracy"), running_module.train
    trained = []

    def interrupted(cell, session, callbacks):
        result = train(cell, session, callbacks)
        trained.append(cell.name)
        if len(trained) == 3:
            object.__setattr__(result, "status", Status.INTERRUPTED)
        return result

    monkeypatch.setattr(running_module, "train", interrupted)
    assert not reproduce_one(e, session)
    assert session.interrupted
    assert reproduce_one(e, session)
    assert trained == [f"karate-{name}" for name in ("dladmm-0", "dladmm-1", "adam-0", "adam-0", "adam-1")]
    table = outcome(e, gather(session.out / e.id, cells(e, "cpu"))).table
    assert [row[0] for row in table] == ["dlADMM", "Adam"]
    assert "±" in table[0][1]


@pytest.mark.slow
def test_memory_is_weighed_in_a_process_of_its_own(session):
    settings = {
        "title": "memory", "paper": "fig:gcn memory", "kind": "memory", "network": "gcn", "datasets": ["sbm"],
        "layers": 1, "max_iter": 1, "axis": "neurons", "grid": {"neurons": [2, 256]}, "data": {"n_nodes": 20000},
        "methods": {"dladmm-paper": {"trainer": "dladmm", "w_solver": "quadratic"}},
    }  # fmt: skip
    e = small(settings, name="gcn-memory")
    assert reproduce_one(e, session)
    few, many = gather(session.out / e.id, cells(e, "cpu")).memory.values()
    assert many - few > 20000 * 250 * 4  # one Z in float32 at the least
    assert (session.out / e.id / "figures/memory.svg").exists()


@pytest.mark.parametrize("share", ["0/2", "3/2", "2", "a/b", "-1/2"])
def test_a_share_that_is_none_is_refused(share, tmp_path):
    with pytest.raises(InputError, match="--share must be I/N"):
        run("mlp-data", "quick", out=tmp_path, share=share)


@pytest.mark.usefixtures("undrawn")
def test_the_summary_renders_in_the_terminal_and_on_the_page(session, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "dladmm.reproduce.command.experiment", lambda name, scale: small(scale=scale, name=name)
    )
    summary, complete = reproduce(["mlp-time-neurons"], "full", session)
    assert complete
    assert json.loads((session.out / "summary.json").read_text()) == summary
    assert (session.out / "summary.md").read_text() == markdown(summary).rstrip() + "\n"
    assert write_summary(session.out, "quick")["experiments"] == []
    show(summary, ["mlp-time-neurons"])
    printed = capsys.readouterr().out
    assert "time grows with neurons" in printed
    monkeypatch.setattr("dladmm.report.tables.find_spec", lambda name: None)  # without rich
    show(summary, ["mlp-time-neurons"])
    assert "time grows with neurons" in capsys.readouterr().out
    page = markdown(summary)
    assert "## Reproduction of the paper, scale full" in page
    assert "    dladmm reproduce mlp-time-neurons --scale full" in page
    assert str(tmp_path) not in page


def test_figures_are_drawn_for_times_and_curves(session):
    e = small(paper="tab:running time 1")
    reproduce_one(e, session)
    assert {p.name for p in (session.out / e.id / "figures").iterdir()} == {
        "digits-seconds.png",
        "digits-seconds.svg",
    }
    e = small(ACCURACY, name="gcn-accuracy", seeds=1, methods={"adam": {}})
    reproduce_one(e, session)
    assert (session.out / e.id / "figures/karate-accuracy.svg").exists()


def test_the_list_names_every_experiment(capsys):
    assert run("all", "quick", list_=True, json_=True) == 0
    lines = json.loads(capsys.readouterr().out)["experiments"]
    assert [line["id"] for line in lines] == list(ORDER)
    assert next(line for line in lines if line["id"] == "gcn-memory")["cells"] == 10


def test_errors_are_words_and_exit_code_2(capsys):
    assert main(["mlp", "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"].startswith("unknown experiment 'mlp'")
    assert printed.err.startswith("dladmm: unknown experiment")


BLOCKED = """
import runpy, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "pooch", "safetensors", "matplotlib", "torch_geometric", "pandas"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import importlib.util
real = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name in ("typer", "rich", "matplotlib") else real(name, package)
importlib.util.find_spec = find_spec
sys.argv = ["dladmm", *sys.argv[1:]]
runpy.run_module("dladmm", run_name="__main__")
"""


@pytest.mark.slow
def test_it_runs_where_nothing_but_torch_numpy_scipy_and_scikit_learn_is_installed(tmp_path):
    arguments = ["reproduce", "gcn-time-edges", "--scale", "quick", "--device", "cpu", "--out", "o"]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 cells to run, about" in done.stderr
    assert "time grows with edges to the power" in done.stdout
    assert not (tmp_path / "o/gcn-time-edges/figures").exists()
