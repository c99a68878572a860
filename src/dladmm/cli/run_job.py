"""A run of the command line with its data loaded and all settings decided: announced, trained, and measured by it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.activations import get_activation
from dladmm.api.arguments import fresh_parameters
from dladmm.api.choosing import CROSS_FITTED, GRAPH_MODE, best_dtype, best_mode
from dladmm.api.cross_fit import fit_cross_fitted
from dladmm.api.row_checks import RowChecks
from dladmm.api.train import train
from dladmm.api.train_graph import train_graph
from dladmm.base.errors import InputError
from dladmm.callbacks import Callback
from dladmm.cli.announcing import announce, graph_bytes, mode_words, peak_bytes
from dladmm.cli.measures import of_test_rows
from dladmm.cli.run_config import BY_MODE, RunConfig
from dladmm.cli.run_data import TableData, load_graph, load_own_rows
from dladmm.compute.communicator import Communicator
from dladmm.compute.partition import partitioned
from dladmm.datasets import GraphData
from dladmm.engine.batches import default_passes
from dladmm.engine.options import make_options
from dladmm.losses import get_loss
from dladmm.network.chain import mlp
from dladmm.network.graph import normalised_adjacency
from dladmm.training.checks import check_callbacks, check_device, check_dtype, check_seed
from dladmm.training.result import Result
from dladmm.training.standing import Standing, standing


@dataclass(frozen=True)
class Job(ABC):
    """``config`` has been decided, ``asked`` is the mode that was asked for, ``comm`` are the ranks."""

    config: RunConfig
    asked: str
    comm: Communicator

    @property
    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """This rank's part of the data by name, to be told apart from other data."""

    @property
    @abstractmethod
    def extra(self) -> dict[str, Any]:
        """What is stored with the network."""

    @abstractmethod
    def announce(self, folder: Path) -> None:
        """Say on standard error what will be done."""

    @abstractmethod
    def fit(self, callbacks: list[Callback]) -> Result:
        """Train."""

    @abstractmethod
    def standing(self, result: Result) -> Standing | None:
        """The network beside a constant answer and a linear model; on several ranks by the rows of the first."""

    @abstractmethod
    def tested(self, result: Result) -> dict[str, Any] | None:
        """More measures of the test rows than the history has; None on several ranks, whose rows lie apart."""


def prepared(config: RunConfig, found: RunConfig, comm: Communicator) -> Job:
    """Load the data, from the paths of ``found``, and decide what is "auto" in ``config``."""
    if config.network == "gcn":
        with comm.together():
            graph = load_graph(found)
        mode = (
            ("convergent" if config.preset != "default" else GRAPH_MODE)
            if config.mode == "auto"
            else config.mode
        )
        dtype = "float32" if config.dtype == "auto" else config.dtype
        decided = replace(
            config, mode=mode, dtype=dtype, task="classification", loss=config.loss or "cross_entropy"
        )
        return GraphJob(decided, config.mode, comm, graph)
    data = load_own_rows(found, comm)
    n_rows = sum(int(text) for text in comm.texts(str(len(data.x_train))))
    mode = config.mode if config.mode != "auto" else _mode(config, n_rows, data.x_train.shape[1], comm)
    if mode == CROSS_FITTED and not comm.alone:
        raise InputError(f"--mode {CROSS_FITTED} runs in one process; leave torchrun or --mode out.")
    dtype = config.dtype
    if dtype == "auto" and mode != CROSS_FITTED:
        widest = max(config.widths, default=1)
        by_size = best_dtype(n_rows, widest, mode, check_device(config.device))
        dtype = by_size if mode == "accelerated" else "float32"
    decided = replace(config, mode=mode, dtype=dtype, task=data.task.kind, loss=data.task.loss)
    job = TableJob(decided, config.mode, comm, data, n_rows, config.task == "auto")
    if mode == CROSS_FITTED:
        job.check_rows()
    return job


def _mode(config: RunConfig, n_rows: int, n_features: int, comm: Communicator) -> str:
    if config.preset != "default":
        return "convergent"
    one_network = config.regularizer is not None or get_activation(config.activation).n_levels > 0
    return best_mode(
        n_rows,
        n_features,
        solver_settings=any(getattr(config, name) is not None for name in ("rho", "nu", "max_memory")),
        one_network=one_network or not comm.alone,
        batches=config.batch_size is not None,
    )


