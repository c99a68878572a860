"""Verdicts are what they say: agrees, better, differs."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from dladmm.base.errors import InputError
from dladmm.reproduce import experiment, timing, verdicts
from dladmm.reproduce.fits import Fit, growth
from dladmm.reproduce.outcomes import outcome
from dladmm.reproduce.pages import markdown
from dladmm.reproduce.paper import figures
from dladmm.reproduce.verdicts import Finding
from dladmm.runs.evidence import Evidence, Mean
from dladmm.runs.plan import cells, plain
from dladmm.runs.record import recorded, shown_settings
from small_experiments import made


def found(e, evidence):
    return outcome(e, evidence).findings


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (Mean(0.81, 0.01, 10), Mean(0.814, 0.003, 10), "agrees"),
        (Mean(0.81, 0.001, 10), Mean(0.819, 0.001, 10), "agrees"),  # our own row, within 0.01
        (Mean(0.81, 0.001, 10), Mean(0.821, 0.001, 10), "better"),
        (Mean(0.81, 0.001, 10), Mean(0.799, 0.001, 10), "differs"),
        (Mean(0.61, 0.05, 10), Mean(0.63, 0.05, 10), "agrees"),  # two standard errors are 0.045
        (Mean(0.61, 0.05, 10), Mean(0.65, 0.05, 10), "agrees"),
        (Mean(0.61, 0.05, 10), Mean(0.66, 0.05, 10), "better"),
        (Mean(0.61, 0.05, 10), Mean(0.56, 0.05, 10), "differs"),
        (Mean(0.61, 0.05, 10), Mean(0.68, 0.05, 10), "better"),
    ],
)
def test_accuracies_are_judged_by_their_standard_error(paper, ours, verdict):
    assert verdicts.accuracy(paper, ours) == verdict


def test_a_baseline_is_never_better_than_the_papers():
    paper = Mean(0.81, 0.001, 10)
    said = [verdicts.accuracy(paper, Mean(v, 0.001, 10), baseline=True) for v in (0.814, 0.82, 0.80)]
    assert said == ["agrees", "differs", "differs"]


def test_better_is_said_of_our_own_method_alone():
    paper, higher = Mean(0.81, 0.001, 10), Mean(0.85, 0.001, 10)
    assert verdicts.accuracy(paper, higher) == "better"
    assert verdicts.accuracy(paper, higher, baseline=True) == "differs"
    near = Mean(0.818, 0.001, 10)
    assert verdicts.accuracy(paper, near) == "agrees"
    assert verdicts.accuracy(paper, near, baseline=True) == "differs"


def test_exponents_and_claims_are_judged():
    paper = Fit(1.0, 1.0, 1.0, 0.05)
    # Two errors of the difference are 0.14
    assert verdicts.exponent(paper, Fit(1.13, 1.13, 1.0, 0.05)) == "agrees"
    assert verdicts.exponent(paper, Fit(1.2, 1.2, 1.0, 0.05)) == "differs"
    assert verdicts.exponent(paper, Fit(0.8, 0.9, 1.0, 0.05)) == "differs"
    # A fixed cost hides the growth
    assert verdicts.exponent(paper, Fit(0.5, 0.9, 1.0, 0.05)) == "not measured"
    # Also where it seems to agree
    assert verdicts.exponent(paper, Fit(1.0, 1.3, 1.0, 0.05)) == "not measured"
    # As in the paper's
    assert verdicts.exponent(replace(paper, top=1.1), Fit(1.0, 1.3, 1.0, 0.05)) == "agrees"
    # Short of the paper's, and still rising by more than its error
    assert verdicts.exponent(paper, Fit(0.8, 0.95, 1.0, 0.05)) == "not measured"
    assert verdicts.exponent(paper, Fit(1.2, 1.35, 1.0, 0.05)) == "differs"
    finding = Finding("what", "1", "2", "differs", "because")
    assert finding.at(True) == finding
    assert finding.at(False) == Finding("what", "1", "2", "quick: not comparable")
    assert Finding("what", "1", "-", verdicts.MISSING).at(False).verdict == "not run"


def test_exponents_are_found_again_in_made_up_timings():
    x = [100, 200, 400, 800]
    fit = growth(x, [[c * size**1.7 for size in x] for c in (0.1, 3.0)])
    assert (fit.exponent, fit.top, fit.r2) == pytest.approx((1.7, 1.7, 1.0))
    assert fit.error == pytest.approx(0, abs=1e-9)
    noisy = growth([1, 10, 100], [[1.0, 10 * 2.0, 100.0]])  # residuals of log 2 times -1/3, 2/3, -1/3
    assert noisy.error == pytest.approx((6 / 9 * math.log(2) ** 2 / (2 * math.log(10) ** 2)) ** 0.5)
    launched = growth(x, [[1e5 + size**2 for size in x]])
    assert launched.exponent < launched.top < 2  # a fixed cost hides the growth at small sizes
    assert growth(x, [[5.0] * 4]).exponent == pytest.approx(0)
    for wrong in ([[1, 2, 0, 4]], [[1, 2, 3]]):
        with pytest.raises(InputError, match="growth needs"):
            growth(x, wrong)
    with pytest.raises(InputError, match="two or more distinct"):
        growth([3, 3], [[1, 2]])


def test_the_papers_sentences_about_curves_are_checked():
    e = experiment("mlp-convergence")
    smooth = {"lagrangian": [9.0, 5.0, 4.0], "primal_residual": [3.0, 2.0, 2.5]}
    first = found(e, made(e, lambda cell: dict(smooth)))
    assert [f["verdict"] for f in first] == ["agrees", "agrees", "differs", "differs"]
    assert first[2]["ours"] == "3 to 2.5, 1 rises in 3 epochs"
    assert "No theorem promises" in first[2]["why"]
    assert {f["verdict"] for f in found(replace(e, scale="quick"), made(e, lambda cell: dict(smooth)))} == {
        verdicts.QUICK
    }
    assert {f["verdict"] for f in found(e, Evidence(tuple(cells(e, "cpu")), {}, {}))} == {"not run"}
    e = experiment("gcn-divergence")

    def curves(cell):
        wild = cell.dataset == "cora"
        return {
            "lagrangian": [1.0, 2.0] if wild else [2.0, 1.0],
            "primal_residual": [1.0, 2.0 if wild else 0.5],
        }

    assert [f["verdict"] for f in found(e, made(e, curves))] == ["agrees"] * 6


def test_accuracies_stand_beside_the_papers_table():
    e = experiment("gcn-accuracy")
    paper = figures()["tab:gcn performance"]

    def curves(cell):
        row = paper.get(
            cell.settings["method"].removesuffix("-fast").removesuffix("-medium"), paper["dladmm"]
        )
        low = -0.3 if cell.settings["method"] == "adadelta" else 0.0
        return {"val_accuracy": [0.1, row[cell.dataset][0] + low]}

    said = found(e, made(e, curves))
    verdict = {f["what"]: f["verdict"] for f in said}
    assert verdict["test accuracy, cora, Adam"] == "agrees"
    assert verdict["test accuracy, pubmed, Adadelta"] == "differs"
    ours = {f["what"]: f["ours"] for f in said}
    assert ours["test accuracy, cora, Adam"] == "0.7814 ± 0.0000"
    assert ours["test accuracy, cora, Adadelta"] == "0.4236 ± 0.0000, highest on the way 0.4236"
    assert "hardly moves" in next(f["why"] for f in said if f["verdict"] == "differs")
    best = [f for f in said if f["what"].endswith("best method")]
    assert [f["verdict"] for f in best if "of the table" in f["paper"]] == ["agrees"] * 5
    assert {f["verdict"] for f in best if "not a claim" in f["paper"]} == {"another method"}
    assert verdict["test accuracy, cora, dlADMM (as the authors' code)"] == "agrees"
    assert verdict["test accuracy, cora, dlADMM (accelerated)"] == "another method"
    assert verdict["test accuracy, cora, Adadelta (rate 0.1)"] == "another method"
    rates = [f for f in said if f["what"].endswith("the rate that gives the figure")]
    assert {f["verdict"] for f in rates} == {"differs"}
    assert rates[0]["ours"] == "at 0.02 (0.7236), 0.1 (0.7236)"
    assert "better" not in verdict.values()
    claimed = {
        f["paper"]: f["verdict"] for f in said if "inferior" in f["paper"] or "better than" in f["paper"]
    }
    assert claimed["1 % better than Adam"] == "agrees"
    assert claimed["Adadelta is 9 % inferior"] == "differs"
    assert claimed["Adadelta is 9 % inferior (here at the rate 0.02)"] == "agrees"
    assert claimed["GD is inferior to all others"] == "differs"  # Adadelta at the paper's rate is
    said_of = {f["paper"]: f["verdict"] for f in said}
    assert said_of["GD performs competitively (here: within one percentage point of the best)"] == "agrees"
    assert said_of["Adam is the best of all comparison methods"] == "agrees"
    assert (
        said_of[
            "marginally better than all others, by about 0.4 % (here: within half a percentage point of that)"
        ]
        == "agrees"
    )
    assert verdict["test accuracy, cora, Adam (Kipf's recipe)"] == "another method"
    assert [f["verdict"] for f in said if f["what"].endswith("largest deviation")] == ["agrees"] * 5
    curve = [0.5, 0.81, *[0.9] * 17, 0.95]

    def methods(cell):
        late = cell.settings["method"] in ("gd", "adadelta", "adagrad")
        values = {"admm": [0.8, 0.7], "adam": [0.99]}.get(cell.settings["method"], curve)
        accuracies = [0.1, 0.2, 0.3, *values[:-1], 0.93] if late else list(values)
        return {"val_accuracy": accuracies, "train_accuracy": [*accuracies[:-1], accuracies[-1] - 0.01]}

    e = experiment("mlp-accuracy")
    said = found(e, made(e, methods))
    assert [f["verdict"] for f in said] == ["agrees"] * len(said) == ["agrees"] * 16
    trained = next(f for f in said if "training accuracy" in f["paper"])
    assert trained["ours"].startswith("above 4 of 5: dlADMM (paper's settings) 0.9400, GD 0.9200")
    weak = found(e, made(e, lambda cell: methods(cell) | {"train_accuracy": [0.5]}))
    assert [f["verdict"] for f in weak if "training accuracy" in f["paper"]] == ["differs"] * 2


def timed(e, seconds_of):
    """Evidence with the seconds an epoch that a function of the cell says."""
    return made(e, lambda _: {"lagrangian": [3.0, 2.0, 1.0]}, seconds_of)


def papers_seconds(e):
    """The seconds of the paper's own table."""

    def of(cell):
        theirs = figures()[e.paper][cell.dataset]
        size = cell.hidden[0] if e.axis == "neurons" else cell.rows
        return theirs["seconds"][theirs["rho"].index(cell.options["rho"])][theirs[e.axis].index(size)]

    return of


