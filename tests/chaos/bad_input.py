"""The bad input table: every malformed call, command and file, once."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

from chaos.bad_calls import ACCEPTED_CALLS, REFUSED_CALLS
from chaos.bad_commands import judge_commands
from chaos.bad_estimators import ACCEPTED_ESTIMATORS, REFUSED_ESTIMATORS
from chaos.bad_files import judge_files
from chaos.ledger import Ledger
from chaos.table import judge_acceptance, judge_refusal


def run_calls(ledger: Ledger, count: int, seed: int) -> None:
    for name, call, exception, words in REFUSED_CALLS + REFUSED_ESTIMATORS:
        with ledger.attempt(name):
            judge_refusal(call, exception, words)
    for name, call in ACCEPTED_CALLS + ACCEPTED_ESTIMATORS:
        with ledger.attempt(f"{name} (odd, but welcome)"):
            judge_acceptance(call)


def run_commands(ledger: Ledger, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        judge_commands(ledger, Path(name))


def run_files(ledger: Ledger, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chmod(name, 0o755)  # the processes without root's rights must get there
        judge_files(ledger, Path(name))
