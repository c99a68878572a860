"""The reproduction: every item of the paper has its experiment, no cell runs twice, and verdicts are what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from dladmm import datasets
from dladmm.base.errors import InputError
from dladmm.base.status import Status
from dladmm.report import read_report
from dladmm.report.data import Run
from dladmm.reproduce import ORDER, Session, experiment, reproduce, verdicts
from dladmm.reproduce.__main__ import main
from dladmm.reproduce.catalogue import chosen
from dladmm.reproduce.claims import CHECKS
from dladmm.reproduce.command import reproduce_one, run, write_summary
from dladmm.reproduce.fits import growth
from dladmm.reproduce.outcomes import outcome
from dladmm.reproduce.pages import markdown, show
from dladmm.reproduce.paper import figures
from dladmm.reproduce.timing import time_findings
from dladmm.reproduce.verdicts import Finding
from dladmm.runs import running as running_module
from dladmm.runs.estimate import words
from dladmm.runs.evidence import Evidence, Mean, gather, seconds_per_epoch
from dladmm.runs.experiment import from_settings
from dladmm.runs.pausing import Pausing
from dladmm.runs.plan import cells
from dladmm.runs.running import announce

LABELS = {
    "tab:MLP dataset", "fig:convergence", "fig:divergence", "fig:MLP test", "tab:running time 1",
    "tab:running time 2", "tab:gcn dataset", "fig:gcn convergence", "fig:gcn divergence", "tab:gcn performance",
    "tab:running time 3", "fig:gcn memory",
}  # fmt: skip
"""Every table and figure of the paper's section on experiments."""

TIME = {
    "title": "time", "paper": "", "kind": "time", "network": "mlp", "datasets": ["digits"], "layers": 1,
    "max_iter": 3, "axis": "neurons", "rows": 50, "grid": {"rho": [0.1, 1.0], "neurons": [2, 4]},
    "methods": {"dladmm-paper": {"trainer": "dladmm", "preset": "paper", "rho_rule": "none"}},
}  # fmt: skip
ACCURACY = {
    "title": "accuracy", "paper": "", "kind": "accuracy", "network": "gcn", "datasets": ["karate"], "hidden": [4],
    "max_iter": 3, "seeds": 2, "diagnostics_every": 1,
    "methods": {"dladmm": {"chosen": True}, "adam": {}},
}  # fmt: skip


def small(settings=TIME, scale="full", name="mlp-time-neurons", **changes):
    return from_settings(name, scale, json.loads(json.dumps(settings | changes)))


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path, say=lambda line: None)


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr("dladmm.reproduce.command.find_spec", lambda name: None)


# Configurations ------------------------------------------------------------------------------------------------


def test_every_item_of_the_paper_has_an_experiment_and_its_figures():
    assert {experiment(name).paper for name in ORDER} - {""} == LABELS
    assert set(figures()) == LABELS
    for label, paper in figures().items():
        assert paper["caption"], label
        assert paper.get("claims") or any(isinstance(part, dict) for part in paper.values()), label
        assert all(about["check"] in CHECKS for about in paper.get("claims", ()))


@pytest.mark.parametrize("name", ORDER)
def test_cells_have_distinct_names_and_quick_ones_are_small(name):
    full, quick = (cells(experiment(name, scale), "cpu") for scale in ("full", "quick"))
    assert len({cell.name for cell in full}) == len(full)
    assert all(cell.max_iter <= 30 and max(cell.hidden) <= 128 and cell.seed <= 1 for cell in quick)
    assert all(cell.rows is None or cell.rows <= 4000 for cell in quick)
    if experiment(name).network == "mlp":
        assert all(cell.rows for cell in quick)
    assert not full or [cell.settings for cell in full] != [cell.settings for cell in quick]
    if experiment(name).kind == "time":
        paper = figures().get(experiment(name).paper, {})
        for dataset in paper.keys() - {"caption"}:
            e = experiment(name)
            assert paper[dataset]["rho"] == e.grid["rho"]
            sizes = e.grid[e.axis]
            assert paper[dataset][e.axis] == (sizes[dataset] if isinstance(sizes, dict) else sizes)
            assert [len(row) for row in paper[dataset]["seconds"]] == [5] * 5


