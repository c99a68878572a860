"""``dladmm demo``: a network trained without back-propagation on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dladmm import datasets
from dladmm.api.train import train
from dladmm.api.train_graph import train_graph
from dladmm.network.chain import mlp
from dladmm.runs.chosen import chosen_settings
from dladmm.training.progress import ProgressBar
from dladmm.training.run_folder import write_run
from dladmm.training.trainer import Result

DIGITS, KARATE = chosen_settings("digits"), chosen_settings("karate")
"""Inside the certified region: softmax cross-entropy has H = 1/2, and rho = 1.5 (for graphs the default) > 2H."""


def split_digits(seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """scikit-learn's digits in [0, 1], 80/20 stratified: x_train, x_test, y_train, y_test."""
    data = datasets.load("digits", seed=seed)
    return data.x_train, data.x_test, data.y_train, data.y_test


def train_digits(
    seed: int = 0, settings: dict[str, Any] = DIGITS, *, progress: bool = True, **changes: Any
) -> Result:
    """The digits run of the demo, or one with other settings."""
    settings = settings | changes
    x_train, x_test, y_train, y_test = split_digits(seed)
    return train(
        mlp([64, *settings.pop("hidden"), 10], settings.pop("activation", "relu")),
        x_train,
        y_train,
        validation=(x_test, y_test),
        random_state=seed,
        callbacks=[ProgressBar("digits")] if progress else [],
        **settings,
    )


def train_karate(seed: int = 0, *, progress: bool = True, **changes: Any) -> Result:
    """Zachary's karate club from one labelled member per community."""
    settings = KARATE | changes
    settings.setdefault("diagnostics_every", settings["max_iter"])
    return train_graph(
        datasets.load("karate"),
        validation="test",
        random_state=seed,
        callbacks=[ProgressBar(f"karate {seed}")] if progress else [],
        **settings,
    )


def show(result: Result, title: str) -> None:
    """The table and the certificate, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("iteration", "loss", "Lagrangian", "residual", "train accuracy", "test accuracy"):
        table.add_column(heading, justify="right")
    n = result.history.n_iter
    for k in [k for k in (1, 2, 5, 10, 20, 50, 100, 150, 200) if k < n] + [n] * (n > 0):
        row = result.history.row(k - 1)
        columns = ("loss", "lagrangian", "primal_residual", "train_accuracy", "val_accuracy")
        formats = (".4f", ".2f", ".2e", ".4f", ".4f")
        cells = ["-" if row[c] is None else format(row[c], f) for c, f in zip(columns, formats, strict=True)]
        table.add_row(str(k), *cells)
    console = Console()
    console.print(table)
    console.print(str(result.status), highlight=False)
    console.print(str(result.certificate), highlight=False, soft_wrap=True)


def run(folder: Path) -> list[Result]:
    """Train on digits and on the karate club, show what happened, write it down, as a page too."""
    from dladmm.report import read_report, write_page

    digits = train_digits()
    show(digits, "dlADMM on scikit-learn's digits: MLP 64-100-100-10, no back-propagation")
    print()
    karate = train_karate(diagnostics_every=1)
    show(karate, "dlADMM on Zachary's karate club: GCN, one labelled member in each of four communities")
    for name, result, settings in (("digits", digits, DIGITS), ("karate", karate, KARATE)):
        write_run(result, folder / name, {"dataset": name, "seed": 0} | settings)
    write_page(read_report(folder), folder / "report.html")
    print(
        f"Wrote both runs to {folder} (history.csv, metrics.json, curves.png, ...) and {folder}/report.html."
    )
    return [digits, karate]
