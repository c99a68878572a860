"""Cells: the single runs of a comparison or a reproduction, each in a folder of its own and made only once.

A folder of a cell's name is always a whole cell: it is written under another name and renamed. ``settings`` in its
metrics.json name everything that makes the run what it is; a folder with other settings is another set's cell.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dladmm import baselines
from dladmm.api import train as api
from dladmm.api import train_graph as graph_api
from dladmm.base.errors import DataError, InputError
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import TableData, load_graph, load_rows
from dladmm.network.chain import mlp
from dladmm.training.run_folder import write_run
from dladmm.training.trainer import ConvergenceNotGuaranteed, Result

LATER: dict[str, tuple[str, ...]] = {"ramps": ("sign", "step", "quantised")}
"""Settings that came after cells had been made, and the activations whose runs they change."""


@dataclass(frozen=True)
class Problem:
    """Data that were loaded once, for many cells: rows for an MLP, a graph for a GCN."""

    network: str
    data: Any

    @classmethod
    def load(cls, config: RunConfig) -> Problem:
        return cls(config.network, load_graph(config) if config.network == "gcn" else load_rows(config))

    def first(self, n: int | None) -> Problem:
        """The same with the first ``n`` training rows alone; graphs are not cut."""
        if n is None or not isinstance(self.data, TableData):
            return self
        if n > len(self.data.x_train):
            raise InputError(f"rows must be at most the {len(self.data.x_train)} training rows, got {n}.")
        return replace(
            self, data=replace(self.data, x_train=self.data.x_train[:n], y_train=self.data.y_train[:n])
        )

    def fit(self, trainer: str, hidden: Sequence[int], activation: str, **arguments: Any) -> Result:
        """Train with a baseline, or with dlADMM in the mode that ``arguments`` name."""
        problem: tuple[Any, ...]
        if self.network == "gcn":
            problem, doors = (self.data,), (graph_api.train_graph, baselines.train_graph)
            arguments |= {"hidden": tuple(hidden), "activation": activation}
            arguments["validation"] = "test" if bool(self.data.test_mask.any()) else None
        else:
            rows, doors = self.data, (api.train, baselines.train)  # type: ignore[assignment]
            chain = mlp([rows.x_train.shape[1], *hidden, rows.n_outputs], activation)
            problem = (chain, rows.x_train, rows.y_train)
            arguments["validation"] = (rows.x_test, rows.y_test)
        own: Any
        other: Any
        own, other = doors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceNotGuaranteed)  # the certificate says so
            result: Result = (
                other(trainer, *problem, **arguments)
                if trainer in baselines.METHODS
                else own(*problem, **arguments)
            )
        return result


def finished(folder: Path, wanted: dict[str, Any], hint: str = "choose another --out") -> bool:
    """Whether the cell is there; with other settings it is another set's, and that is an error."""
    path = folder / "metrics.json"
    if not path.exists():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["settings"]
        others = differing(found, wanted)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is not the metrics of a run: {error!r}") from error
    if others:
        raise InputError(f"{folder} holds a run with other settings ({', '.join(others)}); {hint}.")
    return True


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The settings in which a finished cell is another than the wanted one."""

    def came_later(key: str) -> bool:
        """Whether the cell lacks this setting because it is older, and would be the same with it."""
        return key in LATER and key not in found and found.get("activation") not in LATER[key]

    keys = {*found, *wanted}
    return sorted(key for key in keys if found.get(key) != wanted.get(key) and not came_later(key))


def save(
    result: Result, folder: Path, settings: dict[str, Any], *, curves: bool = True, **measured: Any
) -> None:
    """Under another name first: a folder of this name is always a whole cell."""
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        write_run(result, partial, settings, curves=curves, **measured)
        os.replace(partial, folder)
    except OSError as error:
        raise DataError(f"{folder} cannot hold the run: {error}") from error


def defaults(trainer: str, network: str) -> dict[str, Any]:
    """The settings a baseline has unless it is told otherwise."""
    from dladmm.baselines.taylor import BETA, GAMMA, RHO, WARMUP

    if trainer in baselines.LEARNING_RATES:
        rate = baselines.LEARNING_RATES[trainer][network]  # type: ignore[index]  # mlp or gcn
        return {"lr": rate.lr, "reduction": rate.reduction}
    return {"rho": RHO, "beta": BETA, "gamma": GAMMA, "warmup": WARMUP} if trainer == "admm" else {}


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in JSON's own types, as they come back from a file."""
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read
