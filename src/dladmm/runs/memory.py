"""Measuring the memory of a cell: in a process of its own, because the peak of a process covers all it ever did."""

from __future__ import annotations

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from dladmm.base.history import Status
from dladmm.runs.plan import Cell
from dladmm.runs.running import Session, keep, to_stderr, train


def weigh(cell: Cell, into: Path, session: Session) -> Status:
    """Run one cell elsewhere and write what it needed: above the data as read on a CPU, all of it on a GPU."""
    where = (str(session.out), session.device, session.data_dir, torch.get_num_threads())
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return Status[pool.submit(_weighed, cell, str(into), *where).result()]


def _weighed(cell: Cell, into: str, out: str, device: str, data_dir: str | None, threads: int) -> str:
    torch.set_num_threads(threads)
    session = Session(Path(out), device, data_dir, say=to_stderr)
    session.problem(cell)
    held = start_peak(device)
    result = train(replace(cell, diagnostics_every=cell.max_iter), session, [])
    keep(result, cell, Path(into), session, memory_bytes=peak_bytes(device) - held)
    return result.status.name


def start_peak(device: str) -> int:
    """Forget the peak so far, of reading the data; what is held now is not the run's."""
    if "cuda" in device:
        torch.cuda.reset_peak_memory_stats()
        return 0
    with suppress(OSError):  # Linux alone can forget; elsewhere the run counts from the peak of reading on
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes(device)


def peak_bytes(device: str) -> int:
    """torch's own peak on a GPU (features and A~ included), else that of the process."""
    if "cuda" in device:
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        found = next((line for line in lines if line.startswith("VmHWM:")), None)
        if found is not None:
            return int(found.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