@dataclass(frozen=True)
class TableJob(Job):
    """An MLP on rows; ``n_rows`` are those of all ranks, ``guessed``: the values decided the task."""

    data: TableData
    n_rows: int
    guessed: bool

    @property
    def arrays(self) -> dict[str, Any]:
        names = ("x_train", "y_train", "x_test", "y_test")
        return {name: np.asarray(getattr(self.data, name)) for name in names}

    @property
    def extra(self) -> dict[str, Any]:
        data = self.data
        found: dict[str, Any] = {
            "classes": data.classes,
            "features": data.features,
            "target": self.config.target,
        }
        if data.encoder is not None:
            found |= {"table": data.encoder.to_dict(), "id": list(self.config.id or ())}
        return found

    @property
    def _widths(self) -> list[int]:
        return [self.data.x_train.shape[1], *self.config.widths, self.data.n_outputs]

    def check_rows(self) -> None:
        """Raise for rows and targets that cannot be trained on, as :func:`dladmm.train` does for the other modes."""
        config, data, dtype, device = self.config, self.data, torch.float64, torch.device("cpu")
        chain = mlp(self._widths, config.activation)
        params = fresh_parameters(chain, check_seed(config.seed), 1.0, None, dtype, device)
        checks = RowChecks(chain, params, get_loss(str(config.loss)), data.n_outputs, dtype, device)
        checks.whole(data.x_train, data.y_train, None)
        checks.whole(data.x_test, data.y_test, None, " of validation")

    def announce(self, folder: Path) -> None:
        config, data = self.config, self.data
        of = "" if self.comm.alone else f" on rank 0 of {self.comm.size}"
        memory = peak_bytes(config, mlp(self._widths, config.activation), data)
        announce(
            config,
            data.describe() + of,
            self._widths,
            memory,
            folder,
            task=data.task.why if self.guessed and config.dataset is None else "",
            mode=mode_words(config, self.asked, self.n_rows),
            notes=data.notes,
        )

    def fit(self, callbacks: list[Callback]) -> Result:
        config, data, options = self.config, self.data, self.config.options()
        if config.mode == CROSS_FITTED:
            make_options(**options)  # checks them
            return fit_cross_fitted(
                self._widths,
                config.activation,
                np.asarray(data.x_train, dtype=np.float64),
                np.asarray(data.y_train),
                loss=get_loss(str(config.loss)),
                seed=config.seed,
                device=check_device(config.device),
                dtype=None if config.dtype == "auto" else check_dtype(config.dtype),
                passes=None if config.max_iter == BY_MODE else config.max_iter,
                batch_size=config.batch_size,
                callbacks=check_callbacks(callbacks),
            ).result
        if "max_iter" not in options:
            options["max_iter"] = default_passes(self.n_rows, config.batch_size)
        return train(
            mlp(self._widths, config.activation),
            lambda rank, world: (data.x_train, data.y_train),
            loss=str(config.loss),
            regularizer=config.penalty(),
            validation=lambda rank, world: (data.x_test, data.y_test),
            random_state=config.seed,
            device=config.device,
            dtype=config.dtype,
            callbacks=callbacks,
            communicator=self.comm,
            **options,
        )

    def standing(self, result: Result) -> Standing | None:
        held = len(self.data.x_test) > 0
        x, y = (self.data.x_test, self.data.y_test) if held else (self.data.x_train, self.data.y_train)
        if self.comm.rank > 0 or len(x) == 0:
            return None
        loss, n_outputs = get_loss(str(self.config.loss)), self.data.n_outputs
        first = next(result.module.parameters())
        of = "" if self.comm.alone else " of the first rank"
        rows = f"{len(x):,} {'test' if held else 'training'} rows{of}"

        def encoded(targets: Any) -> Tensor:
            return loss.encode(torch.as_tensor(np.asarray(targets)), n_outputs, torch.float64)

        inputs = _tensor(x)
        with torch.no_grad():
            output = torch.cat([result.module(part.to(first)) for part in torch.split(inputs, 8192)]).cpu()
        learnt = _tensor(self.data.x_train), encoded(self.data.y_train)
        return standing(loss, output, encoded(y), inputs, rows, learnt)

    def tested(self, result: Result) -> dict[str, Any] | None:
        loss = get_loss(str(self.config.loss))
        return of_test_rows(result.module, self.data, loss) if self.comm.alone else None


def _tensor(x: Any) -> Tensor:
    return torch.as_tensor(np.asarray(x))


@dataclass(frozen=True)
class GraphJob(Job):
    """A GCN on a graph."""

    data: GraphData

    @property
    def arrays(self) -> dict[str, Any]:
        graph = self.data
        own = self.comm.rank == 0  # every rank has the whole graph
        x = graph.x.to_dense() if graph.x.layout != torch.strided else graph.x
        named = {"x": x, "edge_index": graph.edge_index, "y": graph.y, "train_mask": graph.train_mask}
        return {name: np.asarray(array) if own else np.asarray(array)[:0] for name, array in named.items()}

    @property
    def extra(self) -> dict[str, Any]:
        return {"classes": list(range(self.data.n_classes))}

    @property
    def _widths(self) -> list[int]:
        return [self.data.n_features, *self.config.widths, self.data.n_classes]

    def announce(self, folder: Path) -> None:
        memory = graph_bytes(self._widths, -(-self.data.n_nodes // self.comm.size), self.config.dtype)
        mode = mode_words(self.config, self.asked, self.data.n_nodes)
        announce(self.config, repr(self.data), self._widths, memory, folder, mode=mode)

    def fit(self, callbacks: list[Callback]) -> Result:
        config, data, comm, partition = self.config, self.data, self.comm, None
        if not comm.alone:
            found = partitioned(normalised_adjacency(data.edge_index, data.n_nodes), comm)
            partition = found.owner
            if comm.rank == 0:
                print(f"partition  {found}", file=sys.stderr, flush=True)
        return train_graph(
            data,
            hidden=config.widths,
            activation=config.activation,
            rows=config.rows,  # type: ignore[arg-type]  # checked there
            loss=str(config.loss),
            regularizer=config.penalty(),
            validation="test" if bool(data.test_mask.any()) else None,
            random_state=config.seed,
            device=config.device,
            dtype=config.dtype,
            callbacks=callbacks,
            communicator=comm,
            partition=partition,
            **config.options(),
        )

    def standing(self, result: Result) -> Standing | None:
        found = result.standing
        if found is None:
            return None
        names = {"held-out rows": "test nodes", "training rows": "labelled nodes"}
        rows = found.rows
        for word, better in names.items():
            rows = rows.replace(word, better)
        return replace(found, rows=rows)

    def tested(self, result: Result) -> dict[str, Any] | None:
        loss = get_loss(str(self.config.loss))
        return of_test_rows(result.module, self.data, loss) if self.comm.alone else None
