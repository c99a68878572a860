"""The page leads with what the network is worth; the certificate comes after it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dladmm import InputError, mlp, train
from dladmm.report import read_report, write_page
from dladmm.training.run_folder import write_run


@pytest.fixture
def page(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = 1e5 + 3e4 * np.sin(2 * X[:, :1])

    def write(max_iter, **changes):
        settings = {"loss": "squared", "mode": "accelerated", "validation": (X, y)}
        result = train(mlp([3, 8, 1]), X, y, max_iter=max_iter, **settings)
        standing = result.standing.to_dict() | changes
        write_run(result, tmp_path / "run", {"dataset": "sine"}, curves=False, standing=standing)
        write_page(read_report(tmp_path), tmp_path / "report.html")
        return result, (tmp_path / "report.html").read_text(encoding="utf-8")

    return write


def test_the_figure_comes_first_and_the_certificate_is_of_the_optimisation(page):
    result, text = page(40)
    assert result.standing.measure == "R^2"
    assert result.standing.network > result.standing.linear
    places = [
        text.index(words) for words in ("R^2 on 80 held-out rows", "A linear model", "About the optimisation")
    ]
    assert places == sorted(places)
    assert "WARNING" not in text
    assert "Explained variance" in text
    assert format(result.history.last("val_r2"), ".4f") in text


def test_a_useless_network_is_called_one(page):
    _, text = page(1, network=0.0, warning="WARNING: no better than a constant")
    assert text.index("WARNING: no better than a constant") < text.index("R^2 on 80 held-out rows")


def test_a_damaged_comparison_is_refused(page, tmp_path):
    page(1)
    path = tmp_path / "run" / "metrics.json"
    metrics = json.loads(path.read_text())
    for standing in ({"measure": 1}, {"measure": "R^2", "rows": "x", "network": "much", "constant": 0}):
        path.write_text(json.dumps(metrics | {"standing": standing}))
        with pytest.raises(InputError, match="standing"):
            read_report(tmp_path)
