"""What the command line does where nothing is said: the best mode, the right task, and what the network is worth."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from command_line import in_this_process as dladmm
from dladmm.base.errors import InputError, InputTypeError
from dladmm.cli.run_config import RunConfig
from dladmm.cli.task import decide
from dladmm.training.checkpoint import load_model
from dladmm.training.identity import fingerprint


def prices(path, rows=420):
    """A table of houses, as people have it: whole numbers, large ones to predict."""
    rng = np.random.default_rng(0)
    area, age, distance = rng.uniform(40, 240, rows), rng.uniform(0, 90, rows), rng.uniform(0.5, 30, rows)
    rooms = rng.integers(1, 7, rows)
    price = 60_000 + 2_100 * area + 9_000 * rooms - 700 * age - 2_500 * distance + rng.normal(0, 12_000, rows)
    lines = zip(area, rooms, age, distance, price, strict=True)
    text = "\n".join(f"{a:.1f},{r},{g:.0f},{d:.1f},{p:.0f}" for a, r, g, d, p in lines)
    path.write_text(f"area,rooms,age,distance,price\n{text}\n")
    return np.round(price)


def rings(path, rows=300):
    """Two classes that only a network parts, in columns of very different units."""
    rng = np.random.default_rng(1)
    angle, inner = rng.uniform(0, 2 * np.pi, rows), rng.random(rows) < 0.5
    radius = np.where(inner, 1.0, 2.0) + rng.normal(0, 0.15, rows)
    lines = zip(1e4 * radius * np.cos(angle) + 5e5, 1e-3 * radius * np.sin(angle), inner, strict=True)
    path.write_text("a,b,kind\n" + "\n".join(f"{a:.2f},{b:.7f},{'in' if k else 'out'}" for a, b, k in lines))


# The task ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"], "classification"),
        ([0, 1, 2], "classification"),
        (["0", "1"], "classification"),
        ([True, False], "classification"),
        ([0.5, 1.0], "regression"),
        (["1.25", "2"], "regression"),
        (list(range(100, 520)), "regression"),
        ([str(388_507 + 3 * i) for i in range(420)], "regression"),
        ([i % 26 for i in range(2_600)], "classification"),
        ([i % 70 + 17 for i in range(7_000)], "regression"),
    ],
)
def test_numbers_with_a_fraction_or_many_different_ones_are_regression(values, kind):
    found = decide(np.array(values), "auto", None)
    assert found.kind == kind
    assert found.loss == {"classification": "cross_entropy", "regression": "squared"}[kind]
    other = {"classification": "regression", "regression": "classification"}[kind]
    assert decide(np.array(values), other, None).kind == other


def test_loss_and_task_have_to_agree():
    assert decide(np.arange(3), "auto", "huber").kind == "regression"
    with pytest.raises(InputError, match="change --loss or --task"):
        decide(np.arange(3), "classification", "huber")


# The command of the README ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_of_the_readme_predicts_prices(tmp_path):
    truth = prices(tmp_path / "own.csv")
    done = dladmm("train", "mlp", "--csv", "own.csv", "--target", "price", "--loss", "huber", "--hidden", "50,50",
                  "--out", "r", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cross-fitted" in done.stderr
    assert "R^2 on 84 test rows: 0.9" in done.stdout
    assert dladmm("predict", "r", "--csv", "own.csv", "--out", "p.csv", cwd=tmp_path).returncode == 0
    predicted = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    assert np.abs(predicted - truth).mean() < 20_000
    metrics = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert metrics["standing"]["network"] > 0.95
    assert metrics["standing"]["linear"] > 0.95
    assert abs(metrics["standing"]["constant"]) < 0.1


@pytest.mark.slow
def test_a_price_is_not_420_classes(tmp_path):
    prices(tmp_path / "own.csv")
    done = dladmm(
        "train", "mlp", "--csv", "own.csv", "--target", "price", "--hidden", "20", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "task       regression, loss squared (the target has" in done.stderr
    assert json.loads(done.stdout)["settings"]["loss"] == "squared"
    forced = dladmm("train", "mlp", "--csv", "own.csv", "--target", "rooms", "--hidden", "5", "--task", "regression",
                    "--max-iter", 5, "--json", cwd=tmp_path)  # fmt: skip
    assert json.loads(forced.stdout)["settings"]["task"] == "regression"


@pytest.mark.slow
def test_two_classes_in_any_units(tmp_path):
    """The default of the command line was the paper's algorithm on columns as they are: no better than guessing."""
    rings(tmp_path / "rings.csv")
    arguments = ("train", "mlp", "--csv", "rings.csv", "--target", "kind", "--hidden", "30")
    best = json.loads(dladmm(*arguments, "--json", cwd=tmp_path).stdout)
    assert best["standing"]["network"] > 0.9
    assert best["standing"]["warning"] is None
    poor = dladmm(*arguments, "--mode", "convergent", "--max-iter", 30, cwd=tmp_path)
    assert "WARNING" in poor.stdout
    assert poor.stdout.index("WARNING") < poor.stdout.index("About the optimisation")


