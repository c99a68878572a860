"""What a run is known by: fingerprints of its data, its settings and its network, compared when it is resumed.

A run may go on with other values of :data:`MAY_CHANGE`, other callbacks and validation data, on another device or
another number of ranks. Everything else makes it another run.
"""

from __future__ import annotations

import json
import math
import re
import warnings
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dladmm._version import __version__
from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.base.spec import plain_values
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.compute.sparse import scipy_matrix

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer

FORMAT = 1
SIZE, ODD = 2**64, 0x9E3779B97F4A7C15
ENTRIES_AT_ONCE = 1 << 20

MAY_CHANGE = ("max_iter", "eps_abs", "eps_rel", "diagnostics_every", "compile", "max_memory")
"""Options with which a run may go on: when it ends, how often it is measured, how it is executed."""


class CheckpointWarning(UserWarning):
    """Warning: a checkpoint was damaged, could not be written, or is of another version."""


def kind_of(trainer: Trainer) -> str:
    """What makes an iteration, by name: a snapshot fits only a run of the same method."""
    return trainer.baseline or f"dladmm {trainer.options.mode}"


def identity_of(trainer: Trainer) -> dict[str, Any]:
    """What a run is known by, ready for JSON; read once. Every rank must ask, and all get the same."""
    if trainer.known_by is None:
        trainer.known_by = _read(trainer)
    return trainer.known_by


