"""The list of faults, one TOML file per area in ``lists/``, and how a fault is put into a copy of the sources."""

from __future__ import annotations

import os
import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "dladmm"
LISTS = Path(__file__).parent / "lists"


@dataclass(frozen=True)
class Fault:
    """One change of one file that makes the library wrong.

    Parameters
    ----------
    area, name : str
        The TOML file, and a name that is unique in the whole list.
    file : str
        Relative to ``src/dladmm``.
    old, new : str
        The exact text, which the file has once, and what takes its place.
    wrong : str
        What is wrong then, in one sentence.
    tests : tuple of str
        Tests that must fail: files or node ids, relative to the root of the repository.
    survives : str
        Why no test can fail, for a fault that is known to survive; else empty.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    wrong: str
    tests: tuple[str, ...]
    survives: str = ""

    def trouble(self, sources: Path = SOURCES) -> str:
        """Why the fault cannot be put into these sources; empty if it can."""
        path = sources / self.file
        if not path.is_file():
            return f"{self.name}: there is no {self.file}"
        times = path.read_text(encoding="utf-8").count(self.old)
        if times != 1:
            return f"{self.name}: {self.file} has the old text {times} times, not once"
        return "" if self.old != self.new else f"{self.name}: nothing changes"

    def put_into(self, sources: Path) -> None:
        """Change the file in place."""
        path = sources / self.file
        text = path.read_text(encoding="utf-8")
        path.with_suffix(".kept").write_text(text, encoding="utf-8")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def take_out_of(self, sources: Path) -> None:
        """The file as it was: what is beside the copy may have changed meanwhile."""
        path = sources / self.file
        os.replace(path.with_suffix(".kept"), path)


def all_faults(lists: Path = LISTS) -> list[Fault]:
    """The whole list, by area."""
    return [
        Fault(path.stem, **entry | {"tests": tuple(entry["tests"])})
        for path in sorted(lists.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    ]


def chosen(
    faults: Sequence[Fault], names: Sequence[str] = (), share: int | None = None, seed: int = 0
) -> list[Fault]:
    """Those named (a name, an area, or a file of the sources); then ``share`` of them, drawn with the seed."""
    unknown = [n for n in names if not any(n in (f.name, f.area, f.file) for f in faults)]
    if unknown:
        raise SystemExit(f"no fault, area or file is called {', '.join(unknown)}")
    some = [f for f in faults if not names or {f.name, f.area, f.file} & set(names)]
    if share is None or share >= len(some):
        return some
    drawn = set(random.Random(seed).sample(range(len(some)), share))
    return [fault for i, fault in enumerate(some) if i in drawn]
