"""Renders a report as one self-contained HTML file, with styles, script and data inside.

The charts are drawn by a small script of our own (``assets/*.js``) instead of plotly.
plotly.js would add four megabytes to every page, a chart it draws cannot be read with the keyboard or by a screen
reader, and it needs inline styles and code made at run time, which a strict content security policy forbids. What we
need of it is lines, two kinds of axis, zoom and a legend: a few hundred lines that can be read and are tested in a
browser. The policy in the page allows exactly our script and our styles, by their hashes: text from a run's files is
escaped, and if that ever failed it still could not run.
"""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from dladmm._version import __version__
from dladmm.base.atomic import replacing
from dladmm.base.errors import InputError
from dladmm.report.curves import PALETTE, Curve, Figure, dash_of, figures_of, in_words, thinned
from dladmm.report.data import Column, Report
from dladmm.report.groups import DatasetGroup, group_runs
from dladmm.report.judged import errors_of
from dladmm.report.markup import Safe, el, join, json_for_script
from dladmm.report.result_tables import runs_table, variants_table
from dladmm.report.sections import certificates, machines, overview, settings_tables
from dladmm.report.winner import measure_of, ranked

SCRIPTS = ("scales.js", "chart.js", "gestures.js", "report.js")

HELP = {
    "mouse": "Drag a box to zoom in, double-click to see all again; Ctrl and the wheel zoom too. With the keyboard on "
    "a chart: arrow keys read values, + and − zoom, Shift and arrows move along, 0 shows all. ",
    "finger": "Slide a finger along a chart to read its values; the buttons zoom in there, then a finger moves along. ",
    "all": "The legend hides curves.",
}


def write_page(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as an HTML page to ``path``, atomically, and return the path."""
    target = Path(path)
    text = render(report)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(text.encode())
    except OSError as error:
        raise InputError(f"{target} could not be written: {error}") from error
    return target


def render(report: Report) -> str:
    """The report as HTML text; the same runs give the same bytes."""
    groups = group_runs(report.runs)
    figures = figures_of(groups)
    sections = [
        ("overview", "Overview", overview(report, groups)),
        *_curve_sections(groups, figures),
        ("certificate", "Certificate", certificates(report.runs)),
        ("settings", "Settings", settings_tables(report.runs)),
        ("machine", "Machine", machines(report.runs)),
    ]
    if len(report.runs) > 1:
        sections.insert(-3, ("runs", "Runs", runs_table(report.runs)))
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("template.html")).substitute(
        title=join([f"{report.title} – dladmm report"]),
        heading=join([report.title]),
        policy=policy,
        style=style,
        script=script,
        nav=join(el("li", el("a", title, href=f"#{key}")) for key, title, _ in sections),
        main=join(_section(key, title, body) for key, title, body in sections),
        data=json_for_script(_data([figure for some in figures for figure in some])),
        version=join([__version__]),
    )


def _curve_sections(groups: list[DatasetGroup], figures: list[list[Figure]]) -> list[tuple[str, str, Safe]]:
    sections, number = [], 0
    for place, (group, some) in enumerate(zip(groups, figures, strict=True)):
        charts = [_chart(number + i, figure) for i, figure in enumerate(some)]
        number += len(some)
        body = el("div", *charts, class_="charts") if charts else el("p", "Nothing was measured.")
        if place == 0:
            body = join([_help(), body])
        if len(group.runs) > 1:
            body = join([variants_table(group), body])
        sections.append((f"curves-{place}", f"Curves: {group.dataset}", body))
        sections += _errors_section(place, group)
    return sections


def _errors_section(place: int, group: DatasetGroup) -> list[tuple[str, str, Safe]]:
    """Where the best network of a data set errs; nothing where its runs did not record it."""
    measure = measure_of(group.runs)
    places = [] if measure is None else ranked(group, measure)
    run = places[0].variant.runs[0] if places else group.runs[0]
    found = errors_of(run)
    if found is None:
        return []
    whose = el("p", f"Of {run.method_name}, run {run.name}.", class_="note help")
    body = found if len(group.runs) == 1 else join([whose, found])
    return [(f"errors-{place}", f"Errors: {group.dataset}", body)]


def _help() -> Safe:
    return el(
        "p",
        *(el("span", text, class_=hand) for hand, text in HELP.items()),
        class_="note help",
        id="chart-help",
    )


def _chart(number: int, figure: Figure) -> Safe:
    """The frame of a chart and its description; the script draws the rest."""
    name, words = f"figure-{number}", f"figure-{number}-words"
    alternative = el(
        "details",
        el("summary", "In words", el("span", f": {figure.title}", class_="unseen")),
        el("ul", *(el("li", sentence) for sentence in in_words(figure))),
    )
    data = el(
        "details", el("summary", "Data", el("span", f": {figure.title}", class_="unseen")), class_="data"
    )
    return el(
        "figure",
        el("figcaption", el("h3", figure.title, id=name), el("p", figure.explanation, id=words)),
        el("div", el("svg", aria_hidden="true"), class_="plot"),
        alternative,
        data,
        class_="chart",
        data_figure=number,
        aria_labelledby=name,
    )


def _section(key: str, title: str, body: Safe) -> Safe:
    heading = f"{key}-heading"
    return el("section", el("h2", title, id=heading), body, id=key, aria_labelledby=heading)


def _data(figures: list[Figure]) -> dict[str, Any]:
    """The data for the script. Columns of iterations and seconds are shared by many curves and stored once."""
    columns: dict[tuple[float | None, ...], int] = {}

    def shared(column: Column) -> int:
        return columns.setdefault(tuple(map(_short, column)), len(columns))

    def curve_data(curve: Curve) -> dict[str, Any]:
        curve = thinned(curve)
        return {
            "name": curve.name,
            "thin": curve.thin,
            "iteration": shared(curve.iteration),
            "seconds": shared(curve.seconds),
            "values": [_short(value) for value in curve.values],
        }

    drawn = [
        {
            "title": figure.title,
            "yLabel": figure.y_label,
            "log": figure.log,
            "hasSeconds": figure.has_seconds,
            "byTime": figure.costs_differ,
            "floor": figure.floor,
            "entries": [
                {
                    "label": entry.label,
                    "style": entry.style % len(PALETTE),
                    "dash": " ".join(map(str, dash_of(entry.style))),
                    "curves": [curve_data(curve) for curve in entry.curves],
                }
                for entry in figure.entries
            ],
        }
        for figure in figures
    ]
    return {"figures": drawn, "columns": [list(column) for column in columns]}


def _short(value: float | None) -> float | None:
    """The value rounded to seven digits, which is more than a chart shows and halves the size."""
    return None if value is None else float(f"{value:.7g}")


def _style() -> str:
    colours = "".join(f"--s{i}:light-dark({light},{dark});" for i, (light, dark) in enumerate(PALETTE))
    return f":root{{{colours}}}\n{_asset('report.css')}"


def _script() -> str:
    return '(() => {\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "})();\n"


def _asset(name: str) -> str:
    return (resources.files("dladmm.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
