"""Saves and resumes training states and trained models, each in one file without pickle.

    save_training(trainer, path)        everything needed to continue a run bit for bit
    resume_training(trainer, path)      continue it
    save_model(result, path)            a trained network; load_model(path) rebuilds it

The file is described in :mod:`dladmm.base.container`. A folder of checkpoints holds ``checkpoint-000120.dladmm`` and
the like, the number being the iteration. Each is written atomically, and older ones are removed only after a newer one
is on disk, so the folder has a loadable checkpoint whenever the process dies. A run on several ranks writes one
snapshot in several files (:mod:`dladmm.training.sharded_snapshot`), which any number of ranks can resume.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dladmm.base.atomic import remove_orphans
from dladmm.base.container import load, save
from dladmm.base.errors import DataError, InputError
from dladmm.training.identity import CheckpointWarning, check_same_run, identity_of, kind_of
from dladmm.training.model_file import UNUSABLE, SavedModel, load_model, save_model
from dladmm.training.run_fields import checked_run
from dladmm.training.sharded_snapshot import SHARDS, load_own, newest_together, remove_shards, save_together

if TYPE_CHECKING:
    from dladmm.callbacks import Callback
    from dladmm.training.trainer import Trainer

Snapshot = tuple[dict[str, Tensor], dict[str, Any]]

_NAME = re.compile(r"checkpoint-(\d{6,18})\.dladmm")
_CALLBACK = "callback/"


# A run as tensors and plain values, and back -------------------------------------------------------------------


def take_snapshot(trainer: Trainer) -> Snapshot:
    """Everything a later run needs to go on bit for bit: tensors by name, and what JSON can hold."""
    tensors = {"u": trainer.state.u}
    for l in range(len(trainer.engine.chain)):
        tensors |= {f"params.{l}.{name}": p for name, p in trainer.state.params[l].items()}
        tensors |= {
            f"outputs.{l}": trainer.state.outputs[l],
            f"predictions.{l}": trainer.state.predictions[l],
        }
        for name, number in trainer.state.curvatures[l].items():
            tensors[f"memory.{l}.{name}"] = torch.as_tensor(number, dtype=torch.float64)
    tensors |= {f"memory.{name}": tensor for name, tensor in trainer.engine.carried(trainer.state).items()}
    options = trainer.engine.options
    held, method = trainer.method.snapshot()
    tensors |= {f"method.{name}": tensor for name, tensor in held.items()}
    meta = {
        "iteration": kind_of(trainer),
        "method": method,
        "rho": trainer.state.rho,
        "nu": trainer.state.nu,
        "alpha0": options.alpha0,
        "t0": options.t0,
        "start": trainer.start,
        "exempt": list(trainer.exempt),
        "history": trainer.history.to_dict(),
        "scaled_targets": trainer.units is not None,
        "identity": identity_of(trainer),
        "compared": trainer.compared,
    }
    return tensors, meta


def resume_snapshot(trainer: Trainer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Take up a snapshot of a run on the same data and network; ``fit`` then goes on where it stood."""
    expected, _ = take_snapshot(trainer)
    if meta.get("iteration", kind_of(trainer)) != kind_of(trainer):
        raise InputError(
            f"the snapshot is of a run with {meta['iteration']}, this run has {kind_of(trainer)}."
        )
    if meta.get("scaled_targets", False) != (trainer.units is not None):
        before = bool(meta.get("scaled_targets", False))
        raise InputError(
            f"the snapshot is of a run with scale_targets={before}; this one needs scale_targets={before} too."
        )
    compared = check_same_run(meta.get("identity"), trainer) and meta.get("compared", True) is True
    varying = ("memory.", "method.")  # what blocks remember and a method holds may grow as a run goes
    named = {name for name in tensors if not name.startswith(varying)}
    wrong = sorted(named ^ {name for name in expected if not name.startswith(varying)})
    wrong += [n for n in sorted(named & set(expected)) if tensors[n].shape != expected[n].shape]
    wrong += [n for n in sorted(named & set(expected)) if tensors[n].dtype != expected[n].dtype]
    if wrong:
        raise InputError(f"the snapshot does not fit this run's data, network or dtype: {', '.join(wrong)}.")
    run = checked_run(meta)
    for name in named:
        expected[name].copy_(tensors[name])
    held = {n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")}
    trainer.method.resume(held, run.method)
    for name, value in tensors.items():
        if name.startswith("memory."):
            _, l, key = name.split(".", 2)
            if value.ndim == 0:
                trainer.state.curvatures[int(l)][key] = float(value)
            else:
                trainer.engine.carry(trainer.state, int(l), key, value.to(trainer.state.u.device))
    trainer.state.rho, trainer.state.nu = run.rho, run.nu
    trainer.engine.options = replace(trainer.engine.options, alpha0=run.alpha0, t0=run.t0)
    trainer.start, trainer.exempt, trainer.history = run.start, run.exempt, run.history
    trainer.compared = compared


# One file ------------------------------------------------------------------------------------------------------


def save_training(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Write the state of the run between two iterations, with the state of its callbacks."""
    tensors, meta = trainer.snapshot()
    states = {key: callback.snapshot() for key, callback in _keyed(trainer)}
    for key, (held, _) in states.items():
        tensors |= {f"{_CALLBACK}{key}/{name}": tensor for name, tensor in held.items()}
    meta = {"run": meta, "callbacks": {key: held for key, (_, held) in states.items() if held}}
    if trainer.engine.shards is None:
        save(path, "training", tensors, meta)
    else:
        save_together(Path(path), (tensors, meta), trainer.engine.shards)


def load_training(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot in a file, for ``trainer.resume(*load_training(path))``."""
    tensors, meta = load_own(Path(path), None, None)
    return {name: t for name, t in tensors.items() if not name.startswith(_CALLBACK)}, _run(meta, path)


def resume_training(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Resume the run in a file, callbacks included; the trainer must have the same data and network."""
    try:
        content = _content(trainer, Path(path))
    except InputError as error:
        raise InputError(f"{path} cannot be resumed here: {error}") from error
    _resume(trainer, Path(path), content)


def _content(trainer: Trainer, path: Path) -> Snapshot:
    return load_own(path, trainer.engine.shards, len(trainer.state.u))


def _resume(trainer: Trainer, path: Path, content: Snapshot) -> None:
    tensors, meta = content
    run = _run(meta, path)
    try:
        trainer.resume({n: t for n, t in tensors.items() if not n.startswith(_CALLBACK)}, run)
        for key, callback in _keyed(trainer):
            if key in meta["callbacks"]:
                prefix = f"{_CALLBACK}{key}/"
                held = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
                callback.resume(trainer, held, meta["callbacks"][key])
    except InputError as error:
        raise InputError(f"{path} cannot be resumed here: {error}") from error
    except UNUSABLE as error:
        raise DataError(f"{path} does not hold a run that this library can resume: {error!r}") from error


def _run(meta: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    run = meta.get("run")
    if not isinstance(run, dict) or not isinstance(meta.get("callbacks"), dict):
        raise DataError(f"{path} does not hold a run that this library can resume.")
    return run


def _keyed(trainer: Trainer) -> Iterator[tuple[str, Callback]]:
    """Callbacks with a key of class name and number, so that adding one of another class changes no other key."""
    seen: Counter[str] = Counter()
    for callback in trainer.callbacks:
        name = type(callback).__name__
        yield f"{name}.{seen[name]}", callback
        seen[name] += 1


# A folder ------------------------------------------------------------------------------------------------------


def checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoint files in a folder, newest iteration first, unread; empty if there is no such folder."""
    folder = Path(folder)
    try:
        names = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}.") from error
    return sorted((path for path, match in names.items() if match), key=iteration_of, reverse=True)


def iteration_of(path: Path) -> int:
    """The iteration in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise InputError(f"{path.name} is not the name of a checkpoint such as checkpoint-000120.dladmm.")
    return int(match[1])


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The newest intact checkpoint, or None if there are none; damaged ones are skipped with a warning."""
    found = _newest(Path(folder))
    return None if found is None else found[0]


def resume_latest(trainer: Trainer, folder: str | os.PathLike[str]) -> Path | None:
    """Resume from the newest intact checkpoint of a folder; damaged newer ones are renamed to ``*.damaged``."""
    shards = trainer.engine.shards
    if shards is None:
        found = _newest(Path(folder), trainer)
    else:
        listed = checkpoints(folder) if shards.comm.rank == 0 else []
        found = newest_together(listed, shards.comm, shards, len(trainer.state.u))
    if found is None:
        return None
    path, content = found
    _resume(trainer, path, content)
    if trainer.comm.rank > 0:
        return path
    for other in checkpoints(folder):
        if iteration_of(other) > iteration_of(path):
            with suppress(OSError):
                other.rename(other.with_name(other.name + ".damaged"))
    return path


def save_in_folder(trainer: Trainer, folder: str | os.PathLike[str], keep: int = 2) -> Path:
    """Write ``checkpoint-<iteration>.dladmm``, then remove all but the newest ``keep``."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InputError(f"keep must be a whole number >= 1, got {keep!r}.")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if trainer.comm.alone:  # on several ranks the save below fails and all raise
            raise DataError(f"cannot make the folder {folder}: {error.strerror}.") from error
    path = folder / f"checkpoint-{trainer.history.n_iter:06d}.dladmm"
    save_training(trainer, path)
    if trainer.comm.rank > 0:
        return path
    for old in checkpoints(folder)[keep:]:
        with suppress(OSError):  # another process may have removed it
            old.unlink()
    remove_orphans(folder)
    if any(folder.glob(SHARDS)):
        remove_shards(folder, checkpoints(folder))
    return path


def _newest(folder: Path, trainer: Trainer | None = None) -> tuple[Path, Snapshot] | None:
    faults: list[str] = []
    for _ in range(5):  # a running process may remove listed files after writing newer ones
        faults = []
        listed = checkpoints(folder)
        for path in listed:
            try:
                content = load_own(path, None, None) if trainer is None else _content(trainer, path)
            except InputError as error:
                raise InputError(f"{path} cannot be resumed here: {error}") from error
            except DataError as error:
                faults += [str(error)] if path.exists() else []
                continue
            for fault in faults:
                warnings.warn(f"{fault} Falling back to {path.name}.", CheckpointWarning, stacklevel=3)
            return path, content
        if faults or not listed:
            break
    if faults:
        raise DataError(
            f"none of the checkpoints in {folder} can be loaded: {' '.join(faults)} Remove them to start a new run."
        )
    return None


__all__ = [
    "CheckpointWarning",
    "SavedModel",
    "checkpoints",
    "iteration_of",
    "latest",
    "load",
    "load_model",
    "load_training",
    "resume_latest",
    "resume_training",
    "save",
    "save_in_folder",
    "save_model",
    "save_training",
]
