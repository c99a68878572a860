"""The work of ``dladmm train`` and ``dladmm predict``: load data, train, write the run folder, predict."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dladmm.api.choosing import CROSS_FITTED
from dladmm.base.atomic import replacing
from dladmm.base.container import check_meta
from dladmm.base.errors import DataError, InputError
from dladmm.base.history import Status
from dladmm.callbacks import Callback, Checkpoint, ProgressBar, StopOnSignal
from dladmm.callbacks.traffic_log import TrafficLog
from dladmm.cli.launch import TIMEOUT, check_folder_is_known, launched, local_device, restarted
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_job import prepared
from dladmm.cli.run_origin import check_same_data, read_origin, with_paths, write_origin
from dladmm.cli.run_table import rows_to_predict, write_cells
from dladmm.compute.communicator import Communicator, Traffic, current
from dladmm.training.checkpoint import checkpoints, load_model, save_model
from dladmm.training.identity import described
from dladmm.training.result import ConvergenceNotGuaranteed, Result
from dladmm.training.run_folder import write_run
from dladmm.training.standing import Standing

PATIENCE = 2.0
"""Seconds before a progress bar appears on a terminal."""

CHECKPOINT_SECONDS = 60.0
"""Between two checkpoints of streaming mode, whose passes may take hours."""


@dataclass(frozen=True)
class FinishedRun:
    """The result of a command-line run, its folder, the signal that ended it (or None), and how the network stands."""

    result: Result
    folder: Path
    signal: int | None
    config: RunConfig
    rank: int = 0
    standing: Standing | None = None

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
    certificate: Path | None = None

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
    folder = Path(comm.texts(str(folder if config.out else _free(folder)))[0])
    stop = StopOnSignal()
    with comm.together():
        if comm.rank == 0 and not resume and checkpoints(folder / "checkpoints"):
            raise InputError(
                f"{folder} already holds a run: continue it with --resume {folder}, or choose another --out."
            )
        origin = read_origin(folder) if resume else {"paths": {}, "arrays": {}}
    found = with_paths(config, folder, origin)
    job = prepared(config, found, comm)
    if execution.certificate is not None and (job.config.options()["mode"] != "convergent" or not comm.alone):
        raise InputError(
            "--certificate is of the paper's algorithm in one process: it needs --mode convergent."
        )
    arrays = described(job.arrays, comm)
    with comm.together():
        check_meta(job.extra, "labels and names of the data")  # else the training would be lost at its end
        if resume:
            check_same_data(origin["arrays"], arrays, folder)
        checkpoint = Checkpoint(
            folder / "checkpoints",
            every=execution.checkpoint_every,
            resume=resume,
            every_seconds=CHECKPOINT_SECONDS if job.config.options()["mode"] == "streaming" else None,
        )
        if comm.rank == 0:
            _write_start(job.config, folder)
            write_origin(found, folder, arrays)
            job.announce(folder)
    held = "unseen" if job.config.mode == CROSS_FITTED else "test"
    callbacks: list[Callback] = [checkpoint, ProgressBar(config.network, delay=PATIENCE, held=held), stop]
    log = None if comm.alone else TrafficLog()
    callbacks += [] if log is None else [log]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)  # announced before training
        result = job.fit(callbacks)
    standing = job.standing(result)
    if comm.rank == 0:
        traffic = Traffic() if log is None else log.typical
        stands = None if standing is None else standing.to_dict()
        measured: dict[str, Any] = {"standing": stands, "tested": job.tested(result)}
        save_model(
            result, folder / "model.safetensors", loss=job.config.loss, extra=job.extra
        )  # before pictures
        write_run(result, folder, asdict(job.config), traffic=traffic.to_dict(comm.size), **measured)
        if execution.certificate is not None:
            result.certificate.save(execution.certificate, f"{execution.certificate}.npz")
        if execution.profile:
            print(log or TrafficLog(), file=sys.stderr, flush=True)
    return FinishedRun(result, folder, stop.received, job.config, comm.rank, standing)


def _free(folder: Path) -> Path:
    """The folder, or one with a number behind its name: two runs may begin in the same second."""
    names = (folder.with_name(f"{folder.name}-{k}") for k in range(2, 1000))
    return folder if not folder.exists() else next((name for name in names if not name.exists()), folder)


def _write_start(config: RunConfig, folder: Path) -> None:
    """Write config.toml before training, so that an interrupted run can be resumed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "config.toml") as file:
            file.write(config.to_toml().encode())
    except OSError as error:
        raise DataError(f"{folder} cannot hold the run: {error}") from error


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
    lost = torch.nonzero(~torch.isfinite(output).all(1))
    if len(lost):
        raise DataError(
            f"{file}, row {int(lost[0]) + 2}: the network's output is not finite ({len(lost)} such rows). A number "
            "there is too large, or the weights of the network are not finite."
        )
    classes = model.extra.get("classes")
    if classes is None:
        header = [f"prediction{j or ''}" for j in range(output.shape[1])]
        predictions: Any = model.loss.decision(output).tolist()
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
