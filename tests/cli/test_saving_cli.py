"""What a run of the command line writes: checked before training, the model first, nothing that is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import in_this_process as dladmm
from dladmm import load_model
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
