"""Runs the command line under torchrun, or a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from dladmm.base.errors import InputError
from dladmm.compute.communicator import ALONE, Communicator, DistributedError, Group, current

TIMEOUT = 300.0
"""Seconds without communication (including loading data) after which a rank gives up."""


def restarted() -> bool:
    """Whether torchrun has restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_folder_is_known(out: str | None) -> None:
    """Raise if the launcher may restart the run and no folder is given, for the restarted run needs its checkpoints."""
    if out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise InputError("with --max-restarts give --out, so that a restarted run finds its checkpoints.")


def local_device(device: str) -> str:
    """``auto`` and ``cuda`` replaced by the GPU of this process's local rank; other devices are unchanged."""
    if "LOCAL_RANK" not in os.environ or device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"


def _store_of_this_start(store: Any) -> Any:
    """The store with a prefix that is different for every restart.

    torchrun keeps one store for all restarts of a run, and a restarted rank may find the address of a dead one there.
    A single agent counts its restarts, which gives the prefix; several agents count separately, so torchrun must be
    configured to create a new store every time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) == 1:
        count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"start {count}", store)  # type: ignore[attr-defined]
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise InputError(
            "with --max-restarts on several nodes set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, so that "
            "restarted ranks do not look for each other where dead ones were."
        )
    return store


@contextmanager
def launched(device: str, timeout: float = TIMEOUT) -> Iterator[Communicator]:
    """Context manager: the process group of the launcher, created and destroyed here; ALONE without a launcher."""
    if dist.is_available() and dist.is_initialized():
        yield current()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(device)
    wait = timedelta(seconds=timeout)
    try:
        store, rank, size = next(rendezvous("env://", timeout=wait))
        kind = "nccl" if on_gpu else "gloo"
        dist.init_process_group(
            kind, store=_store_of_this_start(store), rank=rank, world_size=size, timeout=wait
        )
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:
        raise DistributedError(f"the ranks could not find each other: {error}") from error
    try:
        yield Group()
    except DistributedError:  # a group with a dead member cannot be destroyed cleanly
        raise
    else:
        dist.destroy_process_group()
