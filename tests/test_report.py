"""The report as data and as text: what is read, refused, averaged, escaped and written."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dladmm import InputError, machine
from dladmm.cli import app
from dladmm.report import read_report, render, write_figures, write_page
from dladmm.report.curves import PALETTE, Curve, figures_of, in_words, slug, thinned
from dladmm.report.groups import differing, group_runs, shown
from dladmm.report.markup import el, json_for_script
from report_runs import history, make_comparison, make_run

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "src" / "dladmm" / "report" / "assets"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


class Outline(HTMLParser):
    """Tags and attributes of a page, and the text of its JSON."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self._inside = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = ("id", "report-data") in attrs

    def handle_data(self, data):
        if self._inside:
            self.data += data
            self._inside = False

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


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


# --- the page ---


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    text = render(read_report(make_comparison(tmp_path / "c")))
    assert re.findall(r"https?://|//[a-z0-9-]+\.[a-z]", text) == []
    outline = Outline(text)
    assert [a["href"] for a in outline.all("link")] == ["data:,"]
    assert all("src" not in a for _, a in outline.tags)
    assert "@import" not in text
    assert "url(" not in text.split("<script")[0]


def test_the_policy_allows_our_script_and_style_alone(tmp_path):
    text = render(read_report(make_run(tmp_path / "r")))
    policy = next(a["content"] for a in Outline(text).all("meta") if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not any(name == "style" or name.startswith("on") for _, a in Outline(text).tags for name in a)


EVIL = "<script>window.broken=1</script>\"'&"


def test_everything_from_files_is_escaped(tmp_path):
    columns = history() | {EVIL: [1] * 12}
    settings = {EVIL: EVIL, "dataset": EVIL, "method": f"</script>{EVIL}", "seed": EVIL, "hidden": [EVIL]}
    for name in ("a", "b"):
        folder = make_run(
            tmp_path / "<script>x" / name, columns, status=EVIL, machine={EVIL: EVIL}, **settings
        )
        (folder / "certificate.txt").write_text(f"{EVIL}\n  {EVIL}\n", encoding="utf-8")
        settings["lr"] = EVIL
    text = render(read_report(tmp_path / "<script>x"))
    assert text.count("<script") == 2  # the data and the script of the page itself
    assert "window.broken=1<" not in text
    assert text.count("</script") == 2
    titles = [figure["entries"][0]["label"] for figure in json.loads(Outline(text).data)["figures"]]
    assert any(EVIL in title for title in titles)  # and arrives whole


def test_markup_escapes_unless_it_made_the_text_itself():
    assert el("b", "<", el("i", "&"), class_='"') == '<b class="&quot;">&lt;<i>&amp;</i></b>'
    assert json_for_script({"a": "</script><!--&"}) == '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'


def test_landmarks_headings_captions_and_regions(tmp_path):
    outline = Outline(render(read_report(make_comparison(tmp_path / "c"))))
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(outline.all(landmark)) == 1
    assert len(outline.all("caption")) == len(outline.all("table")) >= 4
    assert all(a.get("scope") in ("col", "row") for a in outline.all("th"))
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    assert all(a["href"][1:] in ids for a in outline.all("a"))
    assert all(a["aria-labelledby"] in ids for a in outline.all("figure"))


def test_the_page_says_what_happened_without_its_script(tmp_path):
    text = render(read_report(make_comparison(tmp_path / "c")))
    for words in (
        "cells/adam-2",
        "0.8583",
        "Certified: everything",
        "2.13.0",
        "some processor",
        "mean of 3 runs",
    ):
        assert words in text
    assert "/home" not in render(read_report(make_run(tmp_path / "p", out="/home/me/x", data_dir="/home/me")))


def test_a_figure_in_words(tmp_path):
    (figures,) = figures_of(group_runs(read_report(make_run(tmp_path / "r")).runs))
    assert in_words(figures[0])[1] == (
        "Test accuracy: 0.4 at iteration 1, 0.8583 at iteration 12; lowest 0.4 at 1, highest 0.8583 at 12."
    )


def test_a_run_that_never_began_and_one_without_accuracy_have_pages(tmp_path):
    make_run(tmp_path / "empty", {"iteration": [], "loss": []}, dataset="a", status="INTERRUPTED")
    make_run(tmp_path / "regression", {"iteration": [1, 2], "val_loss": [1.0, math.nan]}, dataset="b")
    text = render(read_report(tmp_path))
    assert "Nothing was measured." in text
    assert "Final test loss" in text
    assert "nan" not in Outline(text).data


def test_numbers_of_the_page_are_those_of_the_runs_and_columns_are_shared(tmp_path):
    data = json.loads(Outline(render(read_report(make_run(tmp_path / "r")))).data)
    curve = data["figures"][0]["entries"][1]["curves"][0]
    assert curve["values"] == pytest.approx(history()["val_accuracy"], rel=1e-6)
    assert data["columns"][curve["iteration"]] == list(range(1, 13))
    # iterations and seconds of all rows, and of those rows where stationarity was measured
    assert len(data["columns"]) == 4


def test_the_page_is_written_whole_or_not_at_all(tmp_path):
    report = read_report(make_run(tmp_path / "r"))
    assert write_page(report, tmp_path / "new" / "p.html").read_text(encoding="utf-8") == render(report)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="could not be written"):
        write_page(report, tmp_path / "file" / "p.html")


