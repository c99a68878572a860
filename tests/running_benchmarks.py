"""Running a benchmark script as on a machine that has torch, numpy, scipy and scikit-learn only."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ABSENT = ("rich", "typer", "pooch", "matplotlib", "torch_geometric", "tensorboard", "pandas")


def of_the_benchmarks():
    """The modules of the benchmarks that this process has imported."""
    folder = str(BENCHMARKS)
    found = {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()}
    return {name: sys.modules[name] for name, file in found.items() if file.startswith(folder)}


@contextlib.contextmanager
def absent():
    """The libraries cannot be imported, in this process, and the modules of the benchmarks are imported anew.

    All are there again afterwards. The library's own modules stay: tests/package has what they may import.
    """
    hidden = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ABSENT}
    before = of_the_benchmarks()
    for name in before:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys((*ABSENT, *hidden)))
    try:
        yield
    finally:
        for name in (*ABSENT, *of_the_benchmarks()):
            del sys.modules[name]
        sys.modules.update(hidden | before)


def run_benchmark(name, *arguments, **environment):
    """The JSON object it printed, and the table that went to standard error."""
    out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    with (
        absent(),
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"} | environment),
        mock.patch.object(sys, "argv", [name, *arguments, "--json"]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        except SystemExit as end:
            code = end.code
        else:
            code = 0
        finally:
            torch.set_num_threads(threads)
    assert not code, err.getvalue()
    return json.loads(out.getvalue()), err.getvalue()


def run_benchmark_apart(name, *arguments, **environment):
    """The same in a process of its own: a process begins with the peak memory of the one that started it."""
    script = (
        f"import runpy, sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
        f"runpy.run_path({str(BENCHMARKS / name)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments, "--json"],
        capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr
