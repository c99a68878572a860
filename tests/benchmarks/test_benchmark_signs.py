"""The comparison of networks of signs: runs are written at once, not made twice, and chosen by held-out images."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import signs
from plain_torch import Images
from straight_through import Network, Setting, fit, nearest_level


def few() -> Images:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 3
    x = torch.randn(240, 6, generator=generator) + 3 * torch.eye(3, 6)[y]
    return Images(x[:200], y[:200], x[200:], y[200:])


def test_levels():
    x = torch.tensor([-2.0, -0.6, -0.1, 0.0, 0.5, 0.9])
    assert nearest_level(x, 2).tolist() == [-1, -1, -1, 1, 1, 1]
    expected = torch.tensor([-1, -1 / 3, -1 / 3, 1 / 3, 1 / 3, 1])
    torch.testing.assert_close(nearest_level(x, 4), expected)


def test_the_estimator_learns():
    accuracy, seconds = fit(few(), Network((12,), 2, 2), Setting(1e-2, 32), 10, 0)
    assert accuracy > 0.8
    assert seconds > 0


@pytest.mark.filterwarnings("ignore")
def test_runs_are_written_at_once_and_not_made_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(signs, "digits", few)
    out, report = tmp_path / "runs.jsonl", tmp_path / "report.json"
    words = ["--rows", "digits", "--hidden", "8", "--passes", "2", "--seeds", "1", "--out", str(out)]
    before = torch.get_float32_matmul_precision()
    signs.main(words)
    assert torch.get_float32_matmul_precision() == before
    lines = out.read_text(encoding="utf-8").splitlines()
    kinds = [(run["method"], run["kind"]) for run in map(json.loads, lines)]
    assert kinds == [
        ("ours", "test"),
        ("ours, fewer passes", "test"),
        *[("straight-through", "grid")] * 6,
        ("straight-through", "test"),
        ("straight-through, smoothed", "test"),
    ]
    signs.main(words)
    assert out.read_text(encoding="utf-8").splitlines() == lines
    signs.main(["--report", str(out), "--out", str(report)])
    found = json.loads(report.read_text(encoding="utf-8"))
    methods = [signs.OURS, signs.FEWER, signs.THEIRS, signs.SMOOTHED]
    assert [line["method"] for line in found["summary"]] == methods
    grid = [json.loads(line) for line in lines[2:8]]
    best = max(grid, key=lambda run: run["accuracy"])["setting"]
    assert found["summary"][2]["setting"] == best
    assert found["summary"][3]["setting"] == [*best[:2], 0.1]


def test_every_image_is_held_out_once():
    images = few()
    parts = signs.held_out(images, 5)
    assert torch.equal(torch.cat([part.y_test for part in parts]).bincount(), images.y.bincount())
    rows = torch.cat([torch.cat([part.x, part.x_test]).sum(0, keepdim=True) for part in parts])
    torch.testing.assert_close(rows, images.x.sum(0, keepdim=True).expand(5, -1), rtol=1e-4, atol=1e-4)
    (one,) = signs.held_out(images, 1)
    assert torch.equal(one.x_test, images.x[-20:])