@pytest.mark.parametrize("name", ["mlp-time-neurons", "mlp-time-samples", "gcn-time-neurons"])
def test_what_the_paper_says_of_its_times_holds_of_its_own_tables(name):
    e = experiment(name)
    said = [f for f in found(e, timed(e, papers_seconds(e))) if "to the power" not in f["what"]]
    assert len(said) == {"mlp-time-neurons": 6, "mlp-time-samples": 6, "gcn-time-neurons": 13}[name]
    assert {f["verdict"] for f in said if "seconds per epoch" not in f["what"]} == {"agrees"}
    assert {f["verdict"] for f in said if "seconds per epoch" in f["what"]} == {"another machine"}


def test_times_that_stay_do_not_increase_and_times_that_grow_do_not_stay():
    e = experiment("gcn-time-neurons")
    for seconds, holds in (
        (lambda cell: 1.0, "remains constant"),
        (lambda cell: cell.hidden[0], "increases"),
    ):
        said = [
            f
            for f in found(e, timed(e, seconds))
            if "increases with the neurons" in f["paper"] or "constant" in f["paper"]
        ]
        assert {f["verdict"] for f in said if holds in f["paper"]} == {"agrees"}
        assert {f["verdict"] for f in said if holds not in f["paper"]} == {"differs"}
    slower = found(
        e, timed(e, lambda cell: 1.0 + 0.3 * (cell.options["rho"] == 1e-2 and cell.hidden[0] == 16))
    )
    grown = [f for f in slower if "in proportion to rho" in f["paper"]]
    assert {f["verdict"] for f in grown} == {"differs"}  # by the median of the series
    one = replace(e, datasets=("cora",))
    assert "not run" in {f["verdict"] for f in found(one, Evidence(tuple(cells(one, "cpu")), {}, {}))}


