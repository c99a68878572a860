"""Time to accuracy: levels are reached where the printed curves say so, and training is the library's own."""

from __future__ import annotations

import sys

import pytest

from running_benchmarks import BENCHMARKS, run_benchmark

sys.path.insert(0, str(BENCHMARKS))

from compact_json import rounded
from time_to_accuracy import CONVERGENT, Problem, Run, plot, summarised, table

import dladmm
from dladmm import baselines, datasets

LEVELS = [0.5, 0.7, 1.0]
ITERATIONS, EPOCHS = 6, 18


@pytest.fixture(scope="module")
def run():
    sizes = ["--dataset", "digits", "--rows", "300", "--widths", "20", "--levels", "0.7,0.5,1"]
    much = ["--seeds", "2", "--iterations", str(ITERATIONS), "--adam-epochs", "3", "--threads", "1"]
    return run_benchmark("time_to_accuracy.py", *sizes, *much, "--plot", "accuracy.png")


def test_every_learner_and_seed_has_a_curve(run):
    report, shown = run
    names = ["accelerated", "adam", "convergent"]
    assert [(r["learner"], r["seed"]) for r in report["runs"]] == [(n, s) for s in (0, 1) for n in names]
    assert report["settings"]["sizes"] == [64, 20, 10]
    assert report["settings"]["training_rows"] == 300
    assert set(report["warm_up_seconds"]) == set(names)
    for of in report["runs"]:
        expected = EPOCHS if of["learner"] == "adam" else ITERATIONS
        assert of["iterations"] == len(of["seconds"]) == len(of["accuracy"]) == expected
        assert of["ended"] is None
        assert 0 < of["set_up_seconds"] <= of["seconds"][0]
        assert of["seconds"] == sorted(of["seconds"])
        assert of["best_accuracy"] == max(of["accuracy"])
    assert table(report) in shown
    assert report["command"].endswith(f"--iterations {ITERATIONS} --adam-epochs 3 --threads 1 --json")
    assert "no plot: matplotlib is not installed" in shown


def test_levels_are_reached_where_the_curves_say(run):
    report, _ = run
    for of in report["runs"]:
        assert set(of["reached"]) == {str(level) for level in LEVELS}
        for level in LEVELS:
            found = of["reached"][str(level)]
            if found is None:
                assert of["best_accuracy"] < level
            else:
                k = found["iteration"]
                assert of["accuracy"][k - 1] >= level > max(of["accuracy"][: k - 1], default=0.0)
                assert of["seconds"][k - 1] == found["seconds"]
                steady = of["set_up_seconds"] + k * of["median_iteration_seconds"]
                assert found["steady_seconds"] == pytest.approx(steady, rel=1e-4)
    fast = [of["reached"]["0.5"] for of in report["runs"] if of["learner"] == "accelerated"]
    assert None not in fast  # something is learned


def test_summary_is_of_the_printed_runs(run):
    report, _ = run
    assert report["summary"] == rounded(summarised(report["runs"], LEVELS))
    assert len(report["summary"]) == 3 * len(LEVELS)
    for row in report["summary"]:
        assert row["seeds"] == 2
        assert (row["seeds_that_reached_it"] == 0) == (row["median_seconds"] is None)


def test_summary_compares_with_adam():
    def of(learner, seconds):
        hit = None if seconds is None else {"iteration": 4, "seconds": seconds, "steady_seconds": seconds / 2}
        return {"learner": learner, "reached": {"0.9": hit}}

    runs = [of("accelerated", 1.0), of("accelerated", 3.0), of("adam", 4.0), of("adam", None)]
    ours, adam = summarised([*runs, of("convergent", None)], [0.9])[:2]
    assert (ours["median_steady_seconds"], ours["steady_seconds_to_adams"]) == (1.0, 0.5)
    assert (ours["median_seconds"], ours["seeds_that_reached_it"], ours["seconds_to_adams"]) == (2.0, 2, 0.5)
    assert (adam["median_seconds"], adam["seeds_that_reached_it"]) == (4.0, 1)
    assert summarised([of("convergent", None)], [0.9])[0]["seconds_to_adams"] is None


def test_learners_train_as_the_library_does():
    """The accuracies of dladmm.train and of the Adam baseline, iteration by iteration."""
    data = datasets.load("digits")
    x, y = data.x_train[:200], data.y_train[:200]
    sizes = [64, 15, 10]
    problem = Problem(x, y, data.x_test, data.y_test, sizes)
    common = {
        "validation": (data.x_test, data.y_test),
        "max_iter": 4,
        "diagnostics_every": 1,
        "random_state": 1,
    }
    results = {
        "accelerated": dladmm.train(dladmm.mlp(sizes), x, y, mode="accelerated", **common),
        "convergent": dladmm.train(dladmm.mlp(sizes), x, y, **CONVERGENT, **common),
        "adam": baselines.train("adam", dladmm.mlp(sizes), x, y, **common),
    }
    for name, result in results.items():
        run = Run(name, problem, 1)
        for _ in range(4):
            run.iterate()
        assert run.accuracy == pytest.approx(result.history["val_accuracy"], abs=0.006)  # two of 360 images


def test_run_says_why_it_ended():
    data = datasets.load("digits")
    problem = Problem(data.x_train[:50], data.y_train[:50], data.x_test, data.y_test, [64, 8, 10])
    run = Run("convergent", problem, 0)
    run.iterate()
    step = run._learner.step
    run._learner = run._learner._replace(step=lambda: "STALLED")
    run.iterate()
    assert (run.ended, len(run.accuracy), len(run.seconds)) == ("STALLED", 1, 1)
    assert step() is None


def test_plot_draws_every_run(run, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "accuracy.png"
    assert plot(run[0], str(path)) == f"plot: {path}"
    assert path.read_bytes().startswith(b"\x89PNG")