def _read(trainer: Trainer) -> dict[str, Any]:
    data = {}
    if trainer.given is not None:
        whole = "edge_index" in trainer.given  # every rank is given the whole graph
        arrays = {name: value for name, value in trainer.given.items() if value is not None}
        data = described(arrays, ALONE if whole else trainer.comm)
    engine, risk = trainer.engine, trainer.engine.risk
    options = asdict(trainer.options)
    found = {
        "format": FORMAT,
        "library": __version__,
        "data": data,
        "options": {name: value for name, value in options.items() if name not in MAY_CHANGE},
        "problem": {
            "network": [_words(block) for block in engine.chain],
            "loss": _spec(risk.loss),
            "prox": risk.solver,
            "regularizer": _spec(engine.penalty),
            "random_state": trainer.seed,
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(plain_values(found, _words)))
    return plain


def check_same_run(before: Any, trainer: Trainer) -> bool:
    """Raise where the snapshot is of a run with other data or settings; warn where it was made by another version.

    Returns whether data and settings could be compared: else the run goes on, but is not certified as one run.
    """
    said, compared = None, False
    if not isinstance(before, dict):
        said = (
            "was made by a version that did not record data and settings: they are not compared, and the run is not "
            "certified."
        )
    else:
        now = identity_of(trainer)
        check_identity(before, now)
        compared = bool(before.get("data")) and bool(now["data"])
        if before.get("library") != __version__:
            version = before.get("library")
            said = f"was made by version {version} of this library: the run may not go on bit for bit."
    if said is not None and trainer.comm.rank == 0:
        warnings.warn(f"the snapshot {said}", CheckpointWarning, stacklevel=6)
    return compared


def check_identity(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise if a snapshot is of another run, and name what differs."""
    then, present = before.get("data"), now["data"]
    differ = []
    if then and present:  # streams, and graphs in parts, have no fingerprint
        names = [name for name in {**present, **then} if then.get(name) != present.get(name)]
        differ += [f"{name} ({_how(then.get(name), present.get(name))})" for name in names]
    for part in ("options", "problem"):
        found = _differences(before.get(part), now[part])
        differ += [f"{name} ({_shown(b)} then, {_shown(a)} now)" for name, b, a in found]
    if differ:
        raise InputError(
            f"the snapshot is of another run: {'; '.join(differ)}. What may change is {', '.join(MAY_CHANGE)}, "
            "callbacks and validation data. To go on from its weights with another, begin a new run with init='keep'."
        )


def _differences(before: Any, now: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """Names and values of what differs; settings that one of two versions does not know are left out."""
    if isinstance(before, dict) and isinstance(now, dict) and "name" not in now:
        both = [key for key in now if key in before]
        return [found for key in both for found in _differences(before[key], now[key], key)]
    return [] if before == now else [(name, before, now)]


def _how(before: Any, now: Any) -> str:
    if before is None or now is None:
        return "given only then" if now is None else "given only now"
    was, present = before.get("shape"), now.get("shape")
    return "same shape, other values" if was == present else f"shape {was} then, {present} now"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + " ..."


# Fingerprints of arrays ------------------------------------------------------------------------------------------


def described(arrays: dict[str, Any], comm: Communicator) -> dict[str, Any]:
    """Shape and fingerprint of each array of the run, whichever way its rows are dealt to the ranks."""
    own_arrays = {
        name: value if hasattr(value, "shape") else np.asarray(value) for name, value in arrays.items()
    }
    own_lengths = {name: int(value.shape[0]) if len(value.shape) else 1 for name, value in own_arrays.items()}
    lengths = [json.loads(text) for text in comm.texts(json.dumps(own_lengths))]
    own = {
        name: fingerprint(array, sum(each[name] for each in lengths[: comm.rank]))
        for name, array in own_arrays.items()
    }
    marks = [json.loads(text) for text in comm.texts(json.dumps(own))]
    return {
        name: {
            "shape": [sum(each[name] for each in lengths), *map(int, array.shape[1:])],
            "fingerprint": f"{sum(each[name] for each in marks) % SIZE:016x}",
        }
        for name, array in own_arrays.items()
    }


def fingerprint(array: Any, first_row: int = 0) -> int:
    """A checksum of rows (N, ...) from ``first_row`` of the whole array on; those of its parts add up, mod 2^64.

    Every row has a number from its bits, which counts by its place: two rows that changed places are noticed.
    """
    if isinstance(array, Tensor) and array.layout != torch.strided:
        array = scipy_matrix(array)
    if not isinstance(array, Tensor | np.ndarray) and sparse.issparse(array):
        array = sparse.csr_array(array)
    shape = tuple(array.shape)
    if not shape:
        return fingerprint(_as_numpy(array).reshape(1), first_row)
    at_once = max(1, ENTRIES_AT_ONCE // max(1, math.prod(shape[1:])))
    total = 0
    for begin in range(0, shape[0], at_once):
        part = _as_numpy(array[begin : begin + at_once])
        if part.dtype.kind not in "biuf":  # refused with words where it is trained on
            return zlib.crc32(np.ascontiguousarray(part).tobytes())
        rows = np.ascontiguousarray(part, dtype=np.float64).reshape(len(part), -1).view(np.uint64)
        with np.errstate(over="ignore"):
            weights = (np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * np.uint64(ODD)) | np.uint64(1)
            mixed = (rows ^ (rows >> np.uint64(29))) * np.uint64(ODD)
            first = first_row + begin
            places = np.arange(first + 1, first + len(rows) + 1, dtype=np.uint64) * np.uint64(
                ODD
            ) | np.uint64(1)
            total += int(((mixed * weights).sum(1, dtype=np.uint64) * places).sum(dtype=np.uint64))
    return total % SIZE


def _as_numpy(rows: Any) -> Any:
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu()
        return (rows.double() if rows.is_floating_point() else rows).numpy()
    if isinstance(rows, np.ndarray):
        return rows
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


# Words for what JSON cannot hold ---------------------------------------------------------------------------------


def _spec(thing: Any) -> Any:
    """A loss or penalty by its parameters; of one's own by the name of its function."""
    try:
        return thing.to_spec()
    except InputError:
        fn = getattr(thing, "fn", None)
        fn = getattr(fn, "fn", fn)
        function = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"
        return {"name": thing.name, "function": function, "H": thing.H}


def _words(thing: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
