"""Small experiments and made-up evidence, for the tests of ``runs`` and ``reproduce``."""

from __future__ import annotations

import json

import pytest

from dladmm.report.data import Run
from dladmm.runs.evidence import Evidence
from dladmm.runs.experiment import from_settings
from dladmm.runs.plan import cells
from dladmm.runs.running import Session

TIME = {
    "title": "time", "paper": "", "kind": "time", "network": "mlp", "datasets": ["digits"], "layers": 1,
    "max_iter": 3, "axis": "neurons", "rows": 50, "grid": {"rho": [0.1, 1.0], "neurons": [2, 4]},
    "methods": {"dladmm-paper": {"trainer": "dladmm", "preset": "paper", "rho_rule": "none"}},
}  # fmt: skip
ACCURACY = {
    "title": "accuracy", "paper": "", "kind": "accuracy", "network": "gcn", "datasets": ["karate"], "hidden": [4],
    "max_iter": 3, "seeds": 2, "diagnostics_every": 1,
    "methods": {"dladmm": {"chosen": True}, "adam": {}},
}  # fmt: skip


def small(settings=TIME, scale="full", name="mlp-time-neurons", **changes):
    return from_settings(name, scale, json.loads(json.dumps(settings | changes)))


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path, say=lambda line: None)


def made(e, curves, seconds=0.5):
    """Evidence of runs with given curves by cell; ``curves`` says what columns a cell has, ``seconds`` may too."""
    runs = {}
    for cell in cells(e, "cpu"):
        columns = curves(cell)
        n = len(next(iter(columns.values())))
        columns |= {
            "iteration": [k + 1.0 for k in range(n)],
            "seconds": [(seconds(cell) if callable(seconds) else seconds) * (k + 1) for k in range(n)],
        }
        runs[cell.name] = Run(cell.name, cell.settings, "MAX_ITER", "", columns, None, (), {"device": "cpu"})
    return Evidence(tuple(cells(e, "cpu")), runs, {})
