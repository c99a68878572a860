"""Download progress on stderr: a bar on a terminal, one line per file elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dladmm.datasets._download import Progress


@contextmanager
def reporter() -> Iterator[Progress]:
    """Context manager that yields a progress callable for `fetch`."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        yield _line_a_file
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_a_file
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield show


def _line_a_file(name: str, done: int, total: int) -> None:
    if done == total:
        print(f"{name}: {total:,} bytes", file=sys.stderr)
