"""``docs/results`` holds records of experiments that exist, with their settings; pages show commands that make them."""

from __future__ import annotations

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import pytest
from experiments.catalogue import NAMES, experiment
from experiments.run import parser
from pages import adams, width
from pages.adams import standing
from pages.records import RESULTS, cells_of, read
from pages.results import render

from dladmm.reproduce import ORDER
from dladmm.runs.evidence import Mean
from dladmm.runs.plan import cells
from dladmm.runs.record import shown_settings

ROOT = Path(__file__).parents[2]
RECORDS = [path.stem for path in RESULTS.glob("*.json") if "cells" in read(path.stem)]
RUN = "python benchmarks/experiments/run.py "
GRAPHS = ("cora", "citeseer", "pubmed", "coauthor_cs", "coauthor_physics")


def test_every_own_experiment_has_a_record():
    assert set(NAMES) <= set(RECORDS) <= {*NAMES, *ORDER}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_recorded_cells_are_those_of_the_experiment(name):
    planned = {cell.name: shown_settings(cell) for cell in cells(experiment(name), "cpu")}
    recorded = {cell["name"]: cell["settings"] for cell in read(name)["cells"]}
    if name in NAMES:
        assert recorded == planned
        return
    # The paper's: those with other settings than now are not shown, and said to be measured again
    shown = {cell["name"]: cell["settings"] for cell in cells_of(name)}
    assert shown
    assert shown == {key: value for key, value in recorded.items() if planned.get(key) == value}


def shown_commands() -> list[str]:
    """Commands of the pages that name an experiment: in blocks and in the README's table."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    found = re.findall(
        r"(?:^    |`)((?:dladmm reproduce|python benchmarks/experiments/run.py) [^`\n]*)", text, re.M
    )
    return sorted(set(found))


def test_commands_on_the_pages_make_cells():
    shown = shown_commands()
    assert len(shown) > 40
    for line in shown:
        words = shlex.split(line, comments=True)
        names, options = words[2:3], words[3:]
        if line.startswith(RUN):
            given = parser().parse_args(words[2:])
            names = [given.experiment] if given.experiment else []
        if not names or names[0] in ("ID", "all", "--list") or names[0].startswith("-"):
            continue
        planned = [cell.name for cell in cells(experiment(names[0]), "cpu")]
        if "--only" in options:
            pattern = options[options.index("--only") + 1]
            patterns = [pattern.replace("NAME", name) for name in (GRAPHS if "NAME" in pattern else [""])]
            for one in patterns:
                assert any(fnmatch(name, one) for name in planned), line


def test_a_page_without_records_has_no_tables(tmp_path):
    assert render(tmp_path).startswith("# Results\n")
    assert "|" not in render(tmp_path)


def test_every_table_stands_below_a_command():
    for part in re.split(r"^##+ ", render(), flags=re.M)[1:]:
        if "\n| " in part:
            command = re.search(r"^    (dladmm|python) ", part, re.M)
            assert command, part[:80]
            assert command.start() < part.index("\n| "), part[:80]


def test_the_sparse_product_grows_faster_than_an_iteration():
    """What docs/performance.md says of the edges of a graph is what its record says."""
    exponents = read("performance-growth-cpu")["exponents"]
    edges = {row["mode"]: row["exponent"] for row in exponents if row["axis"] == "edges"}
    product = edges.pop("bare product")
    assert edges
    assert all(1.0 < exponent < 1.3 and exponent < product for exponent in edges.values())


def test_ahead_is_said_of_what_is_beyond_two_standard_errors_of_the_best_adam():
    best = Mean(0.80, 0.01, 4)
    assert standing(Mean(0.82, 0.01, 4), best) == "ahead"
    assert standing(Mean(0.81, 0.01, 4), best) == "level"  # two standard errors are 0.0141
    assert standing(Mean(0.78, 0.01, 4), best) == "behind"
    assert standing(None, best) == standing(best, None) == standing(Mean(0.9, 0.0, 1), best) == "-"


def test_the_width_is_judged_by_the_exponents_and_their_errors(tmp_path):
    sizes = [1000, 2000, 4000]
    powers = {"quadratic": 2.0, "taylor": 3.0}
    report = {
        "command": "python benchmarks/growth.py --axes width",
        "machine": {"device": "cpu"},
        "settings": {"widths": sizes, "width_samples": 100},
        "rows": [{"mode": m, "size": n, "seconds": (n / 1e3) ** p} for m, p in powers.items() for n in sizes],
        "exponents": [
            {"mode": m, "exponent": p, "top": p, "r2": 1.0, "error": 0.1} for m, p in powers.items()
        ],
    }
    (tmp_path / "performance-width-cpu.json").write_text(json.dumps(report))
    found = width.outcome(tmp_path)
    assert [f["verdict"] for f in found["findings"]] == ["agrees"] * 3
    assert found["table"][1] == ["", "dlADMM", "1.0000", "4.0000", "16.0000"]
    for of in report["exponents"]:
        of["exponent"] -= 0.5
    (tmp_path / "performance-width-cpu.json").write_text(json.dumps(report))
    assert [f["verdict"] for f in width.outcome(tmp_path)["findings"]] == ["not measured"] * 2 + ["agrees"]
    report["exponents"][0]["exponent"] = 2.4
    (tmp_path / "performance-width-cpu.json").write_text(json.dumps(report))
    verdicts = [f["verdict"] for f in width.outcome(tmp_path)["findings"]]
    assert verdicts == ["differs", "not measured", "not measured"]


def test_the_sentence_names_the_best_adam_once_and_what_is_missing(monkeypatch):
    found = {"ahead": ["Cora", "Citeseer", "PubMed"], "behind": ["CS"], "-": ["Physics"]}
    monkeypatch.setattr(adams, "standings", lambda *_: found)
    said = adams.summary("gcn-accuracy", {}, "accelerated", "The default")
    best = "the best of the three Adams"
    assert said == f"The default is ahead of {best} on Cora, Citeseer and PubMed and behind it on CS."
    left = adams.missing("gcn-accuracy", {"p": "Physics", "c": "CS"}, ["accelerated"], RESULTS)
    assert left == "Not all of it is measured yet on Physics."
    monkeypatch.setattr(adams, "standings", lambda *_: {"-": ["Cora"]})
    assert adams.summary("gcn-accuracy", {}, "accelerated", "The default") == ""
