"""End to end: every kind of contender runs, reached levels have their seconds, hand-written passes solve."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pytest
import torch

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import small_problems
from end_to_end import METHODS, line, named, rows_of_log
from end_to_end import _summary as summary
from fresh_estimators import estimated
from plain_torch import Setting, Timed, read_images
from streamed import Iterated

from dladmm.activations import get_activation

LEVELS = [0.3, 1.01]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    x, y = rng.random((80, 6), dtype=np.float32), np.arange(80) % 2
    x[:, 0] += 2 * y
    path = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(path, X=x, y=y, Xt=x[:20], yt=y[:20])
    return path


@pytest.mark.parametrize("method", ["scikit-learn", "MLPClassifier()"])
def test_estimators_are_timed_from_the_start_of_the_process(file, method):
    setting = Setting(method, 3)._asdict()
    given = {"file": str(file), "rows": None, "widths": [8], "seed": 0, "device": "cpu", "threads": None}
    began = time.time() - 100
    given |= {"levels": LEVELS, "until": time.time() + 60, "began": began, "setting": setting}
    found = estimated(given)
    assert 100 <= found["first_step"] <= found["seen"]["0.3"] < 200
    assert found["seen"]["1.01"] is None
    assert found["passes"] == (3 if method == "scikit-learn" else 1)


@pytest.mark.parametrize("method", ["accelerated", "convergent", "quadratic"])
def test_an_iteration_of_a_whole_data_mode_is_a_pass(file, method):
    images = read_images(file, "cpu")
    learner = Iterated(images, "mlp", [8], Setting(method, 3), 0)
    run = Timed(learner, images)
    for _ in range(3):
        run.one_pass()
    assert learner.trainer.history.n_iter == 3
    assert len(run.accuracy) == 3
    solver = learner.trainer.options.subproblems.w_solver
    assert solver == ("quadratic" if method == "quadratic" else "exact")


def test_a_level_counts_as_reached_where_every_run_reached_it():
    runs = [
        {"seen": {"0.9": 2.0, "0.95": None}, "first_step": 1.0, "best": 0.9, "passes": 2},
        {"seen": {"0.9": 4.0, "0.95": 5.0}, "first_step": 2.0, "best": 1.0, "passes": 4},
    ]
    found = summary(runs, [0.9, 0.95])
    assert found["seconds"] == {"0.9": 3.0, "0.95": None}
    assert (found["first_step"], found["best"]) == (1.5, 0.95)
    shown = line({"data": "mnist", "name": "x", "runs": 2} | found)
    assert "90 %:  3.00 s" in shown
    assert "95 %:    -" in shown
    assert json.dumps(found)
    (read,) = rows_of_log(f"[  12 s left] {shown}\nthe time is over\n")
    assert read["seconds"] == found["seconds"]
    assert (read["data"], read["name"], read["best"], read["first_step"]) == ("mnist", "x", 0.95, 1.5)


def test_every_contender_has_a_name_of_its_own():
    assert len({named(setting) for setting in METHODS}) == len(METHODS)


def test_the_hand_written_passes_solve_what_the_library_solves():
    generator = torch.Generator().manual_seed(0)
    m, a = (torch.randn(50, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    z, f = torch.empty_like(m), torch.empty_like(m)
    distance = small_problems.solve_relu(z, m, a, f)
    torch.testing.assert_close(z, get_activation("relu").argmin(m, a))
    torch.testing.assert_close(f, z.clamp_min(0))
    torch.testing.assert_close(distance, (m - z).square().sum())
