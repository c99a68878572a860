"""Try faults: every one in a copy of the sources and in a process of its own, forked from one that has torch."""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

from mutants.faults import ROOT, SOURCES, Fault

LONGEST = 300.0
"""Seconds after which a try is ended: a fault that makes a loop endless is noticed too."""

HEAVY = ("torch", "sklearn.base", "sklearn.utils.validation", "scipy.sparse", "pytest")
"""Imported once: a try then takes about as long as its tests."""


@dataclass(frozen=True)
class Outcome:
    """What became of a try: ``verdict`` is caught, survived, or wrong (the tests could not be run)."""

    fault: Fault | None
    verdict: str
    seconds: float
    by: str
    output: str


class _FirstFailure:
    """A plugin of pytest: the first test that fails."""

    def __init__(self) -> None:
        self.found = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.found:
            self.found = str(report.nodeid)  # type: ignore[attr-defined]


def import_once() -> None:
    """Import what all tests need, but nothing of the library itself."""
    for name in HEAVY:
        __import__(name)
    import torch

    torch.set_num_threads(1)
    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports what it needs at its first call
    assert "dladmm" not in sys.modules, "the library must be imported from its faulty copy"


def copy_of_sources(folder: Path) -> Path:
    """A copy whose compiled files are checked by content, so that a changed file is never taken for the old one."""
    copied = folder / "src" / "dladmm"
    shutil.copytree(SOURCES, copied, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(copied, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return copied


Try = tuple[Fault | None, tuple[str, ...]]
"""A fault, or none, and the tests to run with it."""


def try_all(tries: Sequence[Try], workers: int) -> Iterator[Outcome]:
    """Outcomes as they come."""
    waiting: list[Try] = list(tries)
    running: dict[int, tuple[Fault | None, Path, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free = [copy_of_sources(Path(folder) / str(i)) for i in range(workers)]
        while waiting or running:
            while waiting and free:
                (fault, tests), sources = waiting.pop(0), free.pop()
                if fault is not None:
                    fault.put_into(sources)
                log = sources.parents[1] / "output.txt"
                pid = _fork(sources, tests, log)
                running[pid] = fault, sources, log, time.monotonic()
            for pid, (fault, sources, log, began) in list(running.items()):
                limit = LONGEST if fault is not None else LONGEST * 10
                outcome = _ended(pid, fault, log, began, limit)
                if outcome is not None:
                    del running[pid]
                    if fault is not None:
                        fault.take_out_of(sources)
                    free.append(sources)
                    yield outcome
            time.sleep(0.05)


def _fork(sources: Path, tests: Sequence[str], log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:  # the child never returns
        os.setpgid(0, 0)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = _run_tests(sources, tests, log)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_tests(sources: Path, tests: Sequence[str], log: Path) -> int:
    """In a child: the tests with the copy in the place of the library."""
    import pytest

    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(sources.parent)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path.insert(0, str(sources.parent))
    sys.dont_write_bytecode = True
    first = _FirstFailure()
    code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[first]))
    found = sys.modules.get("dladmm")
    if found is None or Path(str(found.__file__)).parent != sources:
        print("the tests did not use the copy", found)
        code = 3
    (log.parent / "first.txt").write_text(first.found, encoding="utf-8")
    return code


def _ended(pid: int, fault: Fault | None, log: Path, began: float, limit: float) -> Outcome | None:
    seconds = time.monotonic() - began
    done, status = os.waitpid(pid, os.WNOHANG)
    if done == 0:
        if seconds <= limit:
            return None
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Outcome(fault, "caught", seconds, "it did not end", "")
    code = os.waitstatus_to_exitcode(status)
    # 1: a test failed; 0: none did; what was killed by a signal crashed, which is noticed too
    verdict = "caught" if code == 1 or code < 0 else "survived" if code == 0 else "wrong"
    first = log.parent / "first.txt"
    by = first.read_text(encoding="utf-8") if verdict == "caught" and first.exists() else ""
    output = log.read_text(encoding="utf-8", errors="replace")
    first.unlink(missing_ok=True)
    return Outcome(fault, verdict, seconds, by, output)
