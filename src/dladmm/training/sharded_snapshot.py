"""A snapshot of a distributed run in several files: one shard per rank, and an index file written by rank 0.

    checkpoint-000120.dladmm                            parameters, history, callbacks; names the shards
    checkpoint-000120.3f9a61c2.00001-of-00004.dladmm    the rows of one rank, and their indices among all rows

The first file is written last: if it exists, the snapshot is complete. The eight digits are random for every save, so
that shards of an interrupted save are never mistaken for those of another. Rows are found by their indices, so a
snapshot can be resumed by any number of ranks.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dladmm.base.container import load, save
from dladmm.base.errors import DataError, DladmmError, InputError
from dladmm.compute.communicator import Communicator, Shards

Snapshot = tuple[dict[str, Tensor], dict[str, Any]]

PLACES = "places"
SHARDS = "checkpoint-*.*-of-*.dladmm"
_SHARD = re.compile(r"checkpoint-\d{6,18}\.[0-9a-f]{8}\.\d{5,}-of-\d{5,}\.dladmm")


def is_per_sample(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a snapshot has one row per sample."""
    if name == "u" or name.startswith(("outputs.", "predictions.")):
        return True
    return name.startswith("memory.") and tensor.ndim > 0


def save_together(path: Path, content: Snapshot, shards: Shards) -> None:
    """Write a snapshot from all ranks; if one rank fails, all raise the same DataError and the snapshot is invalid."""
    tensors, meta = content
    comm = shards.comm
    own = {name: tensor for name, tensor in tensors.items() if is_per_sample(name, tensor)}
    mark = comm.texts(secrets.token_hex(4))[0]
    names = [f"{path.stem}.{mark}.{rank:05d}-of-{comm.size:05d}.dladmm" for rank in range(comm.size)]
    places = shards.places(len(tensors["u"]))
    _on_all_or_none(
        comm, lambda: save(path.with_name(names[comm.rank]), "training", own | {PLACES: places}, {})
    )
    shared = {name: tensor for name, tensor in tensors.items() if name not in own}
    whole = meta | {"shards": names, "rows": shards.n_rows}
    _on_all_or_none(comm, lambda: save(path, "training", shared, whole) if comm.rank == 0 else None)


def _on_all_or_none(comm: Communicator, write: Any) -> None:
    """Call ``write`` on every rank; if it fails on one, all raise its error."""
    message = ""
    try:
        write()
    except DladmmError as error:
        message = str(error)
    faults = [text for text in comm.texts(message) if text]
    if faults:
        raise DataError(faults[0])


def load_own(path: Path, shards: Shards | None, n_own: int | None) -> Snapshot:
    """A snapshot, in one file or in shards, with the rows of this rank; ``n_own=None`` takes all rows."""
    tensors, meta = load(path, "training")
    if shards is None and "shards" not in meta:
        return tensors, meta
    n_rows = int(meta["rows"]) if "shards" in meta else len(tensors["u"])
    wanted = n_own if shards is None else shards.n_rows
    if wanted is not None and wanted != n_rows:
        raise InputError(f"it belongs to a run on {n_rows:,} rows, this run has {wanted:,}.")
    mine = torch.arange(n_rows) if shards is None or n_own is None else shards.places(n_own)
    found: dict[str, Tensor] = {}
    filled = torch.zeros(len(mine), dtype=torch.bool)
    for places, part in _parts(path, tensors, meta):
        order = torch.argsort(places)
        ordered = places[order]
        at = torch.searchsorted(ordered, mine).clamp_max(max(len(places) - 1, 0))
        hit = ordered[at] == mine if len(places) else torch.zeros_like(filled)
        source = order[at[hit]] if len(places) else at[:0]
        for name, tensor in part.items():
            if name not in found:
                found[name] = tensor.new_empty((len(mine), *tensor.shape[1:]))
            found[name][hit] = tensor[source]
        filled |= hit
    if not bool(filled.all()):
        raise DataError(f"{path} lacks {int((~filled).sum()):,} of the rows it should hold.")
    rest = {name: tensor for name, tensor in tensors.items() if not is_per_sample(name, tensor)}
    return rest | found, {key: value for key, value in meta.items() if key not in ("shards", "rows")}


def _parts(
    path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Row indices and rows of every part of a snapshot, one part in memory at a time."""
    if "shards" not in meta:
        rows = {name: tensor for name, tensor in tensors.items() if is_per_sample(name, tensor)}
        yield torch.arange(len(tensors["u"])), rows
        return
    for name in meta["shards"]:
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise DataError(f"{path} names {name!r} as a shard, which it is not.")
        part, _ = load(path.with_name(name), "training")
        yield part.pop(PLACES), part


def newest_together(
    listed: list[Path], comm: Communicator, shards: Shards, n_own: int
) -> tuple[Path, Snapshot] | None:
    """The newest snapshot that every rank can read, from rank 0's list of them."""
    names = [name for name in comm.texts("\n".join(map(str, listed)))[0].split("\n") if name]
    faults: list[str] = []
    for name in names:
        message, content = "", None
        try:
            content = load_own(Path(name), shards, n_own)
        except DladmmError as error:
            message = str(error)
        wrong = [f"rank {rank}: {text}" for rank, text in enumerate(comm.texts(message)) if text]
        if content is not None and not wrong:
            return Path(name), content
        faults += wrong
    if faults:
        raise DataError(f"none of the checkpoints can be resumed: {' '.join(faults)}")
    return None


def remove_shards(folder: Path, kept: list[Path]) -> None:
    """Remove the shards that none of the ``kept`` snapshots names; no save may be in progress."""
    shards = [path for path in folder.iterdir() if _SHARD.fullmatch(path.name)]
    if not shards:
        return
    named: set[str] = set()
    for path in kept:
        try:
            named.update(load(path, "training")[1].get("shards", []))
        except DataError:  # a damaged snapshot: keep its shards for inspection
            return
    for path in shards:
        if path.name not in named:
            with suppress(OSError):
                path.unlink()
