"""The command line in this process: what a person types, what comes out, and no traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from dladmm.cli import app as cli


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run(*arguments: object, cwd: Path) -> Done:
    """``dladmm ...`` as typed; an exception that the command line lets out becomes a traceback, as Python prints it."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["dladmm", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        inside(cwd),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc(file=err)
            code = 1
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
