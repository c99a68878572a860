"""A run of the command line with its data loaded and all settings decided: announced, trained, and measured by it.

This is an MLP on rows; :mod:`dladmm.cli.graph_job` has the GCN on a graph.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.activations import get_activation
from dladmm.api.arguments import best_dtype, fresh_parameters
from dladmm.api.choosing import CROSS_FITTED, table_mode, with_mode
from dladmm.api.cross_fit import copies_for, cross_fitted_peak, fit_cross_fitted
from dladmm.api.given import RowChecks
from dladmm.api.stream_batches import FIRST_ROWS
from dladmm.api.train import train
from dladmm.base.errors import InputError
from dladmm.callbacks import Callback
from dladmm.cli.measures import of_test_rows
from dladmm.cli.run_config import BY_MODE, RunConfig, check_memory
from dladmm.cli.run_data import TableData, load_own_rows
from dladmm.compute.communicator import Communicator
from dladmm.engine.batches import default_batch_size
from dladmm.engine.certificate_text import guarantee
from dladmm.engine.memory import known_widths, needs_of, streamed_peak
from dladmm.engine.memory_limit import bytes_of, chunk
from dladmm.engine.options import STREAMING, make_options
from dladmm.losses import get_loss
from dladmm.network.chain import Chain, mlp
from dladmm.tables.content import printable
from dladmm.training.checks import check_callbacks, check_device, check_dtype, check_seed
from dladmm.training.result import Result
from dladmm.training.standing import Standing, standing

OTHER_TASK = {"classification": "regression", "regression": "classification"}


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


def announce(
    config: RunConfig,
    data: str,
    widths: list[int],
    memory: float,
    folder: Path,
    *,
    task: str = "",
    mode: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Print it; ``config`` has been decided, ``task`` and ``mode`` say by what."""
    bias = 0 if config.network == "gcn" else 1
    parameters = sum((a + bias) * b for a, b in pairwise(widths))
    options = make_options(**config.options())
    loss = get_loss(str(config.loss))
    promise = guarantee(
        options.starting_rho(loss.H),
        loss.H,
        config.network == "gcn" and config.rows in ("train", "fixed"),
        accelerated=options.mode == "accelerated",
        streaming=options.mode == "streaming",
    )
    kind, of = loss.kind, ", ".join(filter(None, (config.activation, config.weights)))
    decided = f" ({task}; --task {OTHER_TASK[kind]} for the other)" if task else ""
    lines = [
        f"data       {data}",
        *(f"table      {printable(note)}" for note in notes),
        f"task       {kind}, loss {config.loss}{decided}",
        f"network    {config.network} {'-'.join(map(str, widths))} ({of}), {parameters:,} parameters",
        f"mode       {config.mode}{mode}",
        f"memory     about {memory / 1e6:,.0f} MB above the data",
        f"theory     {promise}",
        f"run        {folder}",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def mode_words(config: RunConfig, asked: str, n_rows: int) -> str:
    """What the mode is and who chose it."""
    by_whom = ", chosen by the data and the settings (--mode convergent: the paper's)"
    chosen = by_whom if asked == "auto" else ""
    if config.mode == CROSS_FITTED:
        return f": {copies_for(n_rows)} copies of the network, merged into one{chosen}"
    return chosen


def peak_bytes(config: RunConfig, chain: Chain, data: TableData) -> int:
    """Peak memory of the run's tensors, in bytes; of streaming mode above rows that it reads where they lie."""
    options, widths, n_rows = make_options(**config.options()), known_widths(chain), len(data.x_train)
    if widths is not None and config.mode == CROSS_FITTED:
        return cross_fitted_peak(n_rows, widths)
    if widths is not None and options.mode == "streaming":
        size = check_dtype("float32" if config.dtype == "auto" else config.dtype).itemsize
        batch = options.batch_size or default_batch_size(n_rows, convolutions=False, jumps=chain.has_jumps)
        gpu = check_device(config.device).type == "cuda"
        first = min(n_rows, FIRST_ROWS)
        peak = streamed_peak(widths, first, batch, size, n_validation=len(data.x_test), on_gpu=gpu)
        return peak if options.max_memory is not None else peak + size * n_rows * (widths[0] + widths[-1])
    needs = needs_of(
        chain,
        data.x_train,
        options,
        options.penalty(config.penalty()),
        dtype=check_dtype("float32" if config.dtype == "auto" else config.dtype),
        device=check_device(config.device),
        n_validation=len(data.x_test),
    )
    if options.max_memory is None:
        return needs.peak
    return replace(needs, at_once=chunk(needs, bytes_of(options.max_memory), data.x_train)).peak


def prepared_table(config: RunConfig, found: RunConfig, comm: Communicator) -> TableJob:
    """Load the rows, from the paths of ``found``, and decide what is "auto" in ``config``."""
    data = load_own_rows(found, comm)
    n_rows = sum(int(text) for text in comm.texts(str(len(data.x_train))))
    widths = [data.x_train.shape[1], *config.widths, data.n_outputs]
    mode = config.mode if config.mode != "auto" else _mode(config, n_rows, widths, comm)
    if mode == CROSS_FITTED and not comm.alone:
        raise InputError(f"--mode {CROSS_FITTED} runs in one process; leave torchrun or --mode out.")
    dtype, device = config.dtype, check_device(config.device)
    if dtype == "auto" and mode != CROSS_FITTED:
        by_size = best_dtype(n_rows, max(config.widths, default=1), mode, device)
        dtype = by_size if mode == "accelerated" else "float32"
    decided = replace(config, mode=mode, dtype=dtype, task=data.task.kind, loss=data.task.loss)
    job = TableJob(decided, config.mode, comm, data, n_rows, config.task == "auto")
    if mode == CROSS_FITTED:
        job.check_rows()
    if device.type == "cpu":
        check_memory(job.memory, data.x_train.shape[1])
    return job


def _mode(config: RunConfig, n_rows: int, widths: list[int], comm: Communicator) -> str:
    named = str(with_mode({}, preset=config.preset, method=None)["mode"])
    jumps = get_activation(config.activation).n_levels > 0
    one_network = config.weights is not None or jumps or not comm.alone
    if named != "streaming":
        return named
    penalty = STREAMING.penalty(config.penalty())
    return table_mode(n_rows, widths, penalty, max_memory=config.max_memory, one_network=one_network)


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

    def _chain(self) -> Chain:
        """Batches are normalised inside a network with jumps in streaming mode."""
        jumps = get_activation(self.config.activation).n_levels > 0
        normalised = jumps and self.config.mode == "streaming" and self.comm.alone
        return mlp(self._widths, self.config.activation, normalised=normalised)

    @property
    def memory(self) -> int:
        """Bytes that the run is expected to take above its data."""
        return peak_bytes(self.config, self._chain(), self.data)

    def check_rows(self) -> None:
        """Raise for rows and targets that cannot be trained on, as :func:`dladmm.train` does for the other modes."""
        config, data, dtype, device = self.config, self.data, torch.float64, torch.device("cpu")
        chain = self._chain()
        params = fresh_parameters(chain, check_seed(config.seed), 1.0, None, dtype, device)
        checks = RowChecks(chain, params, get_loss(str(config.loss)), data.n_outputs, dtype, device)
        checks.whole(data.x_train, data.y_train, None)
        checks.whole(data.x_test, data.y_test, None, " of validation")

    def announce(self, folder: Path) -> None:
        config, data = self.config, self.data
        of = "" if self.comm.alone else f" on rank 0 of {self.comm.size}"
        announce(
            config,
            data.describe() + of,
            self._widths,
            self.memory,
            folder,
            task=data.task.why if self.guessed and config.dataset is None else "",
            mode=mode_words(config, self.asked, self.n_rows),
            notes=data.notes,
        )

    def fit(self, callbacks: list[Callback]) -> Result:
        config, data, options, chain = self.config, self.data, self.config.options(), self._chain()
        if config.mode == CROSS_FITTED:
            checked = make_options(**options)
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
                regularizer=checked.penalty(config.penalty()),
                callbacks=check_callbacks(callbacks),
            ).result
        return train(
            chain,
            lambda rank, world: (data.x_train, data.y_train),
            loss=str(config.loss),
            regularizer=config.penalty(),
            validation=lambda rank, world: (data.x_test, data.y_test),
            random_state=config.seed,
            device=config.device,
            dtype=config.dtype,
            callbacks=callbacks,
            communicator=self.comm,
            weights=config.weight_sets,
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

        inputs = torch.as_tensor(np.asarray(x))
        with torch.no_grad():
            output = torch.cat([result.module(part.to(first)) for part in torch.split(inputs, 8192)]).cpu()
        learnt = torch.as_tensor(np.asarray(self.data.x_train)), encoded(self.data.y_train)
        return standing(loss, output, encoded(y), inputs, rows, learnt, unseen=held)

    def tested(self, result: Result) -> dict[str, Any] | None:
        loss = get_loss(str(self.config.loss))
        return of_test_rows(result.module, self.data, loss) if self.comm.alone else None
