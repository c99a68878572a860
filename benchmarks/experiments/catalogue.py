"""Which experiments there are: the TOML files of this folder, and the paper's."""

from __future__ import annotations

from pathlib import Path

from dladmm.base.errors import InputError
from dladmm.reproduce.catalogue import ORDER
from dladmm.reproduce.catalogue import experiment as paper_experiment
from dladmm.runs.experiment import Experiment, from_toml

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.toml")))
"""The library's own experiments."""


def experiment(name: str) -> Experiment:
    """One of the library's own experiments, or one of the paper's."""
    if name in ORDER:
        return paper_experiment(name)
    if name not in NAMES:
        raise InputError(f"unknown experiment {name!r}; known are {', '.join(NAMES)}, and the paper's.")
    return from_toml(name, "full", (HERE / f"{name}.toml").read_text(encoding="utf-8"))
