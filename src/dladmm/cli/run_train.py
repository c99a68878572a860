"""The work of ``dladmm train``: load data, train, write the run folder; and where the data of a run came from."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dladmm.api.choosing import CROSS_FITTED
from dladmm.base.atomic import replacing
from dladmm.base.container import check_meta
from dladmm.base.errors import DataError, InputError
from dladmm.base.history import Status
from dladmm.callbacks import Callback, Checkpoint, ProgressBar, StopOnSignal
from dladmm.callbacks.traffic_log import TrafficLog
from dladmm.cli.graph_job import prepared_graph
from dladmm.cli.launch import TIMEOUT, check_folder_is_known, launched, local_device, restarted
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_job import prepared_table
from dladmm.compute.communicator import Communicator, Traffic, current
from dladmm.training.checkpoint import checkpoints, save_model
from dladmm.training.identity import described
from dladmm.training.result import ConvergenceNotGuaranteed, Result
from dladmm.training.run_folder import write_run
from dladmm.training.standing import NoBetterThanConstant, Standing

PATIENCE = 2.0
"""Seconds before a progress bar appears on a terminal."""

CHECKPOINT_SECONDS = 60.0
"""Between two checkpoints of streaming mode, whose passes may take hours."""

ORIGIN, PATHS = "data.json", ("csv", "npz", "data_dir")
"""The file that says where a run's data came from, and the settings that are paths."""


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
    def useless(self) -> str | None:
        """In words that the network is no better than a constant answer; None if it is better."""
        found = self.result.evidence
        return found.measured.useless if found is not None and found.measured.no_better else None

    @property
    def exit_code(self) -> int:
        """0 for a run that came to its end, 1 for a failed one, 128 plus the signal if it was interrupted.

        A network that is no better than a constant answer is a result, of labels without a signal the right one.
        """
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
    prepared = prepared_graph if config.network == "gcn" else prepared_table
    job = prepared(config, found, comm)
    if execution.certificate is not None and (job.config.options()["mode"] != "convergent" or not comm.alone):
        raise InputError(
            "--certificate is of the paper's algorithm in one process: it needs --mode convergent."
        )
    arrays = described(job.arrays, comm)
    with comm.together():
        job.config.check()  # refused before anything is written or announced
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
        warnings.simplefilter("ignore", NoBetterThanConstant)  # said with the result
        result = job.fit(callbacks)
    standing = job.standing(result)
    if comm.rank == 0:
        traffic = Traffic() if log is None else log.typical
        stands = None if standing is None else standing.to_dict()
        measured: dict[str, Any] = {"standing": stands, "tested": job.tested(result)}
        # Before pictures: a failing plot must not lose the network
        save_model(result, folder / "model.safetensors", loss=job.config.loss, extra=job.extra)
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


def write_origin(config: RunConfig, folder: Path, arrays: dict[str, Any]) -> None:
    """Write the paths of the data, absolute and relative to the run's folder, and what they held."""
    paths = {}
    for name in PATHS:
        given = getattr(config, name)
        if given is not None:
            absolute = Path(given).absolute()
            paths[name] = {
                "absolute": str(absolute),
                "relative": os.path.relpath(absolute, folder.absolute()),
            }
    with replacing(folder / ORIGIN) as file:
        file.write((json.dumps({"paths": paths, "arrays": arrays}, indent=2) + "\n").encode())


def read_origin(folder: Path) -> dict[str, Any]:
    """What :func:`write_origin` wrote; empty for a run of an earlier version."""
    path = folder / ORIGIN
    if not path.exists():
        return {"paths": {}, "arrays": {}}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"paths": dict(found["paths"]), "arrays": dict(found["arrays"])}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def with_paths(config: RunConfig, folder: Path, origin: dict[str, Any]) -> RunConfig:
    """The settings with paths that exist: where the data lay, else beside the run as before, else as it was given."""
    found: dict[str, Any] = {}
    for name, known in origin["paths"].items():
        if name not in PATHS or not isinstance(known, dict) or getattr(config, name) is None:
            continue
        places = [Path(str(known.get("absolute"))), folder / str(known.get("relative"))]
        found[name] = str(next((place for place in places if place.exists()), getattr(config, name)))
    return replace(config, **found)


def check_same_data(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise if a run would go on with other data; the difference is named."""
    differ = [name for name, known in before.items() if name in now and known != now[name]]
    if not differ:
        return
    name = differ[0]
    was, present = before[name].get("shape"), now[name]["shape"]
    what = f"shape {was} then, {present} now" if was != present else "the same shape, other values"
    others = f" ({', '.join(differ[1:])} too)" if differ[1:] else ""
    raise InputError(
        f"the data are not those that the run in {folder} began with: {name} differs{others}, {what}. Bring the data "
        "back, or begin a new run with another --out."
    )
