"""The work of ``dladmm train`` and ``dladmm predict``: load data, train, write the run folder, predict."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dladmm.api.train import train
from dladmm.api.train_graph import train_graph
from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError, InputError
from dladmm.base.history import Status
from dladmm.callbacks import Callback, Checkpoint, ProgressBar, StopOnSignal
from dladmm.callbacks.traffic_log import TrafficLog
from dladmm.cli.launch import TIMEOUT, check_folder_is_known, launched, local_device, restarted
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import TableData, load_graph, load_own_rows
from dladmm.cli.run_table import rows_to_predict, write_cells
from dladmm.compute.communicator import Communicator, Traffic, current
from dladmm.compute.partition import partitioned
from dladmm.engine.batches import default_passes
from dladmm.engine.certificate_text import guarantee
from dladmm.engine.memory import needs_of
from dladmm.engine.memory_limit import bytes_of, chunk
from dladmm.engine.options import make_options
from dladmm.losses import get_loss
from dladmm.network.chain import Chain, mlp
from dladmm.network.graph import normalised_adjacency
from dladmm.tables.content import printable
from dladmm.training.checkpoint import checkpoints, load_model, save_model
from dladmm.training.checks import check_device, check_dtype
from dladmm.training.result import ConvergenceNotGuaranteed, Result
from dladmm.training.run_folder import write_run

CHECKPOINT_SECONDS = 60.0
"""Between two checkpoints of streaming mode, whose passes may take hours."""


@dataclass(frozen=True)
class FinishedRun:
    """The result of a command-line run, its folder, and the signal that ended it (or None)."""

    result: Result
    folder: Path
    signal: int | None
    rank: int = 0

    @property
    def exit_code(self) -> int:
        """0 for success, 1 for a failed run, 128 plus the signal if it was interrupted."""
        if self.signal is not None:
            return 128 + self.signal
        if self.result.status is Status.INTERRUPTED:
            return 130
        return 0 if self.result.status.ok else 1


@dataclass(frozen=True)
class Execution:
    """Settings that do not affect the result: checkpoint interval, timeout between ranks, profiling output."""

    checkpoint_every: int = 10
    timeout: float = TIMEOUT
    profile: bool = False

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise InputError(f"timeout must be a number of seconds above 0, got {self.timeout!r}.")


def run_training(config: RunConfig, resume: bool, execution: Execution | None = None) -> FinishedRun:
    """Load the data, announce the run, train, and write the run folder; under torchrun with the other ranks."""
    execution = Execution() if execution is None else execution
    if "WORLD_SIZE" not in os.environ:  # no launcher
        return _run(config, resume, execution, current())
    check_folder_is_known(config.out)
    config = replace(config, device=local_device(config.device))
    with launched(config.device, execution.timeout) as comm:
        return _run(config, resume or restarted(), execution, comm)


def _run(config: RunConfig, resume: bool, execution: Execution, comm: Communicator) -> FinishedRun:
    folder = Path(
        config.out or f"runs/{config.network}-{config.dataset or 'own'}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    folder = Path(comm.texts(str(folder))[0])
    stop = StopOnSignal()
    fit = _train_gcn if config.network == "gcn" else _train_mlp
    with comm.together():
        checkpoint = Checkpoint(
            folder / "checkpoints",
            every=execution.checkpoint_every,
            resume=resume,
            every_seconds=CHECKPOINT_SECONDS if config.mode == "streaming" else None,
        )
        if comm.rank == 0:
            if not resume and checkpoints(folder / "checkpoints"):
                raise InputError(
                    f"{folder} already holds a run: continue it with --resume {folder}, or choose another --out."
                )
            _write_config(config, folder)
    callbacks: list[Callback] = [checkpoint, ProgressBar(config.network), stop]
    log = None if comm.alone else TrafficLog()
    callbacks += [] if log is None else [log]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)  # announced before training
        result, extra = fit(config, callbacks, folder, comm)
    if comm.rank == 0:
        traffic = Traffic() if log is None else log.typical
        write_run(result, folder, asdict(config), traffic=traffic.to_dict(comm.size))
        save_model(result, folder / "model.safetensors", loss=config.loss, extra=extra)
        if execution.profile:
            print(log or TrafficLog(), file=sys.stderr, flush=True)
    return FinishedRun(result, folder, stop.received, comm.rank)


def _write_config(config: RunConfig, folder: Path) -> None:
    """Write config.toml before training, so that an interrupted run can be resumed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "config.toml") as file:
            file.write(config.to_toml().encode())
    except OSError as error:
        raise DataError(f"{folder} cannot hold the run: {error}") from error


