"""An experiment as a TOML file states it: the paper's (``reproduce/configs``) or the library's own (``benchmarks``).

One file per experiment; its name is the experiment's ID. ``[methods.NAME]`` are options of a method, where ``trainer``
says what trains it if the name does not; ``[grid]`` holds what is varied besides data set, method and seed;
``[for.DATASET]`` replaces settings for one data set, ``[quick]`` replaces settings by smaller ones.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from dladmm.base.errors import InputError

Scale = Literal["full", "quick"]
Kind = Literal["data", "curves", "accuracy", "time", "memory"]

TUPLES = ("datasets", "hidden", "milestones")
OF_A_METHOD = ("seeds", "datasets", "hidden", "activation", "title", "note", "stop")
"""What a method's table may hold besides options of training."""


@dataclass(frozen=True)
class Experiment:
    """One experiment at one scale.

    ``id``, ``title``, ``kind``, ``scale``
        its name, its heading, which table sums it up, and ``full`` or ``quick``.
    ``paper``
        label of the paper's table or figure; empty where there is none.
    ``network``
        ``mlp``, ``gcn`` or a network that the session knows.
    ``methods``
        options by method; ``seeds``, ``datasets``, ``hidden`` and ``activation`` replace the experiment's own,
        ``title`` and ``note`` are for a results page.
    ``grid``
        what is varied: lists of ``rho``, ``neurons``, ``samples``, ``degree``, or such lists by data set.
    ``data``
        options of the data set's loader; ``split_by_seed`` adds the seed of the run to them.
    ``rows``, ``held_out``, ``shuffle``
        how many training rows (default: all); how many of the last training rows are measured on instead of the test
        rows; whether training rows are first put in a random order, the same for every run.
    ``stop``
        whether a run may end when its residuals are small; else it runs for ``max_iter`` iterations.
    ``own``
        whether it is an experiment of this library and not one of the paper.
    ``one_weight``
        whether nu (mu of a GCN) is rho wherever rho is varied, as where the paper has one number for both.
    ``revision``
        raised when settings change so that outcomes stored before no longer speak of them.
    ``note``
        a sentence for the results page.
    ``by_dataset``
        settings for single data sets, ``[for.DATASET]`` in the file.
    """

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
    activation: str = "relu"
    rows: int | None = None
    held_out: int | None = None
    shuffle: bool = False
    split_by_seed: bool = False
    max_iter: int = 1
    stop: bool = False
    seeds: int = 1
    diagnostics_every: int | None = None
    axis: str = ""
    milestones: tuple[int, ...] = ()
    own: bool = False
    one_weight: bool = False
    revision: int = 1
    note: str = ""
    by_dataset: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        """Whether its sizes are the paper's; statistics of data sets have no other."""
        return self.scale == "full" or self.kind == "data"

    def seeds_of(self, method: str) -> int:
        """How many initialisations: the method's own number, or the experiment's."""
        return min(self.seeds, int(self.methods[method].get("seeds", self.seeds)))

    def on(self, dataset: str) -> Experiment:
        """The experiment with the settings of one data set, ``[for.DATASET]``."""
        changes = self.by_dataset.get(dataset, {})
        merged = {key: _merged_value(getattr(self, key), value) for key, value in changes.items()}
        return replace(self, **_with_tuples(merged)) if merged else self

    @property
    def command(self) -> str:
        if self.own:
            return f"python benchmarks/experiments/run.py {self.id}"
        return f"dladmm reproduce {self.id} --scale {self.scale}"


def from_toml(name: str, scale: str, text: str) -> Experiment:
    """An experiment of the text of its file."""
    if scale not in get_args(Scale):
        raise InputError(f"scale must be full or quick, got {scale!r}.")
    try:
        return from_settings(name, scale, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"experiment {name} is not TOML: {error}") from error


def from_settings(name: str, scale: str, settings: dict[str, Any]) -> Experiment:
    """An experiment of what a file says; ``[quick]`` is merged in at that scale."""
    small = settings.pop("quick", {})
    if scale == "quick":
        settings = _merged(settings, small)
        for method in settings.get("methods", {}).values():
            if "max_iter" in method:  # a method's own number of epochs is for the full scale
                method["max_iter"] = min(method["max_iter"], settings["max_iter"])
    settings["by_dataset"] = settings.pop("for", {})
    known = {f.name for f in fields(Experiment)}
    given = [settings, *settings["by_dataset"].values()]
    unknown = sorted({key for table in given for key in table} - known)
    if unknown:
        raise InputError(f"experiment {name}: unknown setting {', '.join(unknown)}.")
    filled = {"paper": "", "datasets": ()} | settings
    return Experiment(id=name, scale=scale, **_with_tuples(filled))  # type: ignore[arg-type]


def _with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if key in TUPLES else value for key, value in settings.items()}


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return base | {key: _merged_value(base.get(key), value) for key, value in changes.items()}


def _merged_value(base: Any, change: Any) -> Any:
    return _merged(base, change) if isinstance(base, dict) and isinstance(change, dict) else change
