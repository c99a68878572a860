"""Every table and figure of the paper has its experiment, with the paper's settings."""

from __future__ import annotations

import pytest

from dladmm import datasets
from dladmm.base.errors import InputError
from dladmm.reproduce import ORDER, experiment
from dladmm.reproduce.catalogue import chosen
from dladmm.reproduce.claims import CHECKS
from dladmm.reproduce.outcomes import outcome
from dladmm.reproduce.paper import figures
from dladmm.runs.evidence import Evidence
from dladmm.runs.plan import cells
from small_experiments import small

LABELS = {
    "tab:MLP dataset", "fig:convergence", "fig:divergence", "fig:MLP test", "tab:running time 1",
    "tab:running time 2", "tab:gcn dataset", "fig:gcn convergence", "fig:gcn divergence", "tab:gcn performance",
    "tab:running time 3", "fig:gcn memory",
}  # fmt: skip
"""Every table and figure of the paper's section on experiments."""


def test_every_item_of_the_paper_has_an_experiment_and_its_figures():
    assert {experiment(name).paper for name in ORDER} - {""} == LABELS
    assert set(figures()) == LABELS
    for label, paper in figures().items():
        assert paper["caption"], label
        assert paper.get("claims") or any(isinstance(part, dict) for part in paper.values()), label
        assert all(about["check"] in CHECKS for about in paper.get("claims", ()))


@pytest.mark.parametrize("name", ORDER)
def test_cells_have_distinct_names_and_quick_ones_are_small(name):
    full, quick = (cells(experiment(name, scale), "cpu") for scale in ("full", "quick"))
    assert len({cell.name for cell in full}) == len(full)
    assert all(cell.max_iter <= 30 and max(cell.hidden) <= 128 and cell.seed <= 1 for cell in quick)
    assert all(cell.rows is None or cell.rows <= 4000 for cell in quick)
    if experiment(name).network == "mlp":
        assert all(cell.rows for cell in quick)
    assert not full or [cell.settings for cell in full] != [cell.settings for cell in quick]
    if experiment(name).kind == "time":
        paper = figures().get(experiment(name).paper, {})
        for dataset in paper.keys() - {"caption", "claims"}:
            e = experiment(name)
            assert paper[dataset]["rho"] == e.grid["rho"]
            sizes = e.grid[e.axis]
            assert paper[dataset][e.axis] == (sizes[dataset] if isinstance(sizes, dict) else sizes)
            assert [len(row) for row in paper[dataset]["seconds"]] == [5] * 5


def test_the_papers_settings_stand_in_the_configurations():
    accuracy = {
        c.settings["method"]: c for c in cells(experiment("mlp-accuracy"), "cpu") if c.dataset == "mnist"
    }
    adams = {"adam", "adam-same", "adam-batches"}
    assert set(accuracy) == {"dladmm-paper", "accelerated", "gd", "adagrad", "adadelta", "admm", *adams}
    paper = accuracy["dladmm-paper"].settings
    assert (paper["rho"], paper["nu"], paper["hidden"], paper["max_iter"]) == (1e-6, 1e-6, [1000, 1000], 200)
    assert (paper["rho_rule"], paper["start"], paper["alpha0"]) == ("authors", "paper", 1.0)
    assert accuracy["admm"].settings["rho"] == 1.0
    assert accuracy["gd"].settings["lr"] == 1e-6
    (mnist, _) = cells(experiment("mlp-convergence"), "cpu")
    assert (mnist.settings["rho"], mnist.settings["nu"], mnist.settings.get("rho_rule")) == (1.0, 1.0, None)
    graphs = cells(experiment("gcn-accuracy"), "cpu")
    assert {c.seed for c in graphs} == set(range(10))
    assert len({(c.dataset, c.settings["method"]) for c in graphs}) == 5 * 13
    labelled = next(c for c in graphs if c.name == "pubmed-dladmm-0")
    assert (labelled.settings["mu"], labelled.max_iter) == (0.5, 15)  # docs/graphs.md


def test_unknown_names_and_scales_are_refused():
    with pytest.raises(InputError, match="unknown experiment 'mlp'; known are mlp-data"):
        experiment("mlp")
    with pytest.raises(InputError, match="scale must be full or quick"):
        experiment("mlp-data", "tiny")
    with pytest.raises(InputError, match="experiment x: unknown setting epochs"):
        small(epochs=3, name="x")
    assert chosen("all") == list(ORDER)
    assert chosen("gcn-data, mlp-data") == ["gcn-data", "mlp-data"]


@pytest.mark.realdata
def test_the_data_sets_have_the_papers_statistics(tmp_path):
    try:
        datasets.load("cora")
        datasets.load("mnist")
    except Exception as error:
        pytest.skip(f"no benchmark data: {error}")
    for name in ("mlp-data", "gcn-data"):
        e = experiment(name, "quick")
        assert {f["verdict"] for f in outcome(e, Evidence((), {}, {})).findings} == {"agrees"}
