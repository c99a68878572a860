"""What a run of the command line reads and writes: checked before it is read or trained on, the model first."""

from __future__ import annotations

import os

import numpy as np
import pytest

from command_line import in_this_process as dladmm
from dladmm import load_model
from dladmm.cli.run_config import read_toml
from dladmm.training import run_folder

TRAIN = ("--hidden", "3", "--mode", "accelerated", "--max-iter", "1", "--out", "run")
X = np.random.default_rng(0).normal(size=(40, 3))


@pytest.fixture
def table(tmp_path):
    lines = ["a,b,c,kind", *(f"{a},{b},{c},{'=1+1' if a > 0 else '=2+2'}" for a, b, c in X)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("labels", [[b"a", b"b"], np.array(["2020", "2021"], "datetime64[Y]")])
def test_labels_that_json_cannot_hold_are_refused_before_training(tmp_path, labels):
    np.savez(tmp_path / "data.npz", x=X, y=np.array(labels)[(X[:, 0] > 0).astype(int)])
    done = dladmm("train", "mlp", "--npz", "data.npz", *TRAIN, cwd=tmp_path)
    assert done.returncode == 2
    assert "labels and names of the data must be what JSON can hold" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_model_is_written_before_pictures(table, monkeypatch):
    def fails(*args):
        raise OSError("no space left for a picture")

    monkeypatch.setattr(run_folder, "plot_curves", fails)
    done = dladmm("train", "mlp", "--csv", "table.csv", "--target", "kind", *TRAIN, cwd=table)
    assert done.returncode != 0
    assert "no space left for a picture" in done.stderr
    assert load_model(table / "run" / "model.safetensors").extra["classes"] == ["=1+1", "=2+2"]


def test_predictions_that_are_not_finite_are_an_error(table):
    dladmm("train", "mlp", "--csv", "table.csv", "--target", "kind", *TRAIN, cwd=table)
    (table / "new.csv").write_text("a,b,c\n1,2,3\n1e308,1e308,-1e308\n")
    done = dladmm("predict", "run", "--csv", "new.csv", cwd=table)
    assert done.returncode == 2
    assert "new.csv, row 3: the network's output is not finite (1 such rows)" in done.stderr
    assert not (table / "new.predictions.csv").exists()
    (table / "new.csv").write_text("a,b,c\n1,2,3\n")
    assert dladmm("predict", "run", "--csv", "new.csv", cwd=table).returncode == 0
    head, row = (table / "new.predictions.csv").read_text().splitlines()
    assert head == "prediction,p(=1+1),p(=2+2)"
    assert row.startswith("'=")  # no formula for a spreadsheet


@pytest.mark.parametrize("kind", ["device", "pipe", "dotted", "dotted and quoted", "large"])
def test_a_file_of_settings_is_looked_at_before_it_is_read(tmp_path, kind):
    path = tmp_path / "run.toml"
    if kind == "device":
        path = "/dev/zero"
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_text("hidden = [3]\n" * 30_000)
    else:
        part = "a" if kind == "dotted" else '"="'
        path.write_text(f"{part}{f'.{part}' * 20_000} = 1\n")
    done = dladmm("train", "mlp", "--config", path, cwd=tmp_path)
    assert done.returncode == 2
    words = {"device": "a pipe or a device", "pipe": "a pipe or a device", "large": "at most 262,144"}
    assert words.get(kind, "more than 16 dots") in done.stderr


def test_dots_in_values_and_comments_are_none_of_names(tmp_path):
    names = [f"a.b.c.{k}" for k in range(30)]
    (tmp_path / "run.toml").write_text(f"# {'.' * 100}\ndrop = {names!r}\nseed = 3\n")
    assert read_toml(tmp_path / "run.toml") == {"drop": names, "seed": 3}


def test_a_certificate_is_not_read_from_a_device(tmp_path):
    done = dladmm("verify", "/dev/zero", "--data", "no.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "/dev/zero is a folder, a pipe or a device" in done.stderr


def test_labels_give_a_terminal_no_orders_and_a_spreadsheet_no_formulas(tmp_path):
    """Labels of an npz file are not read as those of a table are."""
    rng = np.random.default_rng(0)
    labels = np.array(["\x1b[2Jgone", "=1+1"])
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(30, 2)), y=labels[np.arange(30) % 2])
    options = ("--hidden", "2", "--mode", "accelerated", "--max-iter", "1", "--out", "run")
    (tmp_path / "new.csv").write_text("a,b\n" + "\n".join(f"{a},{b}" for a, b in rng.normal(size=(20, 2))))
    said = [
        dladmm("train", "mlp", "--npz", "data.npz", *options, cwd=tmp_path),
        dladmm("evaluate", "run", cwd=tmp_path),
        dladmm("predict", "run", "--csv", "new.csv", cwd=tmp_path),
        dladmm("report", "run", "--out", "page.html", cwd=tmp_path),
    ]
    assert [each.returncode for each in said] == [0] * 4
    files = [
        (tmp_path / name).read_text() for name in ("new.predictions.csv", "page.html", "run/metrics.json")
    ]
    assert not any("\x1b" in text for text in [*files, *(each.stdout + each.stderr for each in said)])
    assert "\\x1b[2Jgone" in files[0]
    assert not any(cell.startswith("=") for line in files[0].splitlines() for cell in line.split(","))
