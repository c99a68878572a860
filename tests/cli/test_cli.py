"""The command line as a person types it: what it prints, writes, refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from command_line import in_this_process as dladmm
from dladmm import datasets
from dladmm.base.errors import InputError
from dladmm.cli.app import main
from dladmm.training.trainer import Trainer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 90)
    x = rng.normal(size=(90, 2)) * 0.3 + np.c_[kinds, -kinds]
    names = np.array(["red", "grün", "blue"])[kinds]
    lines = [f"{a:.4f},{b:.4f},{name}" for (a, b), name in zip(x, names, strict=True)]
    (folder / "own.csv").write_text("\n".join(["a,b,kind", *lines]), encoding="utf-8")
    np.savez(folder / "own.npz", x=x, y=kinds)
    np.savez(folder / "pickled.npz", x=np.array([object()], dtype=object), y=kinds)
    (folder / "broken.csv").write_text(
        "a,b,kind\n" + "".join(f"{k},{k},red\n" for k in range(30)) + "1,oops,blue\n", encoding="utf-8"
    )
    (folder / "short.csv").write_text("a,b,kind\n1,2\n", encoding="utf-8")
    (folder / "run.toml").write_text(
        'dataset = "digits"\nhidden = [12]\nmax_iter = 9\nseed = 4\n', encoding="utf-8"
    )
    (folder / "bad.toml").write_text("dataset = \n", encoding="utf-8")
    (folder / "unknown.toml").write_text('dataset = "digits"\nlearning_rate = 1\n', encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    done = dladmm(
        "train", "mlp", "--dataset", "digits", "--hidden", "20", "--mode", "convergent", "--max-iter", 6, "--out", "r",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_a_run_says_what_it_does_and_writes_its_folder(run, folder):
    for words in (
        "1437 training rows",
        "mlp 64-20-10",
        "1,510 parameters",
        "memory",
        "descent is guaranteed",
    ):
        assert words in run.stderr
    for words in ("test accuracy", "Property 2", "Wrote the run to r"):
        assert words in run.stdout
    assert run.stdout.index("a linear model") < run.stdout.index("About the optimisation"), (
        "what it is worth first"
    )
    written = {path.name for path in (folder / "r").iterdir()}
    assert {"config.toml", "history.csv", "metrics.json", "model.safetensors", "curves.png"} <= written


def test_json_is_one_object_and_nothing_else(folder):
    settings = ("--hidden", "5", "--mode", "convergent", "--max-iter", 3, "--json")
    done = dladmm("train", "mlp", "--npz", "own.npz", *settings, cwd=folder)
    report = json.loads(done.stdout)
    assert report["iterations"] == 3
    assert report["certificate"]["covered"] is True
    assert report["settings"]["npz"] == "own.npz"


def test_resume_goes_on_where_the_run_stood(run, folder):
    done = dladmm("train", "mlp", "--resume", "r", "--max-iter", 9, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    whole = dladmm(
        "train",
        "mlp",
        "--dataset",
        "digits",
        "--hidden",
        "20",
        "--mode",
        "convergent",
        "--max-iter",
        9,
        "--out",
        "w",
        "--json",
        cwd=folder,
    )
    assert json.loads(done.stdout)["last"]["lagrangian"] == json.loads(whole.stdout)["last"]["lagrangian"]


def test_csv_and_predict(folder):
    done = dladmm(
        "train", "mlp", "--csv", "own.csv", "--target", "kind", "--hidden", "8", "--max-iter", 25, "--out", "c",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = dladmm("predict", "c", "--csv", "own.csv", "--out", "p.csv", cwd=folder)
    assert "Wrote 90 predictions to p.csv" in done.stdout
    rows = (folder / "p.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "prediction,p(blue),p(grün),p(red)"
    truth = [line.split(",")[2] for line in (folder / "own.csv").read_text(encoding="utf-8").splitlines()[1:]]
    assert np.mean([row.split(",")[0] == kind for row, kind in zip(rows[1:], truth, strict=True)]) > 0.85


def test_regression_from_csv(folder):
    done = dladmm(
        "train", "mlp", "--csv", "own.csv", "--target", "kind", "--loss", "squared", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 2
    (folder / "reg.csv").write_text(
        "a,t\n" + "\n".join(f"{i / 40},{2 * i / 40 + 1}" for i in range(40)), encoding="utf-8"
    )
    done = dladmm(
        "train", "mlp", "--csv", "reg.csv", "--target", "t", "--loss", "squared", "--hidden", "6", "--max-iter", 60,
        "--out", "g", "--json", cwd=folder,
    )  # fmt: skip
    assert json.loads(done.stdout)["last"]["val_loss"] < 0.05
    done = dladmm("predict", "g", "--csv", "reg.csv", cwd=folder)
    assert (folder / "reg.predictions.csv").read_text(encoding="utf-8").startswith("prediction\n")


def test_config_file_and_flags_that_override_it(folder):
    done = dladmm(
        "train", "mlp", "--config", "run.toml", "--mode", "convergent", "--max-iter", 2, "--json", cwd=folder
    )
    report = json.loads(done.stdout)
    assert report["iterations"] == 2
    assert report["settings"]["hidden"] == [12]
    assert report["settings"]["seed"] == 4


@pytest.mark.usefixtures("short_teachers")
def test_gcn(folder):
    done = dladmm(
        "train", "gcn", "--dataset", "karate", "--hidden", "8", "--max-iter", 10, "--json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "GraphData(karate" in done.stderr
    assert json.loads(done.stdout)["last"]["train_accuracy"] > 0.5


@pytest.mark.usefixtures("short_teachers")
@pytest.mark.parametrize("mode", ["accelerated", "convergent", "streaming"])
def test_a_graph_with_sparse_features_is_trained_resumed_and_evaluated(mode, tmp_path, monkeypatch):
    dense = datasets.load("karate")
    graphs = {"dense": dense, "sparse": replace(dense, x=sparse.csr_array(dense.x.numpy()))}
    arrays, confusion = {}, {}
    for kind, graph in graphs.items():
        monkeypatch.setattr("dladmm.datasets.load", lambda name, data_dir=None, graph=graph: graph)
        words = f"train gcn --dataset karate --hidden 4 --mode {mode} --max-iter 3 --json --out {kind}"
        done = dladmm(*words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        done = dladmm(*f"train gcn --resume {kind} --max-iter 5 --json".split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        trained = json.loads(done.stdout)
        assert trained["iterations"] == 5
        judged = json.loads(dladmm("evaluate", kind, "--json", cwd=tmp_path).stdout)
        assert judged["confusion"] == trained["tested"]["confusion"]
        confusion[kind] = judged["confusion"]
        arrays[kind] = json.loads((tmp_path / kind / "data.json").read_text(encoding="utf-8"))["arrays"]
    assert arrays["sparse"] == arrays["dense"]
    if mode != "streaming":  # its steps depend on how the features are stored
        assert confusion["sparse"] == confusion["dense"]


@pytest.mark.skipif(not Path(os.environ.get("DLADMM_DATA") or "-").is_dir(), reason="DLADMM_DATA is not set")
@pytest.mark.realdata
@pytest.mark.usefixtures("short_teachers")
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "coauthor_cs", "coauthor_physics"])
def test_the_published_graphs(name, tmp_path):
    done = dladmm(
        "train", "gcn", "--dataset", name, "--hidden", "8", "--max-iter", 3, "--json", "--out", "run",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    judged = json.loads(dladmm("evaluate", "run", "--json", cwd=tmp_path).stdout)
    assert judged["n_rows"] == 1000
    assert judged["accuracy"] == json.loads(done.stdout)["tested"]["accuracy"]
    assert judged["accuracy"] > judged["most_frequent_class"]


def test_paper_preset(folder):
    done = dladmm(
        "train", "mlp", "--dataset", "digits", "--preset", "paper", "--max-iter", 2, "--json", cwd=folder
    )
    assert "not guaranteed" in done.stderr
    assert json.loads(done.stdout)["last"]["rho"] == 1e-6


ERRORS = [
    (("train", "mlp"), "exactly one of --dataset, --csv and --npz"),
    (("train", "mlp", "--dataset", "digits", "--npz", "own.npz"), "exactly one of"),
    (("train", "mlp", "--csv", "own.csv"), "--csv needs --target"),
    (("train", "mlp", "--csv", "own.csv", "--target", "colour"), "its columns are a, b, kind"),
    (("train", "mlp", "--csv", "absent.csv", "--target", "a"), "absent.csv does not exist"),
    (("train", "mlp", "--csv", "broken.csv", "--target", "kind"), "row 32, column 'b': 'oops'"),
    (("train", "mlp", "--csv", "short.csv", "--target", "kind"), "row 2: 2 fields"),
    (("train", "mlp", "--npz", "pickled.npz"), "without pickles"),
    (("train", "mlp", "--npz", "own.csv"), "could not be read as npz"),
    (("train", "mlp", "--dataset", "nope"), "it must be one of"),
    (("train", "mlp", "--dataset", "karate"), "use: dladmm train gcn"),
    (("train", "gcn", "--dataset", "digits"), "use: dladmm train mlp"),
    (("train", "mlp", "--dataset", "digits", "--hidden", "3,x"), "--hidden must be whole numbers"),
    (("train", "mlp", "--dataset", "digits", "--rho", "-1"), "rho must be a positive"),
    (("train", "mlp", "--dataset", "digits", "--activation", "swish"), "relu"),
    (("train", "mlp", "--dataset", "digits", "--regularizer", "l2:much"), "l2:0.1"),
    (("train", "mlp", "--dataset", "digits", "--mode", "fast"), "mode must be"),
    (("train", "mlp", "--dataset", "digits", "--device", "abacus"), "device must be"),
    (("train", "mlp", "--dataset", "digits", "--out", "r"), "--resume r"),
    (("train", "mlp", "--config", "bad.toml"), "not a TOML file"),
    (("train", "mlp", "--config", "unknown.toml"), "unknown setting learning_rate"),
    (("train", "mlp", "--resume", "absent"), "config.toml does not exist"),
    (("train", "mlp", "--resume", "r", "--seed", "9"), "--seed cannot be changed"),
    (("train", "gcn", "--resume", "r"), "use: dladmm train mlp --resume r"),
    (("train", "mlp", "--resume", "r", "--max-iter", "4"), "has made"),
    (("train", "mlp", "--dataset", "digits", "--task", "ranking"), "task must be one of"),
    (
        ("train", "mlp", "--npz", "own.npz", "--task", "regression", "--loss", "cross_entropy"),
        "change --loss or --task",
    ),
    (("predict", "absent", "--csv", "own.csv"), "absent"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), ERRORS, ids=[" ".join(a[1:])[:60] or "empty" for a, _ in ERRORS]
)
def test_errors_are_words_and_exit_code_2(run, folder, arguments, words, monkeypatch, capfd):
    """In this process: what a process of its own adds, the other tests see."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["dladmm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert words in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 7


