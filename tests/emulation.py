"""CUDA kernels on a CPU: the library's code as C++, the threads of a block taking turns (compute/emulated/cuda.h)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from dladmm.compute import kernels, narrow_kernels, number_kernels, product_kernels, softmax_kernels
from dladmm.compute.gpu import code
from dladmm.compute.gpu.code import FOLDER, GpuError, Kernel, Unit

HERE = Path(__file__).parent / "compute" / "emulated"
DYNAMIC = "extern __shared__ __align__(1024) unsigned char memory[];"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
OPTIONS = ["-O2", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-w"]


def launch(kernel: Kernel, grid: tuple[int, int], *arguments: object) -> None:
    """In the place of :meth:`Kernel.__call__`."""
    packed = code._packed(arguments)
    run = getattr(_library(kernel.unit), f"run_{kernel.name}")
    if run(packed, ctypes.c_uint(grid[0]), ctypes.c_uint(grid[1]), ctypes.c_uint(kernel.threads)):
        raise GpuError(f"threads of {kernel.name} wait for each other for ever")


def all_kernels() -> list[Kernel]:
    modules = kernels, number_kernels, product_kernels, softmax_kernels
    values = [value for module in modules for value in vars(module).values()]
    several = [each for value in values for each in (value.values() if isinstance(value, dict) else [value])]
    return [each for each in (*several, *narrow_kernels.narrow(FEW)) if isinstance(each, Kernel)]


FEW = 10
"""Of the kernels that are compiled for a number of columns: any will do."""


@cache
def _library(unit: Unit) -> ctypes.CDLL:
    """Compiled once for all tests of a machine: into a folder that pytest keeps."""
    texts = [(HERE / "cuda.h").read_text("utf-8"), unit.defined, *map(_text, unit.files)]
    source = "\n".join(["#include <algorithm>", *texts])
    source = source.replace(DYNAMIC, "unsigned char *memory = emulated::memory;")
    source = source.replace('extern "C" __global__', "static")  # libc has an ``advance`` of its own
    names = {kernel.name for kernel in all_kernels() if kernel.unit.files == unit.files}
    for name in sorted(names):
        source += (
            f'\nextern "C" int run_{name}(const char *packed, unsigned across, unsigned down, unsigned threads) '
            f"{{ return emulated::launch({name}, packed, across, down, threads); }}"
        )
    folder = Path(__file__).parents[1] / ".pytest_cache" / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.so"
    if not made.exists():
        own = made.with_name(f"{made.stem}-{os.getpid()}")
        own.with_suffix(".cpp").write_text(source, "utf-8")
        given = [str(COMPILER), *OPTIONS, "-o", str(own.with_suffix(".so")), str(own.with_suffix(".cpp"))]
        done = subprocess.run(given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        own.with_suffix(".so").replace(made)
        own.with_suffix(".cpp").unlink()
    return ctypes.CDLL(str(made))


def _text(file: str) -> str:
    return (HERE / "hopper.h" if file == "hopper.cu" else FOLDER / file).read_text("utf-8")