# --- figures ---


def test_figures_are_png_and_svg_the_same_each_time(tmp_path):
    report = read_report(make_comparison(tmp_path / "c", seeds=2))
    first = write_figures(report, tmp_path / "one")
    second = write_figures(report, tmp_path / "two")
    assert {path.suffix for path in first} == {".png", ".svg"}
    assert "digits-test-accuracy.svg" in [path.name for path in first]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    timed = write_figures(report, tmp_path / "timed", seconds=True)
    extra = {path.name for path in timed} - {path.name for path in first}
    assert "digits-test-accuracy-by-seconds.png" in extra
    png = next(path for path in first if path.suffix == ".png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == 1050  # 3.5 inches at 300 dots


def test_data_sets_whose_names_differ_in_signs_alone_keep_their_figures(tmp_path):
    for place, name in enumerate(("a b", "a/b")):
        make_run(tmp_path / str(place), {"iteration": [1, 2], "loss": [2, 1]}, dataset=name)
    written = write_figures(read_report(tmp_path), tmp_path / "figures")
    assert len({path.name for path in written}) == len(written) == 4


def test_runs_that_blew_up_or_hardly_began_can_be_drawn(tmp_path):
    make_run(
        tmp_path / "a", history(loss=[10.0 ** (25 * k) for k in range(12)], lagrangian=[-1e199, 1e199] * 6)
    )
    make_run(tmp_path / "b", history(1), dataset="b")
    make_run(tmp_path / "c", {"iteration": [1, 2], "loss": [0.0, 0.0]}, dataset="c")
    report = read_report(tmp_path)
    assert report.runs[0].column("loss")[-1] is None
    assert len(write_figures(report, tmp_path / "figures")) == 2 * (4 + 4 + 1)


def test_figures_without_matplotlib_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"dladmm\[plot\]"):
        write_figures(read_report(make_run(tmp_path / "r")), tmp_path / "figures")


def _contrast(one, other):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_seen_on_their_paper():
    css = (ASSETS / "report.css").read_text(encoding="utf-8")
    pairs = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", css))
    colours = {name: pair.split(", ") for name, pair in pairs.items()}
    for mode in (0, 1):
        for name in ("ink", "soft", "accent", "good", "warn", "bad"):
            assert min(_contrast(colours[name][mode], colours[p][mode]) for p in ("paper", "card")) >= 4.5, (
                name
            )
        for pair in PALETTE:
            assert _contrast(pair[mode], colours["card"][mode]) >= 3
        assert _contrast(colours["edge"][mode], colours["card"][mode]) >= 3


# --- machine, command, package ---


def test_the_machine_is_described_without_host_or_folder():
    described = machine.describe()
    assert {"python", "torch", "cpu", "cpu_count", "device"} <= set(described)
    text = json.dumps(described)
    assert platform.node() not in text
    assert str(Path.home()) not in text


def test_the_command_writes_page_and_figures_and_says_so(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "r")
    result = CliRunner().invoke(app, ["report", str(folder), "--figures", "--json"])
    answer = json.loads(result.output)
    assert answer["runs"] == 1
    assert answer["page"] == str(folder / "report.html")
    assert len(answer["figures"]) == 8
    assert all(Path(path).stat().st_size > 0 for path in [answer["page"], *answer["figures"]])
    again = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "p.html")])
    assert "Wrote 1 run to" in again.output
    opened = []
    monkeypatch.setattr("typer.launch", opened.append)
    CliRunner().invoke(app, ["report", str(folder), "--open"])
    assert opened == [str(folder / "report.html")]
    described = CliRunner().invoke(app, ["report", "--help"]).output
    assert "Example" in described


@pytest.mark.slow
def test_an_installed_wheel_has_what_the_page_is_made_of(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    make_run(tmp_path / "r")
    code = "import dladmm.report as r; r.write_page(r.read_report('r'), 'p.html'); print(r.__file__)"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(installed)
    assert (tmp_path / "p.html").read_text(encoding="utf-8") == render(read_report(tmp_path / "r"))
