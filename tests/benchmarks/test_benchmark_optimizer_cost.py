"""The benchmark of a step's cost runs, and its ratios are those of what it measured."""

import json
import re
import sys

import optimizer_cost
import pytest


def test_every_optimizer_has_a_row_with_its_ratio(monkeypatch, capsys, tmp_path):
    file = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["optimizer_cost.py", "--device", "cpu", "--small", "--json", str(file)])
    optimizer_cost.main()
    rows, lines = json.loads(file.read_text()), capsys.readouterr().out.splitlines()[2:]
    assert [row["optimizer"] for row in rows] == [*optimizer_cost.OPTIMIZERS] * len(optimizer_cost.SMALL)
    for row, line in zip(rows, lines, strict=True):
        base = next(other for other in rows if other["network"] == row["network"])
        milliseconds, ratio = re.search(r"([\d.]+) \(([\d.]+)\) \|", line).groups()
        assert float(milliseconds) == pytest.approx(row["eager"], abs=0.01)
        assert float(ratio) == pytest.approx(row["eager"] / base["eager"], abs=0.01)
        assert row.get("state", 0) <= 3
