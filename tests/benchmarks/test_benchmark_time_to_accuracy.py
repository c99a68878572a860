"""Time to accuracy: levels are reached where the curves say, settings are the soonest, runs are the library's own."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from running_benchmarks import BENCHMARKS, run_benchmark

sys.path.insert(0, str(BENCHMARKS))

from plain_torch import PlainTorch, Setting, Timed, read_images
from step_cost import step_costs
from streamed import Streamed
from time_to_accuracy import Bench, level_rows, parsed, table

import dladmm
from dladmm import datasets

LEVELS = [0.5, 0.7, 1.0]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    data = datasets.load("digits")
    parts = {"X": data.x_train[:400], "y": data.y_train[:400], "Xt": data.x_test, "yt": data.y_test}
    file = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(file, **{name: part.numpy() for name, part in parts.items()})
    return file


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "time.json"
    sizes = [
        "--data",
        str(digits),
        "--widths",
        "20",
        "--held-out",
        "100",
        "--levels",
        "0.5,0.7,1",
        "--no-muon",
    ]
    much = [
        "--batches",
        "16,32",
        "--rates",
        "2e-3,1e-2",
        "--passes",
        "2,3",
        "--seeds",
        "2",
        "--opponent-seeds",
        "1",
    ]
    parts = ["--parts", "choose,test,fresh", "--device", "cpu", "--threads", "1", "--out", str(out)]
    report, shown = run_benchmark("time_to_accuracy.py", *sizes, *much, *parts)
    assert json.loads(out.read_text()) == report
    return report, shown


def test_all_was_measured_and_shown(run):
    report, shown = run
    assert report["ended"] == "complete"
    assert table(report) in shown
    held = [r for r in report["runs"] if r["part"] == "choose"]
    assert len(held) == 4 + 3
    tested = [r["name"] for r in report["runs"] if r["part"] == "test" and r["seed"] == 1]
    assert tested == ["streaming, 2 passes", "streaming, 3 passes"]
    for of in report["runs"]:
        assert of["whole"]
        assert of["seconds"] == sorted(of["seconds"])
        assert len(of["seconds"]) == len(of["accuracy"]) >= of["passes"]


def test_levels_are_reached_where_the_curves_say(run):
    for of in run[0]["runs"]:
        for level in LEVELS:
            found = of["reached"][str(level)]
            if found is None:
                assert max(of["accuracy"]) < level
            else:
                k = of["seconds"].index(found)
                assert of["accuracy"][k] >= level > max(of["accuracy"][:k], default=0.0)


def test_the_soonest_on_held_out_rows_is_chosen_for_each_level(run):
    report, _ = run
    held = [r for r in report["runs"] if r["part"] == "choose"]
    for chosen in report["chosen"]:
        kind, _, value = chosen["for"].partition(" ")
        if kind == "level":
            times = {r["name"]: r["reached"][value] for r in held if r["reached"][value] is not None}
            nearest = max(held, key=lambda r: max(r["accuracy"]))["name"]
            assert chosen["name"] == (min(times, key=times.get) if times else nearest)
        else:
            ends = {r["name"]: r["accuracy"][-1] for r in held if r["setting"]["passes"] == int(value)}
            assert ends[chosen["name"]] == max(ends.values())
    assert {"passes 2", "passes 3", "level 0.5"} <= {chosen["for"] for chosen in report["chosen"]}


def test_fresh_processes_count_from_their_start(run):
    report, _ = run
    assert report["fresh"][0]["name"] == "streaming, 3 passes"
    for of in report["fresh"]:
        seen = [seconds for seconds in of["seen"].values() if seconds is not None]
        assert all(seconds > of["first_step"] > 0.1 for seconds in seen)  # torch alone takes longer to import
    streaming = [row for row in report["levels"] if row["method"] == "streaming" and row["level"] == 0.5]
    assert streaming[0]["fresh"] == report["fresh"][0]["seen"]["0.5"]


def test_the_clock_stands_still_while_accuracy_is_looked_at(digits):
    images = read_images(digits, "cpu")
    learner = PlainTorch(images, "mlp", [8], Setting("adam", 1, 16, 1e-3), 0)
    outputs = learner.outputs

    def slow():
        import time

        time.sleep(0.05)
        return outputs()

    learner.outputs = slow
    run = Timed(learner, images)
    run.one_pass()
    assert run.looking > 0.05 * len(run.accuracy)
    assert learner.steps == learner.batches_per_pass == 25
    assert run.reached(0.0) == run.seconds[0]
    assert run.reached(1.1) is None


def test_streaming_is_what_the_library_trains(digits):
    images = read_images(digits, "cpu")
    learner = Streamed(images, "mlp", [12], Setting("streaming", 3), 1)
    ticks = []
    for _ in range(3):
        learner.one_pass(lambda: ticks.append(1))
    result = dladmm.train(
        dladmm.mlp([64, 12, 10]),
        images.x,
        images.y,
        mode="streaming",
        max_iter=3,
        random_state=1,
        device="cpu",
    )
    with torch.no_grad():
        expected = result.module(images.x_test)
    torch.testing.assert_close(learner.outputs(), expected, rtol=1e-3, atol=1e-3)
    assert len(ticks) == 3 * learner.batches_per_pass


def test_pixels_become_shares(tmp_path):
    whole = np.full((4, 2, 2), 255, dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", X=whole, y=np.zeros(4), Xt=whole, yt=np.zeros(4))
    images = read_images(tmp_path / "bytes.npz", "cpu", rows=3)
    assert images.x.shape == (3, 4)
    assert float(images.x.max()) == 1.0
    assert images.y.dtype == torch.int64


def test_a_spent_budget_ends_the_run_and_leaves_what_there_is(digits, tmp_path, capsys):
    from time_to_accuracy import main

    out = tmp_path / "time.json"
    main(
        [
            "--data",
            str(digits),
            "--budget-seconds",
            "0",
            "--device",
            "cpu",
            "--held-out",
            "100",
            "--out",
            str(out),
        ]
    )
    assert json.loads(out.read_text())["ended"] == "ended before all was measured"
    assert "ended before all was measured" in capsys.readouterr().out


def test_ratios_are_to_the_best_opponent():
    bench = Bench(parsed(["--device", "cpu"]))
    settings = {
        "streaming": Setting("streaming", 10),
        "adam": Setting("adam", 5, 128, 1e-3),
        "muon": Setting("muon", 5, 256, 1e-3),
    }
    for method, seconds in (("streaming", 1.0), ("adam", 3.0), ("muon", 4.0)):
        setting = settings[method]._asdict()
        about = {"data": "mnist", "network": "mlp", "setting": setting}
        bench.runs.append(about | {"part": "test", "reached": {"0.95": seconds}})
        if method != "streaming":
            bench.chosen.append(about | {"method": method, "for": "level 0.95"})
    rows = {row["method"]: row for row in level_rows(bench)}
    assert rows["streaming"]["seconds_to_best"] == pytest.approx(1 / 3)
    assert rows["muon"]["seconds_to_best"] == pytest.approx(4 / 3)
    assert rows["streaming"]["fresh_to_best"] is None


def test_steps_are_timed_side_by_side(digits):
    found = step_costs(read_images(digits, "cpu"), [8], batch=32, warm=3)
    assert found["ratio"] == pytest.approx(found["streaming"] / found["adam"])
    assert found["ratio, recorded"] is None
