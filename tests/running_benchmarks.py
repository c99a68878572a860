"""Running a benchmark script as on a machine that has torch, numpy, scipy and scikit-learn only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ABSENT = ("rich", "typer", "pooch", "matplotlib", "torch_geometric", "tensorboard", "pandas")


def run_benchmark(name, *arguments, **environment):
    """The JSON object it printed, and the table that went to standard error."""
    script = (
        f"import runpy, sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
        f"runpy.run_path({str(BENCHMARKS / name)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr
