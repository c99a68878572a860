"""The list of faults fits the sources and the tests as they are, a few are tried, and what survives is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from mutants.__main__ import failed, summary
from mutants.faults import ROOT, SOURCES, Fault, all_faults, chosen
from mutants.trying import Outcome

FAULTS = all_faults()


def test_every_fault_still_applies():
    """Whoever changes a line that a fault changes brings the list along: tests/mutants/lists."""
    assert [trouble for fault in FAULTS if (trouble := fault.trouble())] == []


def test_the_list_is_long_enough_and_says_what_is_wrong():
    assert len(FAULTS) >= 150
    assert [name for name, times in Counter(fault.name for fault in FAULTS).items() if times > 1] == []
    assert all(fault.wrong.endswith(".") and fault.tests for fault in FAULTS)
    explained = [fault for fault in FAULTS if fault.survives]
    assert len(explained) <= 0.05 * len(FAULTS)


def test_every_named_test_exists():
    texts: dict[str, str] = {}
    for fault in FAULTS:
        for test in fault.tests:
            place, _, name = test.partition("::")
            if place not in texts:
                texts[place] = (ROOT / place).read_text(encoding="utf-8")
            assert not name or re.search(rf"^def {name}\(", texts[place], re.MULTILINE), (
                f"{fault.name}: {test}"
            )


def test_a_share_is_drawn_with_a_seed_and_names_are_understood():
    drawn = [fault.name for fault in chosen(FAULTS, share=5, seed=1)]
    assert len(drawn) == 5
    assert drawn == [fault.name for fault in chosen(FAULTS, share=5, seed=1)]
    assert drawn != [fault.name for fault in chosen(FAULTS, share=5, seed=2)]
    assert {fault.area for fault in chosen(FAULTS, ["losses"])} == {"losses"}
    assert chosen(FAULTS, share=10**6) == FAULTS


def test_what_survives_fails_the_run_unless_it_is_explained():
    plain = next(fault for fault in FAULTS if not fault.survives)
    explained = next(fault for fault in FAULTS if fault.survives)
    caught = [Outcome(plain, "caught", 1.0, "", "")] * 40
    assert not failed([*caught, Outcome(explained, "survived", 1.0, "", "")])
    assert failed([*caught, Outcome(plain, "survived", 1.0, "", "")])
    assert failed([*caught, Outcome(plain, "wrong", 1.0, "", "")])
    assert "40" in summary(caught)


def as_toml(fault: Fault) -> str:
    """A fault as an entry of a list."""
    lines = [
        f"{name} = {json.dumps(getattr(fault, name))}"
        for name in ("name", "file", "old", "new", "wrong", "tests")
    ]
    return "\n".join(["[[fault]]", *lines, ""])


@pytest.mark.slow  # a process that imports torch, and two that import the library
def test_two_are_tried(tmp_path: Path):
    """One that its test catches, one that nothing can: the program tells them apart and fails for the second."""
    noticed = next(fault for fault in FAULTS if fault.name == "worse-is-better")
    (title, *_) = (SOURCES / noticed.file).read_text(encoding="utf-8").splitlines()
    harmless = replace(noticed, name="harmless", old=title, new=title + "  # in other words")
    (tmp_path / "two.toml").write_text(as_toml(noticed) + as_toml(harmless), encoding="utf-8")
    command = [sys.executable, "-m", "mutants", "--lists", str(tmp_path), "--workers", "1", "--no-baseline"]
    around = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"caught +[\d.]+ s  worse-is-better  by tests/reproduce/test_verdicts.py::", done.stdout)
    assert "survived: harmless" in done.stdout
    assert "1 of 2 faults caught" in done.stdout


def test_examples_of_the_suite_are_the_same_every_time_and_nightly_ones_are_not():
    assert settings.get_profile("suite").derandomize
    assert not settings.get_profile("nightly").derandomize
    assert settings.get_profile("nightly").max_examples > settings.get_profile("suite").max_examples