def test_the_papers_settings_stand_in_the_configurations():
    accuracy = {
        c.settings["method"]: c for c in cells(experiment("mlp-accuracy"), "cpu") if c.dataset == "mnist"
    }
    assert set(accuracy) == {"dladmm-paper", "accelerated", "gd", "adagrad", "adadelta", "adam", "admm"}
    paper = accuracy["dladmm-paper"].settings
    assert (paper["rho"], paper["nu"], paper["hidden"], paper["max_iter"]) == (1e-6, 1e-6, [1000, 1000], 200)
    assert (paper["rho_rule"], paper["start"], paper["alpha0"]) == ("authors", "paper", 1.0)
    assert accuracy["admm"].settings["rho"] == 1.0
    assert accuracy["gd"].settings["lr"] == 1e-6
    (mnist, _) = cells(experiment("mlp-convergence"), "cpu")
    assert (mnist.settings["rho"], mnist.settings["nu"], mnist.settings.get("rho_rule")) == (1.0, 1e-6, None)
    graphs = cells(experiment("gcn-accuracy"), "cpu")
    assert {c.seed for c in graphs} == set(range(10))
    assert len({(c.dataset, c.settings["method"]) for c in graphs}) == 5 * 8
    labelled = next(c for c in graphs if c.name == "pubmed-dladmm-0")
    assert (labelled.settings["mu"], labelled.max_iter) == (0.5, 15)  # docs/graphs.md


def test_unknown_names_and_scales_are_refused():
    with pytest.raises(InputError, match="unknown experiment 'mlp'; known are mlp-data"):
        experiment("mlp")
    with pytest.raises(InputError, match="scale must be full or quick"):
        experiment("mlp-data", "tiny")
    with pytest.raises(InputError, match="experiment x: unknown setting epochs"):
        small(epochs=3, name="x")
    assert chosen("all") == list(ORDER)
    assert chosen("gcn-data, mlp-data") == ["gcn-data", "mlp-data"]


# Running -------------------------------------------------------------------------------------------------------


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
def test_other_settings_are_refused_or_run_again(session):
    reproduce_one(small(), session)
    with pytest.raises(
        InputError, match=r"holds a run with other settings \(max_iter\); --redo runs it again"
    ):
        reproduce_one(small(max_iter=2), session)
    said = []
    assert reproduce_one(small(max_iter=2), replace(session, redo=True, say=said.append))
    assert sum("other settings (max_iter)" in line for line in said) == 4
    assert {run.iterations for run in read_report(session.out).runs} == {2}
    said.clear()
    announce([small(ACCURACY, name="gcn-accuracy"), small(max_iter=2)], replace(session, say=said.append))
    assert said[0].startswith("4 cells to run in all, about ")


@pytest.mark.usefixtures("undrawn")
def test_pieces_made_elsewhere_are_summed_up(session):
    e = small()
    half = replace(session, only="digits-*-neurons-2-*")
    reproduce_one(e, half)
    broken = (
        session.out / e.id / "cells/.digits-0.partial"
    )  # as a process leaves it that dies while it writes
    broken.mkdir()
    (broken / "history.csv").write_text("iteration")
    assert len(read_report(session.out).runs) == 2
    evidence = gather(session.out / e.id, cells(e, "cuda"))  # the device is the cells' own affair
    assert (len(evidence.runs), evidence.missing) == (2, 2)
    assert not gather(session.out / e.id, cells(replace(e, max_iter=9), "cpu")).runs
    late = replace(session, minutes=-1.0)
    assert not reproduce_one(e, late)
    assert reproduce_one(e, replace(session, collect=True))
    assert {f.verdict for f in time_findings(e, evidence, {})} == {verdicts.MISSING}


@pytest.mark.usefixtures("undrawn")
def test_shares_divide_the_cells_between_sessions(session):
    e = small()
    shares = [replace(session, share=(i, 3)) for i in (1, 2, 3)]
    names = [
        [cell.name for cell in running_module.missing_cells(cells(e, "cpu"), share.out / e.id, share)]
        for share in shares
    ]
    assert sorted(name for some in names for name in some) == sorted(cell.name for cell in cells(e, "cpu"))
    for share in shares:
        assert reproduce_one(e, share)
    assert running_module.missing_cells(cells(e, "cpu"), session.out / e.id, session) == []


@pytest.mark.parametrize("share", ["0/2", "3/2", "2", "a/b", "-1/2"])
def test_a_share_that_is_none_is_refused(share, tmp_path):
    with pytest.raises(InputError, match="--share must be I/N"):
        run("mlp-data", "quick", out=tmp_path, share=share)


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


def test_a_long_cell_goes_on_from_its_checkpoint(session, tmp_path):
    e = small(max_iter=6, grid={"rho": [0.1], "neurons": [3]})
    (cell,) = cells(e, "cpu")
    whole = running_module.train(cell, session, [])

    class Killed(Exception):
        pass

    class Kill(Pausing):
        def on_epoch_end(self, trainer):
            super().on_epoch_end(trainer)
            if trainer.history.n_iter == 4:
                raise Killed

    folder = tmp_path / "partial"
    with pytest.raises(Killed):
        running_module.train(cell, session, [Kill(folder, cell.settings, seconds=0.0)])
    pause = Pausing(folder, cell.settings)
    resumed = running_module.train(cell, session, [pause])
    for name in ("lagrangian", "primal_residual"):
        assert resumed.history[name] == whole.history[name]
    assert (
        resumed.history["seconds"][3] != whole.history["seconds"][3]
    )  # the first four are those of the killed run
    other = Pausing(folder, cell.settings | {"max_iter": 7})
    running_module.train(cell, session, [other])
    assert not folder.exists()  # a checkpoint of other settings is not taken up
    pause.clear()


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


# Verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (Mean(0.81, 0.01, 10), Mean(0.814, 0.003, 10), "agrees"),
        (Mean(0.81, 0.001, 10), Mean(0.82, 0.001, 10), "better"),
        (Mean(0.81, 0.001, 10), Mean(0.80, 0.001, 10), "differs"),
        (Mean(0.61, 0.05, 10), Mean(0.63, 0.05, 10), "agrees"),  # two standard errors are 0.045
        (Mean(0.61, 0.05, 10), Mean(0.68, 0.05, 10), "better"),
    ],
)
def test_accuracies_are_judged_by_their_standard_error(paper, ours, verdict):
    assert verdicts.accuracy(paper, ours) == verdict


def test_costs_exponents_and_claims_are_judged():
    assert [verdicts.cost(10, ours) for ours in (4, 6, 19, 21)] == ["better", "agrees", "agrees", "differs"]
    assert [verdicts.exponent(1, ours) for ours in (0.7, 0.8, 1.2, 1.3)] == [
        "better",
        "agrees",
        "agrees",
        "differs",
    ]
    finding = Finding("what", "1", "2", "differs", "because")
    assert finding.at(True) == finding
    assert finding.at(False) == Finding("what", "1", "2", "quick: not comparable")
    assert Finding("what", "1", "-", verdicts.MISSING).at(False).verdict == "not run"


def test_exponents_are_found_again_in_made_up_timings():
    x = [100, 200, 400, 800]
    fit = growth(x, [[c * size**1.7 for size in x] for c in (0.1, 3.0)])
    assert (fit.exponent, fit.top, fit.r2) == pytest.approx((1.7, 1.7, 1.0))
    launched = growth(x, [[1e5 + size**2 for size in x]])
    assert launched.exponent < launched.top < 2  # a fixed cost hides the growth at small sizes
    assert growth(x, [[5.0] * 4]).exponent == pytest.approx(0)
    for wrong in ([[1, 2, 0, 4]], [[1, 2, 3]]):
        with pytest.raises(InputError, match="growth needs"):
            growth(x, wrong)
    with pytest.raises(InputError, match="two or more distinct"):
        growth([3, 3], [[1, 2]])


def made(e, curves, seconds=0.5):
    """Evidence of runs with given curves by cell; ``curves`` says what columns a cell has."""
    runs = {}
    for cell in cells(e, "cpu"):
        columns = curves(cell)
        n = len(next(iter(columns.values())))
        columns |= {
            "iteration": [k + 1.0 for k in range(n)],
            "seconds": [seconds * (k + 1) for k in range(n)],
        }
        runs[cell.name] = Run(cell.name, cell.settings, "MAX_ITER", "", columns, None, (), {"device": "cpu"})
    return Evidence(tuple(cells(e, "cpu")), runs, {})


def found(e, evidence):
    return outcome(e, evidence).findings


def test_the_papers_sentences_about_curves_are_checked():
    e = experiment("mlp-convergence")
    smooth = {"lagrangian": [9.0, 5.0, 4.0], "primal_residual": [3.0, 2.0, 2.5]}
    first = found(e, made(e, lambda cell: dict(smooth)))
    assert [f["verdict"] for f in first] == ["agrees", "agrees", "differs", "differs"]
    assert first[2]["ours"] == "3 to 2.5, 1 rises in 3 epochs"
    assert "No theorem promises" in first[2]["why"]
    assert {f["verdict"] for f in found(replace(e, scale="quick"), made(e, lambda cell: dict(smooth)))} == {
        verdicts.QUICK
    }
    assert {f["verdict"] for f in found(e, Evidence(tuple(cells(e, "cpu")), {}, {}))} == {"not run"}
    e = experiment("gcn-divergence")

    def curves(cell):
        wild = cell.dataset == "cora"
        return {
            "lagrangian": [1.0, 2.0] if wild else [2.0, 1.0],
            "primal_residual": [1.0, 2.0 if wild else 0.5],
        }

    assert [f["verdict"] for f in found(e, made(e, curves))] == ["agrees"] * 4


