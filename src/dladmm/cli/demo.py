"""``dladmm demo``: trains an MLP on digits and a GCN on the karate club, and prints the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dladmm import datasets
from dladmm.api.train import train
from dladmm.api.train_graph import train_graph
from dladmm.callbacks import ProgressBar
from dladmm.cli.result_table import print_result
from dladmm.network.chain import mlp
from dladmm.runs.chosen import chosen_settings
from dladmm.training.result import Result
from dladmm.training.run_folder import write_run

DIGITS, KARATE = chosen_settings("digits"), chosen_settings("karate")
"""Settings of both runs, inside the certified region: cross-entropy has H = 1/2, and rho > 2H."""


def split_digits(seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """scikit-learn's digits scaled to [0, 1]: x_train, x_test (n, 64), y_train, y_test (n,)."""
    data = datasets.load("digits", seed=seed)
    return data.x_train, data.x_test, data.y_train, data.y_test


def train_digits(
    seed: int = 0, settings: dict[str, Any] = DIGITS, *, progress: bool = True, **changes: Any
) -> Result:
    """Train on digits with the demo's settings (those of ``docs/results.md``), or with changed ones."""
    settings = {"mode": "convergent"} | settings | changes
    x_train, x_test, y_train, y_test = split_digits(seed)
    return train(
        mlp([64, *settings.pop("hidden"), 10], settings.pop("activation", "relu")),
        x_train,
        y_train,
        validation=(x_test, y_test),
        random_state=seed,
        callbacks=[ProgressBar("digits", held="test")] if progress else [],
        **settings,
    )


def train_karate(seed: int = 0, *, progress: bool = True, **changes: Any) -> Result:
    """Zachary's karate club from one labelled member per community."""
    settings = {"mode": "convergent"} | KARATE | changes
    settings.setdefault("diagnostics_every", settings["max_iter"])
    return train_graph(
        datasets.load("karate"),
        validation="test",
        random_state=seed,
        callbacks=[ProgressBar(f"karate {seed}", held="test")] if progress else [],
        **settings,
    )


def run(folder: Path) -> list[Result]:
    """Train on digits and on the karate club, print the results, and write run folders and a report to ``folder``."""
    from dladmm.report import read_report, write_page

    digits = train_digits()
    print_result(digits, "dlADMM on scikit-learn's digits: MLP 64-100-100-10, no back-propagation")
    print()
    karate = train_karate(diagnostics_every=1)
    print_result(
        karate, "dlADMM on Zachary's karate club: GCN, one labelled member in each of four communities"
    )
    for name, result, settings in (("digits", digits, DIGITS), ("karate", karate, KARATE)):
        write_run(result, folder / name, {"dataset": name, "seed": 0} | settings)
    write_page(read_report(folder), folder / "report.html")
    print(
        f"Wrote both runs to {folder} (history.csv, metrics.json, curves.png, ...) and {folder}/report.html."
    )
    return [digits, karate]
