"""The benchmark in benchopt's layout runs on digits, and measures what the library itself measures."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "benchopt"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("benchopt") is None, reason="benchopt is not installed"
)


@pytest.mark.slow
def test_it_runs_on_digits(tmp_path):
    pandas = pytest.importorskip("pandas")
    benchmark = shutil.copytree(FOLDER, tmp_path / "mlp", ignore=shutil.ignore_patterns("__*__", "outputs"))
    solvers = ["dladmm[mode=accelerated]", "torch.optim[method=adam]", "scikit-learn"]
    chosen = [word for solver in solvers for word in ("-s", solver)]
    done = subprocess.run(
        [sys.executable, "-m", "benchopt", "run", str(benchmark), "-d", "digits", *chosen, "-o", "MLP*[width=16]",
         "--max-runs", "2", "-r", "1", "--no-plot", "--no-html", "--output", "found"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stdout.lower(), done.stdout
    (file,) = (benchmark / "outputs").glob("found*.parquet")
    table = pandas.read_parquet(file)
    assert set(table["solver_name"]) >= set(solvers), table["solver_name"].unique()
    for _, curve in table.groupby("solver_name"):
        values = curve.sort_values("stop_val")["objective_value"].to_numpy()
        assert np.isfinite(values).all()
        assert values[-1] < values[0]


def test_the_objective_agrees_with_the_library(monkeypatch):
    import dladmm

    spec = importlib.util.spec_from_file_location("objective", FOLDER / "objective.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = dladmm.datasets.load("digits")
    result = dladmm.train(
        dladmm.mlp([64, 8, 10]), data.x_train, data.y_train, max_iter=3, dtype="float64", diagnostics_every=1
    )
    layers = [layer for layer in result.module if hasattr(layer, "weight")]
    weights = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]
    loss, accuracy = module.measure(weights, data.x_train.double().numpy(), data.y_train.numpy())
    assert loss == pytest.approx(result.history.last("loss"), rel=1e-6)
    assert accuracy == pytest.approx(result.history.last("train_accuracy"))
