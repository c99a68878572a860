"""The report as data: which runs are found, what is refused, what is averaged and drawn."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dladmm import InputError
from dladmm.cli.app import app
from dladmm.report import read_report, render
from dladmm.report.curves import Curve, figures_of, slug, thinned
from dladmm.report.groups import differing, group_runs, shown
from report_runs import history, make_comparison, make_run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


# --- reading ---


def test_a_run_is_read_with_what_people_ask_first(tmp_path):
    accuracy = [0.5, 0.9, None, 0.8]
    columns = {"iteration": [1, 2, 3, 4], "seconds": [1, 2, 3, 4], "val_accuracy": accuracy}
    make_run(tmp_path / "r", columns, seed=7, hidden=[30])
    run = read_report(tmp_path / "r").runs[0]
    assert (run.name, run.method_name, run.dataset, run.seed, run.iterations) == (
        "r",
        "dlADMM",
        "digits",
        7,
        4,
    )
    assert (run.last("val_accuracy"), run.best("val_accuracy"), run.seconds_per_iteration) == (0.8, 0.9, 1.0)
    assert run.verdict == "certified"
    assert run.words[1] == "H = 0.5 and rho = 1.5 > 2H = 1."


def test_what_was_not_measured_and_what_is_not_finite_are_gaps(tmp_path):
    columns = {"iteration": [1, 2, 3, 4, 5], "loss": ["", "nan", "inf", "None", "2.5"]}
    assert read_report(make_run(tmp_path / "r", columns)).runs[0].column("loss") == [None] * 4 + [2.5]


def test_seconds_are_per_iteration_also_where_rows_are_not(tmp_path):
    columns = {
        "iteration": [10, 20, 30, 35],
        "seconds": [5.0, 10.0, 15.0, 17.5],
        "loss": [4.0, 3.0, 2.0, 1.0],
    }
    report = read_report(make_run(tmp_path, columns))
    assert report.runs[0].seconds_per_iteration == 0.5
    assert "<dt>Seconds per iteration</dt><dd>0.5</dd>" in render(report)


def test_runs_are_found_at_any_depth_and_named_by_their_place(tmp_path):
    make_comparison(tmp_path / "c", seeds=2)
    (tmp_path / "c" / "metrics.json").write_text("{}", encoding="utf-8")  # of the comparison, not of a run
    names = [run.name for run in read_report(tmp_path / "c").runs]
    assert names == ["cells/adam-0", "cells/adam-1", "cells/dladmm-0", "cells/dladmm-1"]


def test_the_method_and_the_data_have_names_even_where_nobody_gave_them(tmp_path):
    make_run(tmp_path / "a", mode="accelerated", dataset=None, csv="/home/somebody/own.csv")
    make_run(tmp_path / "b", dataset=None, npz="C:\\data\\own.npz")
    make_run(tmp_path / "c", dataset=None)
    make_run(tmp_path / "d", dataset="/home/somebody/other.npz", method="lbfgs")
    make_run(tmp_path / "e", method="mine")
    first, second, third, fourth, fifth = read_report(tmp_path).runs
    assert (first.method, first.method_name, first.dataset) == (
        "accelerated",
        "dlADMM (accelerated)",
        "own.csv",
    )
    assert (second.dataset, third.dataset, fourth.dataset) == ("own.npz", "c", "other.npz")
    assert (second.method, fourth.method_name, fifth.method_name) == ("dladmm", "L-BFGS", "mine")


@pytest.mark.parametrize(
    ("certificate", "verdict"),
    [
        ({"certified": True}, "certified"),
        ({"certified": False}, "not certified"),
        ({"accelerated": True, "monotone": True, "bounded": True, "agrees": True}, "safeguarded"),
        ({"accelerated": True, "monotone": False, "bounded": True, "agrees": True}, "not safeguarded"),
        ({"baseline": "adam", "certified": False}, None),
        (None, None),
    ],
)
def test_the_verdict_on_a_run_and_its_page(tmp_path, certificate, verdict):
    report = read_report(make_run(tmp_path / "r", certificate=certificate))
    assert report.runs[0].verdict == verdict
    assert (f">{verdict}<" in render(report)) == (verdict is not None)


def test_runs_that_kept_their_promise_are_counted_among_those_that_made_one(tmp_path):
    certificates = ({"certified": True}, {"certified": False}, {"baseline": "adam"})
    for name, certificate in zip("abc", certificates, strict=True):
        make_run(tmp_path / name, certificate=certificate, method=name)
    assert '<dt>Certified or safeguarded</dt><dd class="warn">1 of 2</dd>' in render(read_report(tmp_path))
    make_run(tmp_path / "b", certificate={"certified": True}, method="b")
    assert '<dt>Certified or safeguarded</dt><dd class="good">2 of 2</dd>' in render(read_report(tmp_path))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("history.csv", None, "is missing"),
        ("metrics.json", None, "is missing"),
        ("certificate.txt", None, "is missing"),
        ("certificate.txt", b" \n", "is empty"),
        ("history.csv", b"", "needs a header"),
        ("history.csv", b"a,b\n1,2\n", "'iteration' among them"),
        ("history.csv", b"iteration,loss,loss\n1,2,3\n", "distinct names"),
        ("history.csv", b"iteration,loss\n1,2\n2\n", "row 3: 1 fields"),
        ("history.csv", b"iteration,loss\n1,oops\n", "row 2, column 'loss': 'oops' is not a number"),
        ("history.csv", b"iteration,loss\n2,1\n1,1\n", "iterations must rise"),
        ("history.csv", b"iteration,loss\n,1\n", "iterations must rise"),
        ("history.csv", b"\xff\xfe\x00bad", "could not be read as UTF-8"),
        ("metrics.json", b"{", "is not JSON"),
        ("metrics.json", b"[" * 100_000, "is not JSON"),
        ("metrics.json", b'{"seed": ' + b"9" * 5000 + b"}", "is not JSON"),
        ("metrics.json", b"[1]", "must hold a JSON object"),
        ("metrics.json", b"{}", "'settings' is missing or not an object"),
        ("metrics.json", b'{"settings": {}, "status": 3}', "'status' is missing or not a text"),
        (
            "metrics.json",
            b'{"settings": {}, "status": "X", "certificate": 1}',
            "'certificate' is missing or not",
        ),
    ],
)
def test_what_is_damaged_is_named_and_nothing_is_written(tmp_path, file, content, words):
    folder = make_run(tmp_path / "runs" / "r")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")])
    assert isinstance(result.exception, InputError)
    assert str(folder / file) in str(result.exception)
    assert words in str(result.exception)
    assert not (tmp_path / "page.html").exists()


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_file_there_is_a_page_or_a_refusal(tmp_path, data):
    folder = make_run(tmp_path / "r", seed=data.draw(JSON))
    path = folder / data.draw(st.sampled_from(["history.csv", "metrics.json", "certificate.txt"]))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content)))
    taken = data.draw(st.integers(0, 20))
    put = data.draw(
        st.one_of(st.binary(max_size=6), st.sampled_from([b"1e308", b"NaN", b"null", b"[", b'"', b"\n"]))
    )
    path.write_bytes(content[:place] + put + content[place + taken :])
    try:
        told = render(read_report(folder))
    except InputError as error:
        told = str(error)
    assert told.endswith("</html>\n") or str(path) in told


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    folder = make_run(tmp_path / "r")
    with (folder / "history.csv").open("r+b") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(InputError, match=r"history\.csv is larger than 64 MB"):
        read_report(folder)


def test_a_folder_without_runs_and_no_folder_at_all_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        read_report(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        read_report(tmp_path / "nowhere")


# --- grouping and averaging ---


def test_only_seeds_are_averaged_and_other_settings_make_a_curve_of_their_own(tmp_path):
    for rho in (1.5, 3.0):
        for seed in (0, 1):
            make_run(tmp_path / f"{rho}-{seed}", rho=rho, seed=seed)
    make_run(tmp_path / "adam", method="Adam", lr=0.1)
    make_run(tmp_path / "other", dataset="cora")
    groups = group_runs(read_report(tmp_path).runs)
    assert [group.dataset for group in groups] == ["cora", "digits"]
    labels = {variant.label: len(variant.runs) for variant in groups[1].variants}
    assert labels == {"dlADMM, rho 1.5": 2, "dlADMM, rho 3": 2, "Adam": 1}


def test_the_mean_ends_where_the_first_run_does(tmp_path):
    make_run(tmp_path / "a", {"iteration": [1, 2, 3], "loss": [1.0, 2.0, 3.0]}, seed=0)
    make_run(tmp_path / "b", {"iteration": [1, 2], "loss": [3.0, 6.0]}, seed=1)
    variant = group_runs(read_report(tmp_path).runs)[0].variants[0]
    assert variant.mean("loss") == [(1, None, 2.0), (2, None, 4.0), (3, None, None)]
    ((figure,),) = figures_of(group_runs(read_report(tmp_path).runs))
    mean = figure.entries[0].curves[-1]
    assert (mean.name, mean.thin, mean.values) == ("mean of 2 runs", False, [2.0, 4.0])
    assert [curve.thin for curve in figure.entries[0].curves] == [True, True, False]


def test_measuring_now_and_then_is_no_gap_but_a_hole_is(tmp_path):
    n = 12
    loss = [1.0] * n
    loss[5] = None
    rare = [float(k) if k % 3 == 0 else None for k in range(n)]
    make_run(tmp_path, {"iteration": list(range(1, n + 1)), "loss": loss, "primal_residual": rare})
    dense, sparse = (
        some.entries[0].curves[0] for some in figures_of(group_runs(read_report(tmp_path).runs))[0]
    )
    assert dense.values == loss
    assert sparse.values == [0.0, 3.0, 6.0, 9.0]


def test_one_method_is_shown_by_quantity_and_several_by_method(tmp_path):
    make_run(tmp_path / "one" / "r")
    make_comparison(tmp_path / "two")
    (alone,) = figures_of(group_runs(read_report(tmp_path / "one").runs))
    (compared,) = figures_of(group_runs(read_report(tmp_path / "two").runs))
    assert [e.label for e in alone[0].entries] == ["Training accuracy", "Test accuracy"]
    assert [e.label for e in compared[0].entries] == ["dlADMM", "Adam"]
    assert [figure.log for figure in alone] == [False, False, False, True]
    only_ours = next(figure for figure in compared if figure.title == "Augmented Lagrangian")
    assert [e.label for e in only_ours.entries] == ["dlADMM"]


def test_residuals_leave_out_methods_that_have_no_constraint_to_meet(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", history(primal_residual=[0.0] * 12), method="adam")
    (figures,) = figures_of(group_runs(read_report(tmp_path).runs))
    figure = next(figure for figure in figures if figure.title == "Primal residual")
    assert [entry.label for entry in figure.entries] == ["dlADMM"]
    assert figure.explanation.endswith("Left out, for it is always 0 there: Adam.")
    assert figure.log


def test_a_method_keeps_its_colour_from_one_data_set_to_the_next(tmp_path):
    make_run(tmp_path / "a0", dataset="a")
    make_run(tmp_path / "a1", dataset="a", method="adam")
    make_run(tmp_path / "b1", dataset="b", method="adam")
    make_run(tmp_path / "b2", dataset="b", method="sgd")
    first, second = figures_of(group_runs(read_report(tmp_path).runs))
    assert {e.label: e.style for e in first[0].entries} == {"dlADMM": 0, "Adam": 1}
    assert {e.label: e.style for e in second[0].entries} == {"Adam": 1, "sgd": 2}


def test_thinning_keeps_ends_and_spikes():
    values = [1.0] * 10_000
    values[4567] = 99.0
    values[7001] = -5.0
    steps = [float(k) for k in range(10_000)]
    thin = thinned(Curve("", False, steps, steps, values), 1500)
    assert len(thin.values) <= 1502
    assert (max(thin.values), min(thin.values), thin.iteration[0], thin.iteration[-1]) == (
        99.0,
        -5.0,
        0,
        9999,
    )
    assert thin.iteration == sorted(thin.iteration)


def test_words_for_settings_and_names_for_files():
    assert shown({"name": "l2", "strength": 0.1}) == "l2 strength 0.1"
    assert [shown(value) for value in (None, True, [3, 4], [], 0.5)] == [
        "default",
        "yes",
        "3, 4",
        "none",
        "0.5",
    ]
    assert slug("Größe / <b>") == "gr-e-b"
    assert differing([{"a": 1, "b": None}, {"a": 1}]) == ["b"]