def test_times_stand_beside_the_papers_table():
    e = experiment("mlp-time-neurons")
    theirs = papers_seconds(e)
    same, faster = (
        found(e, timed(e, lambda cell, factor=factor: theirs(cell) / factor)) for factor in (1.0, 100.0)
    )
    assert {f["verdict"] for f in same if "seconds per epoch" not in f["what"]} == {"agrees"}
    assert [f["verdict"] for f in faster if "seconds per epoch" in f["what"]] == ["another machine"] * 2
    assert "100 times as fast" in faster[0]["ours"]
    powers = [f for f in faster if "to the power" in f["what"]]
    assert all(f["paper"] == f["ours"] for f in powers)
    assert [f["what"].split()[-4] for f in powers] == ["neurons", "rho"] * 2


def test_memory_stands_beside_the_papers_figure():
    e = experiment("gcn-memory")
    nodes = {name: figures()["tab:gcn dataset"][name]["nodes"] for name in e.datasets}
    evidence = made(e, lambda cell: {"lagrangian": [1.0]})
    sparse = {c.name: 1e4 * nodes[c.dataset] for c in evidence.cells}
    told = outcome(e, replace(evidence, memory=sparse))
    verdict = [f["verdict"] for f in told.findings]
    cora = next(row for row in told.table if row[0] == "cora")
    assert set(cora[1:]) == {"27 MB"}  # 1e4 bytes for each of 2,708 nodes
    assert verdict == ["agrees", "differs", "agrees", "agrees", *["agrees"] * 5]
    wide = {c.name: 1e3 * nodes[c.dataset] * c.hidden[0] for c in evidence.cells}
    assert [f["verdict"] for f in found(e, replace(evidence, memory=wide))][-5:] == ["differs"] * 5