def _train_mlp(
    config: RunConfig, callbacks: list[Callback], folder: Path, comm: Communicator
) -> tuple[Result, dict[str, Any]]:
    data = load_own_rows(config, comm)
    widths = [data.x_train.shape[1], *config.widths, data.n_outputs]
    with comm.together():
        chain = mlp(widths, config.activation)
        if comm.rank == 0:
            of = "" if comm.alone else f" on rank 0 of {comm.size}"
            _announce(config, data.describe() + of, widths, _peak_bytes(config, chain, data), folder)
            for note in data.notes:
                print(f"table      {printable(note)}", file=sys.stderr, flush=True)
    options = config.options()
    if "max_iter" not in options:
        n_rows = sum(int(text) for text in comm.texts(str(len(data.x_train))))
        options["max_iter"] = default_passes(n_rows, config.batch_size)
    result = train(
        chain,
        lambda rank, world: (data.x_train, data.y_train),
        loss=config.loss,
        regularizer=config.penalty(),
        validation=lambda rank, world: (data.x_test, data.y_test),
        random_state=config.seed,
        device=config.device,
        dtype=config.dtype,
        callbacks=callbacks,
        communicator=comm,
        **options,
    )
    extra: dict[str, Any] = {"classes": data.classes, "features": data.features, "target": config.target}
    if data.encoder is not None:
        extra |= {"table": data.encoder.to_dict(), "id": list(config.id or ())}
    return result, extra


def _train_gcn(
    config: RunConfig, callbacks: list[Callback], folder: Path, comm: Communicator
) -> tuple[Result, dict[str, Any]]:
    with comm.together():
        data = load_graph(config)
    partition = None
    if not comm.alone:
        found = partitioned(normalised_adjacency(data.edge_index, data.n_nodes), comm)
        partition = found.owner
        if comm.rank == 0:
            print(f"partition  {found}", file=sys.stderr, flush=True)
    widths = [data.n_features, *config.widths, data.n_classes]
    if comm.rank == 0:
        n_own = -(-data.n_nodes // comm.size)
        _announce(config, repr(data), widths, _graph_bytes(widths, n_own, config.dtype), folder)
    result = train_graph(
        data,
        hidden=config.widths,
        activation=config.activation,
        rows=config.rows,  # type: ignore[arg-type]  # checked there
        loss=config.loss,
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
    return result, {"classes": list(range(data.n_classes))}


def _announce(config: RunConfig, data: str, widths: list[int], memory: float, folder: Path) -> None:
    """Print data, network, memory and guarantee on standard error before training."""
    bias = 0 if config.network == "gcn" else 1
    parameters = sum((a + bias) * b for a, b in pairwise(widths))
    options = make_options(**config.options())
    loss = get_loss(config.loss)
    follows = config.network == "gcn" and config.rows == "train"
    promise = guarantee(
        options.starting_rho(loss.H),
        loss.H,
        follows,
        accelerated=options.mode == "accelerated",
        streaming=options.mode == "streaming",
    )
    lines = [
        f"data       {data}",
        f"network    {config.network} {'-'.join(map(str, widths))} ({config.activation}), {parameters:,} parameters",
        f"memory     about {memory / 1e6:,.0f} MB above the data",
        f"theory     {promise}",
        f"run        {folder}",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _peak_bytes(config: RunConfig, chain: Chain, data: TableData) -> int:
    """Peak memory of the run's tensors, in bytes."""
    options, dtype = make_options(**config.options()), check_dtype(config.dtype)
    needs = needs_of(
        chain,
        data.x_train,
        options,
        options.penalty(config.penalty()),
        dtype=dtype,
        device=check_device(config.device),
        n_validation=len(data.x_test),
    )
    if options.max_memory is None:
        return needs.peak
    return replace(needs, at_once=chunk(needs, bytes_of(options.max_memory), data.x_train)).peak


def _graph_bytes(widths: list[int], n_rows: int, dtype: str) -> float:
    """Estimated bytes: input, z, a and predictions of every layer, temporaries of the widest, float64 Gram matrices."""
    size = 8 if dtype == "float64" else 4
    per_row = widths[0] + 4 * sum(widths[1:-1]) + 4 * widths[-1] + 3 * max(widths)
    grams = 3 * max(widths) ** 2 * 8 + sum(w**2 for w in widths[:-1]) * 8
    return float(n_rows * per_row * size + grams)


def predict_csv(run: Path, file: Path, out: Path | None, separator: str | None = None) -> dict[str, Any]:
    """Write predictions of a run's network for the rows of a CSV file, beside it or to ``out``; returns a summary."""
    model = load_model(run / "model.safetensors")
    if model.loss is None or not isinstance(model.module, torch.nn.Sequential):
        raise InputError(
            f"{run} holds a graph network; predict its nodes with GCNClassifier or module(x, edge_index)."
        )
    table = rows_to_predict(model.extra, file, separator)
    first = next(model.module.parameters())
    if table.x.shape[1] != first.shape[1]:
        raise DataError(
            f"{file} has {table.x.shape[1]} columns, but the network takes {first.shape[1]} features."
        )
    with torch.no_grad():
        output = model.module(torch.from_numpy(table.x).to(first.dtype))
    classes = model.extra.get("classes")
    if classes is None:
        header = [f"prediction{j or ''}" for j in range(output.shape[1])]
        predictions: Any = output.tolist()
    else:
        probabilities = model.loss.probabilities(output.double()).numpy()
        chosen = [classes[i] for i in model.loss.decision(output).tolist()]
        header = ["prediction", *(f"p({c})" for c in classes)]
        predictions = [[c, *np.round(p, 6)] for c, p in zip(chosen, probabilities, strict=True)]
    rows = [[*(cells[i] for cells in table.ids.values()), *row] for i, row in enumerate(predictions)]
    header = [*table.ids, *header]
    target = file.with_suffix(".predictions.csv") if out is None else out
    write_cells(target, header, rows)
    return {"rows": len(predictions), "file": str(target), "columns": header}