def test_an_error_of_a_process_is_words_and_exit_code_2(folder):
    done = dladmm("train", "mlp", "--csv", "own.csv", cwd=folder)
    assert done.returncode == 2
    assert "--csv needs --target" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(folder):
    with pytest.raises(InputError, match="rho must be"):  # which python shows with its traceback
        dladmm("--debug", "train", "mlp", "--dataset", "digits", "--rho", "-1", cwd=folder)


ENDLESS = (
    "train",
    "mlp",
    "--dataset",
    "digits",
    "--hidden",
    "5",
    "--mode",
    "convergent",
    "--max-iter",
    "100000",
)


def ended_process(folder, number, out):
    """A process that gets the signal in its second iteration."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dladmm", *ENDLESS, "--out", out],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for line in process.stderr:
        if "iteration 2/" in line:
            break
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def ended_here(folder, number, out):
    """The same in this process, whose own handlers must be back afterwards."""
    iterate = Trainer._iterate

    def interrupted(trainer, k):
        if k == 2:
            os.kill(os.getpid(), number)
        return iterate(trainer, k)

    before = signal.getsignal(number)
    with mock.patch.object(Trainer, "_iterate", interrupted):
        done = dladmm(*ENDLESS, "--out", out, cwd=folder)
    assert signal.getsignal(number) is before
    return done


@pytest.mark.parametrize(
    ("number", "code", "ended"),
    [
        (signal.SIGINT, 130, ended_process),
        (signal.SIGINT, 130, ended_here),
        (signal.SIGTERM, 143, ended_here),
    ],
    ids=["SIGINT, a process", "SIGINT", "SIGTERM"],
)
def test_signals_end_the_iteration_and_say_how_to_go_on(folder, number, code, ended):
    out = f"s{code}-{ended.__name__}"
    process = ended(folder, number, out)
    assert process.returncode == code
    assert f"dladmm train mlp --resume {out}" in process.stderr
    assert "Interrupted by the user" in process.stdout
    assert list((folder / out / "checkpoints").glob("*.dladmm"))
    done_before = json.loads((folder / out / "metrics.json").read_text(encoding="utf-8"))["iterations"]
    done = dladmm("train", "mlp", "--resume", out, "--max-iter", done_before + 2, "--json", cwd=folder)
    assert json.loads(done.stdout)["iterations"] == done_before + 2


def test_completion_is_offered():
    done = dladmm("--help", cwd=Path.cwd())
    assert "--install-completion" in done.stdout
