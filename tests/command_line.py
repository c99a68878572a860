"""Command lines run in the test's own process: what a process of its own would print and return, without its start."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from unittest import mock

from dladmm.cli.app import main


def in_this_process(*arguments, cwd) -> subprocess.CompletedProcess[str]:
    """``dladmm ARGUMENTS`` in the folder ``cwd``."""
    words = ["dladmm", *map(str, arguments)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", words),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
