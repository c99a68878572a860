"""The report as a page, as figures, as a command: escaped, self-contained, readable, in the wheel."""

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
from typer.testing import CliRunner

from dladmm import InputError
from dladmm.cli.app import app
from dladmm.report import read_report, render, write_figures, write_page
from dladmm.report.curves import PALETTE, figures_of, in_words
from dladmm.report.groups import group_runs
from dladmm.report.markup import el, json_for_script
from dladmm.training.run_folder import describe
from report_runs import history, make_comparison, make_run

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "src" / "dladmm" / "report" / "assets"


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
    described = describe()
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
