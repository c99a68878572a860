"""The book of one line of the table: what was tried, what survived, what was lost and why."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_FAULTS = 20
"""Faults kept with their words; the others are counted."""
SECONDS_BETWEEN_WORDS = 5.0


def surroundings() -> dict[str, str]:
    """The environment of a process that imports this package, wherever pytest was started."""
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


class Violation(Exception):
    """Something the library promises did not hold."""


def require(holds: object, words: str) -> None:
    """A promise; unlike ``assert`` it is checked under ``python -O`` too."""
    if not holds:
        raise Violation(words)


@dataclass
class Ledger:
    """``with ledger.attempt("what"):`` counts one attempt; whatever comes out of the block is a loss, with words."""

    name: str
    planned: int = 0
    loud: bool = False
    tried: int = 0
    lost: int = 0
    faults: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._began = self._told = time.monotonic()

    @contextmanager
    def attempt(self, what: str, limit: float | None = None, *, by_clock: bool = False) -> Iterator[None]:
        """One attempt; with ``limit`` one that takes more seconds of the processor, or of the clock, is lost."""
        self.tried += 1
        try:
            with time_limit(limit, by_clock=by_clock):
                yield
        except Exception as error:
            self.lost += 1
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(f"{what}: {type(error).__name__}: {error}"[:600])
        finally:
            self._tell()

    def count(self, note: str, by: int = 1) -> None:
        """Add to a figure that is printed beside the line."""
        self.notes[note] = self.notes.get(note, 0) + by

    def closed(self) -> Ledger:
        self.seconds = time.monotonic() - self._began
        return self

    def _tell(self) -> None:
        now = time.monotonic()
        if self.loud and now - self._told > SECONDS_BETWEEN_WORDS:
            self._told = now
            of = f" of {self.planned:,}" if self.planned else ""
            print(f"  {self.name}: {self.tried:,}{of} tried, {self.lost:,} lost", file=sys.stderr, flush=True)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tried": self.tried,
            "survived": self.tried - self.lost,
            "lost": self.lost,
            "seconds": round(self.seconds, 1),
            "notes": self.notes,
            "faults": self.faults,
        }


@contextmanager
def time_limit(seconds: float | None, *, by_clock: bool = False) -> Iterator[None]:
    """A :class:`Violation` in the block when it takes longer; on a busy machine only the processor's time is fair."""
    if seconds is None:
        yield
        return

    def too_long(number: int, frame: object) -> None:
        raise Violation(f"no end after {seconds:g} s")

    timer, number = (signal.ITIMER_REAL, signal.SIGALRM) if by_clock else (signal.ITIMER_PROF, signal.SIGPROF)
    before = signal.signal(number, too_long)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