@pytest.mark.slow
@pytest.mark.usefixtures("short_teachers")
def test_graphs_have_the_mode_of_the_estimator(tmp_path):
    done = dladmm(
        "train", "gcn", "--dataset", "karate", "--hidden", "8", "--max-iter", 10, "--json", cwd=tmp_path
    )
    report = json.loads(done.stdout)
    assert report["settings"]["mode"] == "streaming"
    assert report["standing"]["rows"].endswith("test nodes")


# Runs that go on ------------------------------------------------------------------------------------------------------


def test_a_fingerprint_of_parts_is_that_of_the_whole():
    x = np.random.default_rng(0).normal(size=(7, 3))
    whole = fingerprint(x)
    assert (fingerprint(x[:4]) + fingerprint(x[4:], 4)) % 2**64 == whole
    swapped = x[[1, 0, 2, 3, 4, 5, 6]]
    assert fingerprint(swapped) != whole
    assert fingerprint(x[:, ::-1]) != whole
    assert fingerprint(x + 1e-12) != whole


@pytest.mark.slow
def test_fewer_iterations_than_were_made_are_refused(tmp_path):
    rings(tmp_path / "rings.csv")
    train = (
        "train",
        "mlp",
        "--csv",
        "rings.csv",
        "--target",
        "kind",
        "--hidden",
        "5",
        "--mode",
        "accelerated",
    )
    assert dladmm(*train, "--max-iter", 8, "--out", "r", cwd=tmp_path).returncode == 0
    done = dladmm("train", "mlp", "--resume", "r", "--max-iter", 6, cwd=tmp_path)
    assert done.returncode == 2
    assert "has made 8 iterations already, more than --max-iter 6" in done.stderr
    assert dladmm("train", "mlp", "--resume", "r", "--max-iter", 9, cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_run_goes_on_from_elsewhere_and_notices_other_data(tmp_path):
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    rings(first / "rings.csv")
    train = (
        "train",
        "mlp",
        "--csv",
        "rings.csv",
        "--target",
        "kind",
        "--hidden",
        "5",
        "--mode",
        "accelerated",
    )
    assert dladmm(*train, "--max-iter", 3, "--out", "r", cwd=first).returncode == 0
    resume = ("train", "mlp", "--resume")
    done = dladmm(*resume, first / "r", "--max-iter", 4, "--json", cwd=other)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["iterations"] == 4
    moved = tmp_path / "moved"
    shutil.move(first, moved)  # the run and its data together
    done = dladmm(*resume, moved / "r", "--max-iter", 5, "--json", cwd=other)
    assert done.returncode == 0, done.stderr
    text = (moved / "rings.csv").read_text()
    (moved / "rings.csv").write_text(text.replace("\n5", "\n6", 1))
    done = dladmm(*resume, moved / "r", "--max-iter", 6, cwd=other)
    assert done.returncode == 2
    assert "differs" in done.stderr
    assert "the same shape, other values" in done.stderr
    (moved / "rings.csv").write_text(text.rstrip("\n").rsplit("\n", 5)[0])
    done = dladmm(*resume, moved / "r", "--max-iter", 6, cwd=other)
    assert "shape [240, 2] then, [236, 2] now" in done.stderr


@pytest.mark.slow
def test_a_cross_fitted_run_that_was_cut_goes_on_as_if_it_had_not(tmp_path):
    """Checkpoints of the default mode: the looks at held-out rows are in them too."""
    from dladmm.callbacks import Callback
    from dladmm.cli import run_job
    from dladmm.cli.run_train import run_training

    prices(tmp_path / "own.csv")
    settings = {"csv": str(tmp_path / "own.csv"), "target": "price", "hidden": (20,), "seed": 3}
    whole = run_training(RunConfig(**settings, out=str(tmp_path / "whole")), False)

    class Cut(Callback):
        def on_epoch_end(self, trainer):
            if trainer.history.n_iter == 5:
                raise KeyboardInterrupt

    fit = run_job.TableJob.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_job.TableJob, "fit", lambda self, callbacks: fit(self, [*callbacks, Cut()]))
        cut = run_training(RunConfig(**settings, out=str(tmp_path / "cut")), False)
    assert cut.exit_code == 130
    assert cut.result.history.n_iter == 5
    done = dladmm("train", "mlp", "--resume", tmp_path / "cut", "--max-iter", 99, cwd=tmp_path)
    assert "--max-iter cannot be changed" in done.stderr
    done = dladmm("train", "mlp", "--resume", tmp_path / "cut", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert whole.result.history.n_iter > 5
    pairs = zip(*(load_model(tmp_path / name / "model.safetensors").module.parameters() for name in ("whole", "cut")),
                strict=True)  # fmt: skip
    assert all(bool((a == b).all()) for a, b in pairs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.full((30, 2), np.nan)}, "X contains NaN or infinite"),
        ({"x": np.full((30, 2), "a")}, "X holds text"),
        ({"x": np.ones((30, 2)) * 1j}, "X is complex"),
        ({"seed": -1}, "random_state"),
    ],
)
def test_the_default_mode_refuses_what_the_others_do(tmp_path, change, words):
    from dladmm.cli.run_train import run_training

    arrays = {"x": np.random.default_rng(0).normal(size=(30, 2)), "y": np.arange(30) % 3}
    np.savez(tmp_path / "own.npz", **arrays | {key: value for key, value in change.items() if key != "seed"})
    settings = {"npz": str(tmp_path / "own.npz"), "hidden": (3,), "out": str(tmp_path / "r")}
    with pytest.raises((InputError, InputTypeError), match=words):
        run_training(RunConfig(**settings, seed=change.get("seed", 0)), False)
    assert not (tmp_path / "r").exists(), "bad input is refused before anything is written"


@pytest.mark.parametrize(
    "words",
    [
        ("--preset", "authors"),
        ("--mode", "streaming", "--rho", "3"),
        ("--dtype", "half"),
        ("--regularizer", "l9"),
    ],
)
def test_what_is_refused_is_neither_announced_nor_begun(tmp_path, words):
    done = dladmm("train", "mlp", "--dataset", "digits", *words, "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_no_memory_holds_is_refused_before_it_begins(tmp_path, monkeypatch):
    """A table of 10^5 columns was announced with 480 GB and ended in torch's allocator."""
    # Pages of 100 bytes, 100 of them
    monkeypatch.setattr("dladmm.cli.run_config.os.sysconf", lambda name: 100)
    done = dladmm(
        "train", "mlp", "--dataset", "digits", "--mode", "accelerated", "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "the run would take about" in done.stderr
    assert not (tmp_path / "run").exists()