def test_accuracies_stand_beside_the_papers_table():
    e = experiment("gcn-accuracy")
    paper = figures()["tab:gcn performance"]

    def curves(cell):
        row = paper.get(cell.settings["method"], paper["dladmm"])
        low = -0.3 if cell.settings["method"] == "adadelta" else 0.0
        return {"val_accuracy": [0.1, row[cell.dataset][0] + low]}

    said = found(e, made(e, curves))
    verdict = {f["what"]: f["verdict"] for f in said}
    assert verdict["test accuracy, cora, Adam"] == "agrees"
    assert verdict["test accuracy, pubmed, Adadelta"] == "differs"
    ours = {f["what"]: f["ours"] for f in said}
    assert ours["test accuracy, cora, Adam"] == "0.7814 ± 0.0000"
    assert ours["test accuracy, cora, Adadelta"] == "0.4236 ± 0.0000, highest on the way 0.4236"
    assert "hardly moves" in next(f["why"] for f in said if f["verdict"] == "differs")
    assert [f["verdict"] for f in said if f["what"].endswith("best")] == ["agrees"] * 5
    curve = [0.5, 0.81, *[0.9] * 17, 0.95]

    def methods(cell):
        late = cell.settings["method"] in ("gd", "adadelta", "adagrad")
        values = {"admm": [0.8, 0.7], "adam": [0.99]}.get(cell.settings["method"], curve)
        return {"val_accuracy": [0.1, 0.2, 0.3, *values] if late else list(values)}

    e = experiment("mlp-accuracy")
    assert [f["verdict"] for f in found(e, made(e, methods))] == ["agrees"] * 10


def test_times_stand_beside_the_papers_table():
    e = experiment("mlp-time-neurons")
    paper = figures()[e.paper]

    def evidence(factor):
        parts = {}
        for cell in cells(e, "cpu"):
            row = paper[cell.dataset]["rho"].index(cell.options["rho"])
            seconds = paper[cell.dataset]["seconds"][row][e.grid["neurons"].index(cell.hidden[0])]
            one = made(
                replace(e, datasets=(cell.dataset,)),
                lambda _: {"lagrangian": [3.0, 2.0, 1.0]},
                seconds / factor,
            )
            parts[cell.name] = one.runs[cell.name]
        return Evidence(tuple(cells(e, "cpu")), parts, {})

    same, faster = (found(e, evidence(factor)) for factor in (1.0, 100.0))
    assert {f["verdict"] for f in same} == {"agrees"}
    assert [f["verdict"] for f in faster if "seconds an epoch" in f["what"]] == ["better"] * 2
    assert "100 times as fast" in faster[0]["ours"]
    powers = [f for f in faster if "to the power" in f["what"]]
    assert all(f["paper"] == f["ours"] for f in powers)
    assert [f["what"].split()[-4] for f in powers] == ["neurons", "rho"] * 2


def test_memory_stands_beside_the_papers_figure():
    e = experiment("gcn-memory")
    nodes = {name: figures()["tab:gcn dataset"][name]["nodes"] for name in e.datasets}
    evidence = made(e, lambda cell: {"lagrangian": [1.0]})
    sparse = {c.name: 1e4 * nodes[c.dataset] for c in evidence.cells}
    verdict = [f["verdict"] for f in found(e, replace(evidence, memory=sparse))]
    assert verdict == ["agrees", "better", "agrees", "agrees", *["agrees"] * 5]
    wide = {c.name: 1e3 * nodes[c.dataset] * c.hidden[0] for c in evidence.cells}
    assert [f["verdict"] for f in found(e, replace(evidence, memory=wide))][-5:] == ["differs"] * 5


def test_seconds_are_the_median_of_the_epochs_after_the_first():
    columns = {"iteration": [1.0, 2.0, 3.0, 4.0], "seconds": [9.0, 10.0, 11.0, 14.0]}
    assert seconds_per_epoch(Run("r", {}, "", "", columns, None, (), {})) == 1.0
    assert [words(s) for s in (5, 600, 7200)] == ["about 5 s", "about 10 min", "about 2.0 h"]


# Pages and command lines ----------------------------------------------------------------------------------------


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
    docs = tmp_path / "results"
    docs.mkdir()
    (docs / "gcn-theory.json").write_text('{"command": "", "runs": []}')
    (docs / "reproduce-full.json").write_text(json.dumps(summary))
    page = render(docs)
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


@pytest.mark.realdata
def test_the_data_sets_have_the_papers_statistics(tmp_path):
    try:
        datasets.load("cora")
        datasets.load("mnist")
    except Exception as error:
        pytest.skip(f"no benchmark data: {error}")
    for name in ("mlp-data", "gcn-data"):
        e = experiment(name, "quick")
        assert {f["verdict"] for f in found(e, Evidence((), {}, {}))} == {"agrees"}


def test_what_the_library_chose_is_among_the_settings():
    """So that a cell is another cell when a default changes."""
    settings = cells(small(), "cpu")[0].settings
    assert (settings["start"], settings["init_std"], settings["growth"]) == ("paper", 0.1, 2.0)
