"""Prints a result on standard output: a table of some iterations, the status and the certificate."""

from __future__ import annotations

from dladmm.training.result import Result
from dladmm.training.standing import Standing

ITERATIONS = (1, 2, 5, 10, 20, 50, 100, 150, 200)
"""The iterations shown, besides the last."""

COLUMNS = {
    "loss": ("loss", ".4f"),
    "lagrangian": ("Lagrangian", ".2f"),
    "primal_residual": ("residual", ".2e"),
    "train_accuracy": ("train accuracy", ".4f"),
    "val_accuracy": ("{held} accuracy", ".4f"),
    "train_r2": ("train R^2", ".4f"),
    "val_r2": ("{held} R^2", ".4f"),
}
"""Columns of the history, what they are called here, and how their numbers are written; empty ones are left out."""

ABOUT = "About the optimisation (it says nothing of how good the predictions are):"


def print_result(result: Result, title: str, standing: Standing | None = None, held: str = "test") -> None:
    """Print what the network is worth, the table of iterations, the status and the certificate.

    ``held`` says which rows the history has held-out figures of.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    columns = [name for name in COLUMNS if result.history.last(name) is not None or name == "loss"]
    if result.certificate.streaming:  # nothing is relaxed there
        columns = [name for name in columns if name not in ("lagrangian", "primal_residual")]
    for heading in ("iteration", *(COLUMNS[name][0].format(held=held) for name in columns)):
        table.add_column(heading, justify="right")
    n = result.history.n_iter
    for k in [k for k in ITERATIONS if k < n] + [n] * (n > 0):
        row = result.history.row(k - 1)
        shown = ["-" if row[c] is None else format(row[c], COLUMNS[c][1]) for c in columns]
        table.add_row(str(k), *shown)
    console = Console()
    stands = result.standing if standing is None else standing
    for line in [] if stands is None else stands.lines():
        style = "bold red" if line.startswith("WARNING") else "bold"
        console.print(line, style=style, highlight=False, soft_wrap=True)
    console.print(table)
    console.print(str(result.status), highlight=False)
    console.print(f"{ABOUT}\n{result.certificate}", highlight=False, soft_wrap=True)
