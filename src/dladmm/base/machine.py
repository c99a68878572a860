"""Versions and hardware of a run, without anything that identifies a person, a host or a folder."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dladmm._version import __version__


def describe(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions and hardware for ``metrics.json``; ``device`` is the device of the run's tensors."""
    return {
        "dladmm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}".strip(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": _device_name(torch.device(device)),
    }


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda})"


def _cpu_name() -> str:
    """The processor's model name; on Linux from /proc/cpuinfo, which ``platform`` does not read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown"