def test_nu_follows_rho_where_the_paper_has_one_number():
    for name in ("mlp-time-neurons", "mlp-time-samples", "gcn-time-neurons"):
        for cell in cells(experiment(name), "cpu"):
            assert cell.settings["nu"] == cell.settings["rho"] == cell.options["rho"]
    for name in ("mlp-convergence", "mlp-divergence", "gcn-convergence", "gcn-divergence"):
        for cell in cells(experiment(name), "cpu"):
            assert cell.settings["nu"] == cell.settings["rho"]


def test_every_method_of_a_table_has_as_many_initialisations():
    for name, n in (("gcn-accuracy", 10), ("mlp-accuracy", 3)):
        e = experiment(name)
        assert {e.seeds_of(method) for method in e.methods} == {n}


def test_a_record_is_evidence_of_the_cells_whose_settings_are_those_of_now():
    e = experiment("gcn-accuracy")
    wanted = {cell.name: cell for cell in cells(e, "cpu")}

    def kept(name, **changed):
        settings = plain(shown_settings(wanted[name])) | changed
        return {"name": name, "settings": settings, "test_accuracy": {"10": 0.5, "500": 0.8}, "device": "cpu"}

    old = kept("coauthor_cs-adam-0")
    del old["settings"]["split"]
    evidence = recorded(e, {"cells": [kept("cora-adam-0"), kept("cora-adam-1", max_iter=7), old]})
    assert list(evidence.runs) == ["cora-adam-0"]
    assert evidence.accuracy("cora", "adam") == Mean(0.8, 0.0, 1)
    assert evidence.missing == len(wanted) - 1


def test_a_page_begins_with_claim_verdict_and_link():
    e = experiment("mlp-convergence")
    curve = {"lagrangian": [9.0, 5.0], "primal_residual": [3.0, 2.0]}
    one = outcome(e, made(e, lambda cell: dict(curve))).to_dict()
    text = markdown({"scale": "full", "command": "x", "tolerances": "t", "experiments": [one]})
    assert "| agrees 4 | [mlp-convergence](#mlp-objective-and-residual-at-rho--1-mlp-convergence) |" in text
    assert text.index("[mlp-convergence]") < text.index("<details>") < text.index("| what | paper |")


COMMAND = re.compile(r"`(dladmm (reproduce|compare) |python (benchmarks/|-m pytest ))[^`]+`")


def test_every_reason_that_differs_names_a_command_that_shows_it():
    """Of sentences, of baselines, and of what the code says of times."""
    reasons = [timing.FASTER, timing.FLAT_IN_RHO, timing.FLAT_IN_SIZE, timing.STEEPER]
    for said in figures().values():
        reasons += [about.get("differs", "") for about in said.get("claims", ())]
        reasons += [why for key, why in said.get("why", {}).items() if key.endswith("differs")]
    assert all(COMMAND.search(reason) for reason in reasons if reason)
    e = experiment("gcn-convergence")
    rising = found(e, made(e, lambda cell: {"lagrangian": [1.0, 2.0], "primal_residual": [1.0, 2.0]}))
    assert {f["verdict"] for f in rising} == {"differs"}
    assert all(COMMAND.search(f["why"]) for f in rising)  # also where the sentence has no reason of its own
