"""The data of a cell, loaded once for many cells, and the network that is trained on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dladmm import baselines
from dladmm.api import train as api
from dladmm.api import train_graph as graph_api
from dladmm.api.choosing import CROSS_FITTED
from dladmm.api.cross_fit import fit_cross_fitted
from dladmm.base.errors import InputError
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import TableData, load_graph, load_rows
from dladmm.cli.task import CLASSES, Task
from dladmm.losses import get_loss
from dladmm.network.chain import mlp
from dladmm.training.checks import check_callbacks, check_device
from dladmm.training.result import ConvergenceNotGuaranteed, Result
from dladmm.training.standing import NoBetterThanConstant

Build = Callable[[TableData, str, Sequence[int], str], Any]
"""A network for these rows: what trains it, widths of the hidden layers, activation -> module or chain."""


def build_mlp(rows: TableData, trainer: str, hidden: Sequence[int], activation: str) -> Any:
    """A fully connected network."""
    return mlp([rows.x_train.shape[1], *hidden, rows.n_outputs], activation)


NETWORKS: dict[str, Build] = {"mlp": build_mlp}
"""Networks for rows, by the name that an experiment gives them; ``gcn`` is for graphs."""


@dataclass(frozen=True)
class Problem:
    """TableData for a network of :data:`NETWORKS` (or of the session's own), or a graph for a GCN."""

    network: str
    data: Any
    networks: Mapping[str, Build] = field(default_factory=lambda: NETWORKS)

    def __post_init__(self) -> None:
        if self.network != "gcn" and self.network not in self.networks:
            known = ", ".join(["gcn", *self.networks])
            raise InputError(f"network must be one of {known}, got {self.network!r}.")

    @classmethod
    def load(cls, config: RunConfig) -> Problem:
        return cls(config.network, load_graph(config) if config.network == "gcn" else load_rows(config))

    @property
    def task(self) -> Task:
        """What is learnt from the targets, and by which loss; the nodes of a graph are classified."""
        return self.data.task if isinstance(self.data, TableData) else CLASSES

    @property
    def samples(self) -> int | None:
        """The number of training rows; None for a graph."""
        return len(self.data.x_train) if isinstance(self.data, TableData) else None

    def shuffled(self) -> Problem:
        """The same with its training rows in a random order, which is the same for every run."""
        order = torch.randperm(len(self.data.x_train), generator=torch.Generator().manual_seed(0)).numpy()
        return self._with(
            x_train=np.asarray(self.data.x_train)[order], y_train=np.asarray(self.data.y_train)[order]
        )

    def holding_out(self, n: int | None) -> Problem:
        """The same measured on its last ``n`` training rows instead of the test rows, to choose settings by."""
        if n is None:
            return self
        x, y = self.data.x_train, self.data.y_train
        return self._with(x_train=x[:-n], y_train=y[:-n], x_test=x[-n:], y_test=y[-n:])

    def first(self, n: int | None) -> Problem:
        """The same with the first ``n`` training rows alone; graphs are not cut."""
        if n is None or not isinstance(self.data, TableData):
            return self
        if n > len(self.data.x_train):
            raise InputError(f"rows must be at most the {len(self.data.x_train)} training rows, got {n}.")
        return self._with(x_train=self.data.x_train[:n], y_train=self.data.y_train[:n])

    def _with(self, **rows: Any) -> Problem:
        return replace(self, data=replace(self.data, **rows))

    def fit(self, trainer: str, hidden: Sequence[int], activation: str, **arguments: Any) -> Result:
        """Train with a baseline, or with dlADMM in the mode that ``arguments`` name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceNotGuaranteed)  # the certificate says so
            warnings.simplefilter("ignore", NoBetterThanConstant)  # the status says so
            if trainer == CROSS_FITTED:
                return self._cross_fitted(hidden, activation, **arguments)
            return self._fit(trainer, hidden, activation, **arguments)

    def _fit(self, trainer: str, hidden: Sequence[int], activation: str, **arguments: Any) -> Result:
        problem: tuple[Any, ...]
        own: Any
        other: Any
        if self.network == "gcn":
            problem, own, other = (self.data,), graph_api.train_graph, baselines.train_graph
            arguments |= {"hidden": tuple(hidden), "activation": activation}
            arguments["validation"] = "test" if bool(self.data.test_mask.any()) else None
        else:
            rows, own, other = self.data, api.train, baselines.train
            network = self.networks[self.network](rows, trainer, hidden, activation)
            problem = (network, rows.x_train, rows.y_train)
            arguments["validation"] = (rows.x_test, rows.y_test)
            # The same units of y for every method, whatever its own default
            if rows.task.kind == "regression":
                arguments = {"scale_targets": True} | arguments
        if trainer not in baselines.METHODS:
            arguments = {"mode": "convergent"} | arguments
        result: Result = (
            other(trainer, *problem, **arguments)
            if trainer in baselines.METHODS
            else own(*problem, **arguments)
        )
        return result

    def _cross_fitted(self, hidden: Sequence[int], activation: str, **given: Any) -> Result:
        """Copies of an MLP, as ``dladmm train`` has them for tables; what only other methods know is not asked for."""
        rows: TableData = self.data
        return fit_cross_fitted(
            [rows.x_train.shape[1], *hidden, rows.n_outputs],
            activation,
            np.asarray(rows.x_train, dtype=np.float64),
            np.asarray(rows.y_train),
            loss=get_loss(given["loss"]),
            seed=given["random_state"],
            device=check_device(given["device"]),
            dtype=torch.float64 if given["dtype"] == "float64" else None,
            passes=given["max_iter"],
            batch_size=given.get("batch_size"),
            callbacks=check_callbacks(given["callbacks"]),
        ).result
