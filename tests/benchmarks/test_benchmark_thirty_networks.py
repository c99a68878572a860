"""The program that trains other libraries' networks: those of PyTorch Geometric pass, absent libraries are named."""

import importlib.util
import json
import sys

import pytest
import thirty_networks
from torch import nn


def run(monkeypatch, capsys, tmp_path, *arguments):
    file = tmp_path / "rows.json"
    monkeypatch.setattr(
        sys, "argv", ["thirty_networks.py", "--device", "cpu", "--json", str(file), *arguments]
    )
    code = thirty_networks.main()
    return code, json.loads(file.read_text()), capsys.readouterr().out


def test_graph_networks_pass(monkeypatch, capsys, tmp_path):
    code, rows, out = run(monkeypatch, capsys, tmp_path, "--only", *thirty_networks.GRAPHS)
    assert code == 0
    assert [row["network"] for row in rows] == list(thirty_networks.GRAPHS)
    assert all(row["passed"] and row["maps"] >= 2 and row["state"] <= 3 for row in rows)
    assert f"{len(rows)} of {len(rows)} networks passed" in out


def test_absent_libraries_and_failures_are_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch_geometric" or None)
    broken = {"broken": lambda: (nn.Linear(2, 2), lambda module: module(None))}
    networks = {"transformers": thirty_networks.LANGUAGE, "torch_geometric": broken}
    monkeypatch.setattr(thirty_networks, "NETWORKS", networks)
    code, rows, out = run(monkeypatch, capsys, tmp_path)
    assert code == 1
    assert "transformers is not installed: BERT, " in out
    assert "broken | FAILED: TypeError" in out
    assert "0 of 1 networks passed" in out
    assert not rows[0]["passed"]


@pytest.mark.parametrize(("steps", "passed"), [(20, True), (1, False)])
def test_a_loss_that_does_not_fall_does_not_pass(steps, passed):
    assert thirty_networks.run(thirty_networks.GRAPHS["GraphSAGE"], "cpu", steps)["passed"] is passed
