"""Prints a result on standard output: a table of some iterations, the status and the certificate."""

from __future__ import annotations

from dladmm.training.result import Result

ITERATIONS = (1, 2, 5, 10, 20, 50, 100, 150, 200)
"""The iterations shown, besides the last."""


def print_result(result: Result, title: str) -> None:
    """Print the table of iterations, the status and the certificate."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("iteration", "loss", "Lagrangian", "residual", "train accuracy", "test accuracy"):
        table.add_column(heading, justify="right")
    n = result.history.n_iter
    for k in [k for k in ITERATIONS if k < n] + [n] * (n > 0):
        row = result.history.row(k - 1)
        columns = ("loss", "lagrangian", "primal_residual", "train_accuracy", "val_accuracy")
        formats = (".4f", ".2f", ".2e", ".4f", ".4f")
        shown = ["-" if row[c] is None else format(row[c], f) for c, f in zip(columns, formats, strict=True)]
        table.add_row(str(k), *shown)
    console = Console()
    console.print(table)
    console.print(str(result.status), highlight=False)
    console.print(str(result.certificate), highlight=False, soft_wrap=True)
