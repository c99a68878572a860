"""Regression losses as people ask for them: quantiles that cover, counts beside a generalised linear model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_absolute_error, mean_poisson_deviance
from typer.testing import CliRunner

from dladmm import MLPRegressor, mlp, train
from dladmm.cli.app import app

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (1500, 3))
RATE = 30 * np.exp(1.5 * X[:, 0] * X[:, 1] + X[:, 2])
COUNTS = RNG.poisson(RATE)
LEVEL, SPREAD = 1000 + 100 * np.sin(3 * X[:, 0]), 10 + 30 * (X[:, 2] + 1)
Y = LEVEL + SPREAD * RNG.normal(size=len(X))
LEARN, HELD = slice(1000), slice(1000, None)


@pytest.mark.parametrize("mode", ["auto", "accelerated", "streaming"])
@pytest.mark.parametrize("q", [0.1, 0.9])
def test_quantiles_cover(mode, q):
    model = MLPRegressor((30,), loss={"name": "quantile", "q": q}, mode=mode, max_iter=60, random_state=0)
    predicted = model.fit(X[LEARN], Y[LEARN]).predict(X[HELD])
    assert abs((Y[HELD] <= predicted).mean() - q) < 0.07


@pytest.mark.parametrize("mode", ["auto", "accelerated", "convergent", "streaming"])
def test_counts_are_told_better_than_by_a_linear_model(mode):
    model = MLPRegressor((30,), loss="poisson", mode=mode, random_state=0).fit(X[LEARN], COUNTS[LEARN])
    linear = PoissonRegressor(alpha=1e-3).fit(X[LEARN], COUNTS[LEARN])
    deviance, others = (
        mean_poisson_deviance(COUNTS[HELD], each.predict(X[HELD])) for each in (model, linear)
    )
    assert deviance < others / 2


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_the_absolute_error_is_near_that_of_the_truth_with_wild_targets():
    wild = Y[LEARN].copy()
    wild[::20] = 1e9
    model = MLPRegressor((30,), loss="absolute", random_state=0).fit(X[LEARN], wild)
    error = mean_absolute_error(Y[HELD], model.predict(X[HELD]))
    assert error < 1.6 * mean_absolute_error(Y[HELD], LEVEL[HELD])


def test_counts_of_other_size_give_the_same_shape_and_files_keep_the_loss(tmp_path):
    model = MLPRegressor((10,), loss="poisson", max_iter=5, random_state=0).fit(X[LEARN], COUNTS[LEARN])
    larger = MLPRegressor((10,), loss="poisson", max_iter=5, random_state=0).fit(
        X[LEARN], 1024 * COUNTS[LEARN]
    )
    np.testing.assert_allclose(larger.predict(X[HELD]), 1024 * model.predict(X[HELD]), rtol=1e-3)
    model.save(tmp_path / "f")
    assert np.array_equal(MLPRegressor.load(tmp_path / "f").predict(X[HELD]), model.predict(X[HELD]))


def test_what_a_run_says_of_counts_is_about_counts_not_their_logarithms():
    model = MLPRegressor((30,), loss="poisson", mode="accelerated", early_stopping=True, random_state=0)
    model.fit(X, COUNTS)
    assert model.best_validation_score_ > 0.85
    result = train(mlp([3, 30, 1]), X, COUNTS, loss="poisson", mode="accelerated", max_iter=40)
    assert result.history.last("train_r2") > 0.85
    assert "0.9" in repr(result)


def test_the_command_line_predicts_and_evaluates_counts(tmp_path):
    table = np.c_[X, COUNTS]
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="a,b,c,n", comments="")
    run = ["train", "mlp", "--csv", str(tmp_path / "t.csv"), "--target", "n", "--task", "regression"]
    run += ["--loss", "poisson", "--hidden", "20", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "--csv", str(tmp_path / "t.csv")])
    assert done.exit_code == 0, done.output
    predicted = np.loadtxt(tmp_path / "t.predictions.csv", delimiter=",", skiprows=1)
    assert np.corrcoef(predicted, COUNTS)[0, 1] > 0.9
    assert abs(predicted.mean() / COUNTS.mean() - 1) < 0.1
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["r2"] > 0.8
