"""The comparison on small networks: each can be trained by each method, rates are chosen by validation rows."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

from running_benchmarks import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import networks
from networks import METHODS, NETWORKS, Cell, ScheduleFreeAdamW, Sweep, newton_schulz, run_cell, table

RIVALS = [method for method in METHODS if method not in ("ours", "train")]


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)

    def rows(n, columns, highest):
        y = np.arange(n) % 10
        x = random.integers(0, highest, (n, columns)) // 2 + (highest // 2 - 1) * (
            np.arange(columns) % 10 == y[:, None]
        )
        return x.astype(np.uint8), y.astype(np.uint8)

    x, y = rows(250, 784, 255)
    x_test, y_test = rows(50, 784, 255)
    digits, digits_y = rows(300, 64, 17)
    text = np.frombuffer(b"to be or not to be, that is the question. " * 80, np.uint8)
    return {
        "x": x, "y": y, "x_test": x_test, "y_test": y_test, "digits": digits, "digits_y": digits_y, "text": text
    }  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_makes_two_steps(network, arrays):
    row = run_cell(Cell(network, "adamw", 1e-3, 0, "validation"), arrays, "cpu", steps=2)
    assert row["finite"]
    assert math.isfinite(row["score"] + row["loss"] + row["train_loss"])


@pytest.mark.parametrize("method", RIVALS)
def test_rivals_learn(method, arrays):
    row = run_cell(Cell("gru", method, METHODS[method].rates[-1], 0, "test"), arrays, "cpu", steps=60)
    start = run_cell(Cell("gru", method, 1e-9, 0, "test"), arrays, "cpu", steps=2)
    assert row["loss"] < 0.9 * start["loss"]


def test_the_door_learns(arrays):
    row = run_cell(Cell("gelu-8x32", "train", 0.01, 0, "test"), arrays, "cpu")
    assert row["score"] > 0.5
    assert row["finite"]


def test_soap_begins_where_gradients_are_tiny(arrays):
    """In the first layers of a deep network: products of theirs are 1e-12 and of low rank."""
    assert run_cell(Cell("plain-16", "soap", 3e-3, 0, "test"), arrays, "cpu", steps=3)["finite"]


def test_cells_repeat(arrays):
    cell = Cell("gru", "soap", 1e-3, 3, "test")
    first, second = (run_cell(cell, arrays, "cpu", steps=15) for _ in range(2))
    assert first["loss"] == second["loss"]


def test_a_loss_that_is_not_finite_counts_as_chance(arrays):
    row = run_cell(Cell("autoencoder", "adamw", 1e30, 0, "test"), arrays, "cpu", steps=10)
    assert not row["finite"]
    x = torch.from_numpy(arrays["x_test"]).double() / 255
    assert row["score"] == pytest.approx(float(x.var(0, correction=0).sum()), rel=1e-4)
    assert row["loss"] is None


def test_newton_schulz_is_near_the_orthogonal_factor():
    g = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(0))
    for matrices in (g, g.mT):
        values = torch.linalg.svdvals(newton_schulz(matrices))
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_schedule_free_ends_at_the_average():
    """Against the recursion in its own words: z by steps, x their average, gradients at y between them."""
    module = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, -2.0, 3.0]]))
    z = x = module.weight.detach().clone()
    v = torch.zeros_like(z)
    optimizer = ScheduleFreeAdamW(module, 0.1, warmup=1)
    for t in range(1, 6):
        y = 0.1 * z + 0.9 * x
        torch.testing.assert_close(module.weight.detach(), y)
        module.weight.grad = y * torch.tensor([1.0, 2.0, 3.0])
        optimizer.step()
        v = 0.999 * v + 0.001 * module.weight.grad**2
        z = z - 0.1 * module.weight.grad / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        x = (1 - 1 / t) * x + z / t
    optimizer.eval()
    torch.testing.assert_close(module.weight.detach(), x)


def fake(cell, score):
    return {**vars(cell), "score": score, "loss": 1.0, "finite": True, "seconds": 1.0}


def test_the_rate_is_chosen_by_validation_rows(monkeypatch):
    options = type("Options", (), {"rates": None, "split": "both", "smoothing": 0.0, "seeds": None})()
    for network, expected in (("gru", 1e-3), ("tied-lm", 3e-3)):
        sweep = Sweep(options, {})
        scores = dict(zip(METHODS["adamw"].rates, (0.2, 0.3, 0.1, 0.2), strict=True))
        sweep.known = {cell: fake(cell, scores[cell.lr]) for cell in sweep.tuning(network, "adamw")}
        assert {cell.lr for cell in sweep.testing(network, "adamw")} == {expected}
    assert [cell.seed for cell in sweep.testing("gru", "schedule-free")] == [0, 1, 2, 3, 4]
    assert sweep.tuning("gru", "schedule-free") == []


def test_the_table(tmp_path):
    rows = [fake(Cell("gru", "adamw", 1e-3, seed, "test"), score) for seed, score in enumerate((0.5, 0.75))]
    rows += [
        fake(Cell("tied-lm", "adamw", 1e-3, seed, "test"), score) for seed, score in enumerate((2.0, 3.0))
    ]
    rows.append({**vars(Cell("gru", "ours", 1e-2, 0, "test")), "score": None, "error": "ValueError: no"})
    file = tmp_path / "cells.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = table(networks.read_rows([file]).values())
    assert "| gru | error: ValueError: no | 0.6250 (0.5000; 0.1768) at 0.001, 1.0 s |  |" in text
    assert "| tied-lm (lower is better) |  | 2.500 (3.000; 0.707) at 0.001, 1.0 s |  |" in text
    rows.append(fake(Cell("tied-lm", "ours", 1e-2, 0, "test"), 2.25))
    assert "| +0.2500 |" in table(rows)
