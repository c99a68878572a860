"""The experiments of the paper's tables and figures, as the TOML files in ``configs/`` state them.

One file an experiment; its name is the experiment's ID. ``[methods.NAME]`` are options of a method, where ``trainer``
says what trains it if the name does not; ``[grid]`` holds what is varied besides data set, method and seed; ``[quick]``
replaces single settings by smaller ones.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any, Literal, get_args

from dladmm.base.errors import InputError

Scale = Literal["full", "quick"]
Kind = Literal["data", "curves", "accuracy", "time", "memory"]

ORDER = (
    "mlp-data",
    "mlp-convergence",
    "mlp-divergence",
    "mlp-accuracy",
    "mlp-time-neurons",
    "mlp-time-samples",
    "gcn-data",
    "gcn-convergence",
    "gcn-divergence",
    "gcn-accuracy",
    "gcn-time-neurons",
    "gcn-time-edges",
    "gcn-memory",
)
"""As in the paper's section; gcn-time-edges is no table of the paper, it completes its analysis of complexity."""


@dataclass(frozen=True)
class Experiment:
    """One experiment at one scale. ``paper`` is the label of the table or figure, empty where there is none."""

    id: str
    scale: Scale
    title: str
    paper: str
    kind: Kind
    network: str
    datasets: tuple[str, ...]
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    hidden: tuple[int, ...] = ()
    layers: int = 0
    rows: int | None = None
    max_iter: int = 1
    seeds: int = 1
    diagnostics_every: int | None = None
    axis: str = ""
    milestones: tuple[int, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether its sizes are the paper's; statistics of data sets have no other."""
        return self.scale == "full" or self.kind == "data"

    def seeds_of(self, method: str) -> int:
        """How many initialisations: the method's own number, or the experiment's."""
        return min(self.seeds, int(self.methods[method].get("seeds", self.seeds)))

    @property
    def command(self) -> str:
        return f"dladmm reproduce {self.id} --scale {self.scale}"


def experiment(name: str, scale: str = "full") -> Experiment:
    """The experiment with this ID at this scale."""
    if name not in ORDER:
        raise InputError(f"unknown experiment {name!r}; known are {', '.join(ORDER)}, and all.")
    if scale not in get_args(Scale):
        raise InputError(f"scale must be full or quick, got {scale!r}.")
    text = (files("dladmm.reproduce") / "configs" / f"{name}.toml").read_text(encoding="utf-8")
    return from_settings(name, scale, tomllib.loads(text))


def from_settings(name: str, scale: str, settings: dict[str, Any]) -> Experiment:
    """An experiment of what a file says; ``[quick]`` is merged in at that scale."""
    small = settings.pop("quick", {})
    if scale == "quick":
        settings = _merged(settings, small)
        for method in settings.get("methods", {}).values():
            if "max_iter" in method:  # a method's own number of epochs is for the full scale
                method["max_iter"] = min(method["max_iter"], settings["max_iter"])
    known = {f.name for f in fields(Experiment)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise InputError(f"experiment {name}: unknown setting {', '.join(unknown)}.")
    for key in ("datasets", "hidden", "milestones"):
        settings[key] = tuple(settings.get(key, ()))
    return Experiment(id=name, scale=scale, **settings)  # type: ignore[arg-type]


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    nested = {
        key: _merged(base[key], value)
        for key, value in changes.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | changes | nested


def chosen(names: str) -> list[str]:
    """``all``, an ID, or several with commas."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    return list(ORDER) if wanted == ["all"] else [experiment(name).id for name in wanted]
