"""What the paper says in words, on curves made up so that each sentence holds or just does not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dladmm.report.data import Run
from dladmm.reproduce import claims
from dladmm.reproduce.claims import CHECKS
from dladmm.reproduce.fits import growth
from dladmm.runs.accuracy import first_reaching
from dladmm.runs.evidence import Mean, mean, seconds_per_epoch


class Evidence:
    """Curves by data set and method; ``run`` and ``accuracy`` as :class:`dladmm.runs.evidence.Evidence` has them."""

    def __init__(self, **curves):
        self.curves = curves

    def run(self, dataset, method="dladmm-paper"):
        return run_of(self.curves[dataset]) if dataset in self.curves else None

    def accuracy(self, dataset, method):
        run = self.run(dataset)
        return None if run is None else mean([run.last("val_accuracy")])


def run_of(values, column="val_accuracy"):
    columns = {
        "iteration": [float(k) for k in range(1, len(values) + 1)],
        "seconds": [2.0 * k for k in range(1, len(values) + 1)],
        "lagrangian": values,
        column: values,
    }
    return Run("r", {}, "MAX_ITER", "", columns, None, (), {})


def held(check, values, **about):
    return CHECKS[check](Evidence(d=values), "d", {"column": "lagrangian", "method": "m", **about})[0]


@pytest.mark.parametrize(
    ("check", "yes", "no", "about"),
    [
        ("falls_always", [3.0, 2.0, 2.0, 1.0], [3.0, 2.0, 2.001, 1.0], {}),
        ("falls_always", [3.0, 2.0, 2.0 * (1 + 5e-6), 1.0], [3.0, 2.0, 2.0 * (1 + 5e-5), 1.0], {}),
        ("fluctuates", [3.0, 2.0, 2.1, *[1.0] * 7], [3.0, 2.0, 2.1, *[1.0] * 8], {}),
        ("falls", [3.0, 4.0, 2.0], [3.0, 2.0, 3.0], {}),
        ("rises", [3.0, 2.0, 3.1], [3.0, 4.0, 3.0], {}),
        ("vanishes", [100.0, 0.9, 5.0], [100.0, 1.1, 0.1], {"epochs": 2}),
        ("settles", [100.0, 4.9, 0.0], [100.0, 5.1, 0.0], {"epochs": 2}),
        ("reaches", [0.1, 0.8, 0.2], [0.1, 0.79, 0.9], {"accuracy": 0.8, "epochs": 2}),
        ("ends_above", [0.1, 0.81], [0.9, 0.8], {"accuracy": 0.8}),
        ("declines", [0.5, 0.8, 0.4], [0.3, 0.4, 0.8], {"accuracy": 0.75}),
        ("declines", [0.5, 0.84, 0.8], [0.5, 0.9, 0.8], {"accuracy": 0.75}),
    ],
)
def test_a_sentence_holds_or_does_not(check, yes, no, about):
    assert held(check, yes, **about)
    assert not held(check, no, **about)


def test_without_runs_there_is_no_answer():
    about = {"column": "lagrangian", "method": "m", "accuracy": 0.5, "epochs": 1}
    for check in (
        "falls_always",
        "fluctuates",
        "falls",
        "rises",
        "vanishes",
        "settles",
        "reaches",
        "ends_above",
    ):
        assert CHECKS[check](Evidence(), "d", about) is None


def test_best_and_last_epochs_are_told_apart():
    run = run_of([0.2, 0.9, None, 0.5, None])
    assert (run.best("val_accuracy"), run.last("val_accuracy")) == (0.9, 0.5)
    assert first_reaching(run, 0.9) == 2
    assert first_reaching(run, 0.91) is None
    assert first_reaching(run, 0.2) == 1
    assert seconds_per_epoch(run) == 2.0
    assert mean([1.0, 2.0, 4.0]).deviation == pytest.approx(1.5275, abs=1e-4)  # of a sample


def test_second_and_all_above_are_of_the_methods_named():
    class Of:
        def accuracy(self, dataset, method):
            return {"a": Mean(0.9, 0.0, 1), "b": Mean(0.8, 0.0, 1), "c": Mean(0.7, 0.0, 1)}.get(method)

    about = {"method": "b", "among": ["a", "b", "c"], "accuracy": 0.69}
    assert CHECKS["second"](Of(), "d", about)[0]
    assert not CHECKS["second"](Of(), "d", about | {"method": "c"})[0]
    assert not CHECKS["second"](Of(), "d", about | {"method": "a"})[0]
    assert CHECKS["all_above"](Of(), "d", about)[0]
    holds, ours = CHECKS["all_above"](Of(), "d", about | {"accuracy": 0.7})
    assert (holds, ours) == (False, "lowest c 0.7000")
    for check in ("second", "all_above"):
        assert CHECKS[check](Of(), "d", about | {"among": ["a", "b", "unknown"]}) is None


def test_sentences_about_several_methods_hold_of_all_of_them(monkeypatch):
    epochs = {"gd": 30.0, "adam": 5.0, "adagrad": 40.0}
    monkeypatch.setattr(claims, "_first_epoch", lambda evidence, dataset, name, accuracy: epochs[name])
    about = {"method": "adam", "others": ["gd", "adagrad"], "accuracy": 0.9}
    assert claims.slower(None, "d", about)[0]
    assert not claims.slower(None, "d", about | {"method": "gd", "others": ["adam", "adagrad"]})[0]
    known = {"own": 0.5, "a": 0.4, "b": 0.6, "c": 0.3, "d": 0.7}
    evidence = SimpleNamespace(accuracy=lambda dataset, name: Mean(known[name], 0.0, 1))
    most = {"method": "own", "by": "val_accuracy", "among": ["a", "b"]}
    assert not claims.beats_most(evidence, "d", most)[0]  # one of two is not most
    assert claims.beats_most(evidence, "d", most | {"among": ["a", "b", "c"]})[0]
    only = {"method": "own", "among": ["a", "b", "c", "d"], "others": ["b", "d"]}
    assert claims.only_better(evidence, "d", only)[0]
    assert not claims.only_better(evidence, "d", only | {"others": ["b", "c", "d"]})[0]


def test_the_error_of_an_exponent_is_that_of_least_squares_with_a_constant_for_every_series():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    table = np.exp(np.random.default_rng(0).normal(size=(3, 4))) * x
    design = np.column_stack([np.tile(np.log(x), 3), np.kron(np.eye(3), np.ones((4, 1)))])
    found, (rest,), *_ = np.linalg.lstsq(design, np.log(table).ravel(), rcond=None)
    variance = rest / (12 - 4) * np.linalg.inv(design.T @ design)[0, 0]
    fit = growth(x, table)
    assert fit.exponent == pytest.approx(found[0])
    assert fit.error == pytest.approx(variance**0.5)
