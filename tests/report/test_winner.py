"""The first card of a page, time to a level, and where the network errs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dladmm import InputError
from dladmm.report import read_report, render
from dladmm.report.curves import DASHES, PALETTE, dash_of, figures_of
from dladmm.report.data import Run
from dladmm.report.groups import group_runs
from dladmm.report.markup import FOLDED_FROM
from dladmm.report.winner import MEASURES, levels_of, measure_of, ranked, seconds_to
from report_runs import history, make_comparison, make_run

CONFUSION = {
    "n_rows": 30,
    "accuracy": 0.9,
    "auc": 0.95,
    "classes": ["cat", "<b>dog"],
    "confusion": [[17, 3], [0, 10]],
}


def run_of(folder, method, accuracy, cost=1.0, **options):
    seconds = [cost * (k + 1) for k in range(len(accuracy))]
    columns = {"iteration": list(range(1, len(accuracy) + 1)), "seconds": seconds, "val_accuracy": accuracy}
    return make_run(folder / method, columns, method=method, certificate=None, **options)


@pytest.fixture
def three(tmp_path):
    """The last is best at the end; the first was there soonest; one was good and then diverged."""
    run_of(tmp_path, "adam", [0.6, 0.91, 0.92])
    run_of(tmp_path, "gd", [0.99, 0.99], status="DIVERGED")
    run_of(tmp_path, "muon", [0.7, 0.8, 0.96], cost=5.0)
    return tmp_path


def test_the_best_method_comes_first_and_failed_ones_do_not_win(three):
    (group,) = group_runs(read_report(three).runs)
    measure = measure_of(group.runs)
    assert measure is MEASURES[0]
    places = ranked(group, measure)
    assert [place.variant.label for place in places] == ["Muon", "Adam"]
    assert levels_of(group, measure) == [0.9]
    by_label = {variant.label: variant for variant in group.variants}
    assert seconds_to(by_label["Adam"], "val_accuracy", 0.9) == 2.0
    assert seconds_to(by_label["Muon"], "val_accuracy", 0.9) == 15.0
    assert seconds_to(by_label["Adam"], "val_accuracy", 0.95) is None
    text = render(read_report(three))
    assert text.index("Best on digits") < text.index("Muon</p>") < text.index("Test accuracy 0.9600")
    assert "Next: Adam, 0.9200." in text
    assert "Soonest to 90 %: Adam, after 2 s." in text
    assert text.index("Test accuracy 0.9600") < text.index("Curves: digits</h2>")


def test_the_least_loss_wins_where_there_is_no_accuracy(tmp_path):
    for method, losses in (("adam", [3.0, 0.7]), ("gd", [0.1, 0.9]), ("muon", [0.3, 0.2])):
        columns = {"iteration": [1, 2], "seconds": [1.0, 2.0], "val_loss": losses}
        make_run(tmp_path / method, columns, method=method, certificate=None)
    (group,) = group_runs(read_report(tmp_path).runs)
    places = ranked(group, measure_of(group.runs))
    assert [(place.variant.label, place.figure) for place in places] == [
        ("Muon", 0.2),
        ("Adam", 0.7),
        ("GD", 0.9),
    ]
    assert "Test loss 0.2" in render(read_report(tmp_path))


def test_equal_figures_are_decided_by_seconds_and_close_ones_are_said_to_be(tmp_path):
    run_of(tmp_path / "a", "adam", [0.9, 0.95], cost=3.0)
    run_of(tmp_path / "a", "muon", [0.9, 0.95], cost=1.0)
    text = render(read_report(tmp_path / "a"))
    assert "As good, and slower: Adam." in text
    for seed, last in enumerate((0.90, 0.94)):
        run_of(tmp_path / "b" / str(seed), "adam", [last], seed=seed)
        run_of(tmp_path / "b" / str(seed), "muon", [last - 0.001], seed=seed)
    text = render(read_report(tmp_path / "b"))
    assert "Test accuracy 0.9200 ± 0.0283 over 2 runs" in text
    assert "The two differ by less than the deviation over runs." in text


def test_the_network_that_was_handed_out_is_judged_where_it_was_measured(tmp_path):
    run_of(tmp_path, "adam", [0.5, 0.99], tested={"n_rows": 30, "accuracy": 0.8})
    run_of(tmp_path, "muon", [0.5, 0.9])
    (group,) = group_runs(read_report(tmp_path).runs)
    assert [place.figure for place in ranked(group, MEASURES[0])] == [0.9, 0.8]


def test_a_confusion_matrix_is_shown_and_escaped(tmp_path):
    text = render(read_report(run_of(tmp_path, "adam", [0.9], tested=CONFUSION)))
    assert "Confusion matrix of 30 test rows" in text
    assert "&lt;b&gt;dog" in text
    assert "<b>dog" not in text
    assert 'class="numeric shade4" data-value="17.0"' in text
    assert 'class="numeric shade0" data-value="0.0"' in text
    assert "AUC 0.9500" in text


def test_predicted_against_true_is_drawn_and_told(tmp_path):
    bins = [
        {"rows": 2, "predicted": 100_000.0, "true": 120_000.0},
        {"rows": 2, "predicted": 3e5, "true": 2.9e5},
    ]
    tested = {"n_rows": 4, "r2": 0.9, "mae": 15_000.0, "rmse": 16_000.0, "predicted_against_true": bins}
    columns = {"iteration": [1], "seconds": [1.0], "val_r2": [0.9]}
    text = render(read_report(make_run(tmp_path, columns, tested=tested)))
    assert text.count('class="dot"') == 2
    assert "MAE 15,000, RMSE 16,000" in text
    assert "120,000" in text
    assert 'cx="34.0"' in text  # the lowest prediction lies at the left end


@pytest.mark.parametrize(
    "tested",
    [
        {"accuracy": 0.9},
        {"n_rows": 3, "accuracy": "high"},
        {"n_rows": 3, "accuracy": 1e300},
        {"n_rows": 3, "classes": ["a"], "confusion": [[1, 2]]},
        {"n_rows": 3, "classes": ["a"], "confusion": [["<b>"]]},
        {"n_rows": 3, "classes": ["a"]},
        {"n_rows": 3, "predicted_against_true": [{"rows": 1, "predicted": None, "true": 1}]},
        {"n_rows": 3, "predicted_against_true": "all"},
    ],
    ids=range(8),
)
def test_damaged_measures_are_refused(tmp_path, tested):
    run_of(tmp_path, "adam", [0.9], tested=tested)
    with pytest.raises(InputError, match="'tested' does not hold what a run writes there"):
        read_report(tmp_path)


def test_methods_of_different_cost_are_drawn_by_seconds(three, tmp_path):
    (figures,) = figures_of(group_runs(read_report(three).runs))
    assert figures[0].costs_differ
    (figures,) = figures_of(group_runs(read_report(make_comparison(tmp_path / "same")).runs))
    assert not figures[0].costs_differ
    (figures,) = figures_of(group_runs(read_report(make_run(tmp_path / "one")).runs))
    assert not figures[0].costs_differ


def test_many_runs_are_folded_and_few_are_not(tmp_path):
    few = render(read_report(make_comparison(tmp_path / "few", seeds=FOLDED_FROM // 2)))
    assert 'class="many"' not in few
    many = render(read_report(make_comparison(tmp_path / "many", seeds=FOLDED_FROM)))
    assert f"All {2 * FOLDED_FROM} runs</summary>" in many
    assert f"All {FOLDED_FROM} certificates</summary>" in many
    assert many.index("Best on digits") < many.index('class="many"')


def test_no_two_of_many_methods_look_alike():
    looks = [(style % len(PALETTE), dash_of(style)) for style in range(len(PALETTE) * len(DASHES))]
    assert len(set(looks)) == len(looks)


def test_streaming_runs_have_no_verdict_of_a_theory(tmp_path):
    make_run(tmp_path, history(), certificate={"certified": False, "streaming": True})
    (run,) = read_report(tmp_path).runs
    assert run.verdict is None
    assert json.loads((tmp_path / "metrics.json").read_text())["certificate"]["streaming"]


def test_a_streaming_run_has_no_panel_of_promises_and_cross_fitted_figures_are_of_unseen_rows(tmp_path):
    columns = history(primal_residual=[0.0] * 12, stationarity=[None] * 12, dual_optimality=[0.0] * 12)
    make_run(tmp_path, columns, certificate={"streaming": True}, mode="cross-fitted")
    (figures,) = figures_of(group_runs(read_report(tmp_path).runs))
    labels = {figure.title: [entry.label for entry in figure.entries] for figure in figures}
    assert labels["Accuracy"] == ["Training accuracy", "Unseen accuracy"]
    assert "Training objective" in labels
    assert "Residuals" not in labels
    assert "What the theory speaks of" not in labels


def test_a_level_is_reached_when_it_is_not_fallen_short_of_and_by_all_runs():
    def run(values):
        columns = {"seconds": [1.0, 2.0, 4.0], "val_accuracy": values}
        return SimpleNamespace(status="MAX_ITER", column=columns.__getitem__)

    exact, never = run([0.5, 0.9, 0.95]), run([0.1, 0.2, 0.3])
    assert seconds_to(SimpleNamespace(runs=[exact, exact]), "val_accuracy", 0.9) == 2.0
    assert seconds_to(SimpleNamespace(runs=[exact, never]), "val_accuracy", 0.9) is None


def test_a_run_without_an_iteration_is_not_safeguarded():
    certificate = {"accelerated": True, "monotone": True, "bounded": True, "agrees": True, "iterations": 0}
    run = Run("r", {}, "INTERRUPTED", "", {"iteration": []}, certificate, (), {})
    assert run.verdict == "not safeguarded"


@pytest.mark.parametrize("lacking", [None, "monotone", "bounded", "agrees"])
def test_a_safeguarded_run_fell_stayed_finite_and_agrees(lacking):
    certificate = {name: name != lacking for name in ("accelerated", "monotone", "bounded", "agrees")}
    run = Run("r", {}, "MAX_ITER", "", {"iteration": [1.0]}, certificate, (), {})
    assert run.verdict == ("safeguarded" if lacking is None else "not safeguarded")
