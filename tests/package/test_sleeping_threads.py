"""Threads of torch that wait sleep, where dladmm is what imports torch; nobody's environment is changed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import os; from dladmm import train; print(os.environ.get('GOMP_SPINCOUNT'))"


def told(**own):
    """What libgomp says it was told, and what the environment has afterwards."""
    names = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"} | own,
        capture_output=True,
        text=True,
        check=True,
    )
    spins = [line.split("'")[1] for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not spins:
        pytest.skip("torch has threads of another library here")
    return spins[0], done.stdout.strip()


def test_threads_sleep_and_the_environment_is_as_it_was():
    assert told() == ("1000", "None")


def test_a_number_of_ones_own_is_left_alone():
    assert told(GOMP_SPINCOUNT="77") == ("77", "77")


def test_a_policy_of_ones_own_is_left_alone():
    spins, afterwards = told(OMP_WAIT_POLICY="active")
    assert spins != "1000"
    assert afterwards == "None"
