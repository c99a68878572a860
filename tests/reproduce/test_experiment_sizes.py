"""The experiment on samples and widths: small, and that its page says what was measured."""

from __future__ import annotations

import numpy as np
from dladmm.experiments import sizes


def test_it_measures_both_methods_and_counts_refusals(monkeypatch):
    monkeypatch.setattr(sizes, "HELD_OUT", 50)
    rng = np.random.default_rng(0)
    x = rng.random((150, 6), dtype=np.float32)
    y = (x @ rng.standard_normal((6, 10))).argmax(1)
    row = sizes.measured(x, y, 80, 5, 4)
    assert (row["samples"], row["width"]) == (80, 5)
    assert row["refused"] >= 0
    assert 0 <= row["held_out"] <= 1
    assert row["train_loss"] > 0
    page = sizes.render({"command": "the command", "iterations": 4, "results": [row]})
    assert f"| 80 | 5 | {row['refused']} | {row['train_loss']:.4f} | {row['held_out']:.4f} |" in page
