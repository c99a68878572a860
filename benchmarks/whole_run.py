"""Seconds of a whole process: from its start, with everything in it, to the end of so many iterations on a GPU.

    python benchmarks/whole_run.py --images mnist.npz --json > whole-run.json
    python benchmarks/whole_run.py --device cpu --samples 200 --cells mlp-float32 cnn-adam --iterations 3

Each cell is a process of its own with empty caches of compiled kernels; cells named ``again`` find those of the cell
before. torch is found as pip leaves it (benchmarks/installed.py). Beside the seconds of the process stand those of an
iteration once it is warm (a median) and the most memory that torch held, data included. ``mlp`` is 784-1000-1000-10,
``cnn`` that of docs/results.md.

``stages`` has where the seconds of the process went: until Python runs this file, imports, data and device, the
trainer, the first iteration, what the others took beyond warm ones, warm ones, and the end of the process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from installed import compile_packages, environment

HERE = Path(__file__).resolve().parent
CELLS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "mlp-float32": ("mlp", "accelerated", {}, 200),
    "mlp-float32-again": ("mlp", "accelerated", {}, 200),
    "mlp-tf32": ("mlp", "accelerated", {"precision": "tf32"}, 200),
    "mlp-tf32-again": ("mlp", "accelerated", {"precision": "tf32"}, 200),
    "mlp-quadratic-tf32": (
        "mlp", "convergent", {"precision": "tf32", "w_solver": "quadratic", "a_solver": "quadratic"}, 40,
    ),
    "mlp-adam": ("mlp", "adam", {}, 20),
    "torch-alone": ("mlp", "nothing", {}, 0),
    "cnn-float32": ("cnn", "accelerated", {}, 12),
    "cnn-adam": ("cnn", "adam", {}, 8),
}  # fmt: skip
"""Network, mode, options and iterations. ``torch-alone`` reads the data, brings them to the device and makes one
product there: what every program that uses torch waits for."""


def child(cell: str, settings: argparse.Namespace) -> dict[str, Any]:
    """What one process does: it ends when the last iteration has been made."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
    stages = {"start": time.time() - settings.began}
    stage = time.perf_counter()

    def ended(name: str) -> None:
        nonlocal stage
        if "torch" in sys.modules and device.type == "cuda":
            torch.cuda.synchronize()
        stages[name], stage = time.perf_counter() - stage, time.perf_counter()

    import torch
    from kernel_times import images, training

    problem, mode, options, iterations = CELLS[cell]
    device = torch.device("cpu")
    ended("imports")
    device = torch.device(settings.device)
    x, y = images(settings.samples, device, settings.images)
    if mode == "nothing":
        torch.mm(x.T, x)
    ended("data and device")
    if mode == "nothing":
        return {"iterations": 0, "iteration_seconds": 0.0, "memory_bytes": None, "stages": stages}
    torch.backends.cudnn.allow_tf32 = mode == "adam" and settings.tf32
    chosen = {"mode": "accelerated" if mode == "adam" else mode} | options
    iterate, epoch, _ = training(problem, x, y, chosen, only_adam=mode == "adam")
    ended("trainer")
    seconds = []
    for _ in range(settings.iterations or iterations):
        began = time.perf_counter()
        (epoch if mode == "adam" else iterate)()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    late = seconds[len(seconds) // 2 :]
    warm = statistics.median(late)
    stages |= {
        "first iteration": seconds[0],
        "iterations beyond warm ones": sum(seconds[1:]) - warm * (len(seconds) - 1),
        "warm iterations": warm * (len(seconds) - 1),
    }
    found = {"iterations": len(seconds), "iteration_seconds": warm, "memory_bytes": memory}
    return found | {"stages": stages}


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    cache = ""
    compile_packages()
    for cell in settings.cells:
        if not cell.endswith("-again"):
            cache = tempfile.mkdtemp()
        own = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "CUDA_CACHE_PATH": f"{cache}/driver"}
        given = ["--device", settings.device, "--samples", str(settings.samples), "--child", cell]
        given += ["--images", settings.images] if settings.images else []
        given += ["--iterations", str(settings.iterations)] if settings.iterations else []
        given += ["--tf32"] if settings.tf32 else []
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, *given, "--began", str(time.time())],
            env=environment() | own,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            print(f"{cell} failed", file=sys.stderr)
            continue
        found[cell] = json.loads(done.stdout.splitlines()[-1]) | {"process_seconds": seconds}
        stages = found[cell]["stages"]
        stages["end"] = seconds - sum(stages.values())
        print(line(cell, found[cell]), file=sys.stderr if settings.json else sys.stdout, flush=True)
    return found


def line(cell: str, row: dict[str, Any]) -> str:
    memory = "" if row["memory_bytes"] is None else f" {row['memory_bytes'] / 1e9:7.2f} GB"
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["stages"].items())
    return (
        f"{cell:20} {row['process_seconds']:7.2f} s for {row['iterations']:4d} iterations, "
        f"{1e3 * row['iteration_seconds']:8.2f} ms each{memory}\n    {stages}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--samples", type=int, default=55000)
    parser.add_argument("--iterations", type=int, help="instead of the cell's own number")
    parser.add_argument("--images", help=".npz file with X and y, instead of the data set")
    parser.add_argument(
        "--tf32", action="store_true", help="Adam's convolutions in TF32, which torch does unless told"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(CELLS), help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    settings = parser.parse_args(arguments)
    if settings.child:
        print(json.dumps(child(settings.child, settings)))
        return
    found = measure(settings)
    if settings.json:
        sys.path.insert(0, str(HERE.parent / "src"))
        from dladmm.training.run_folder import describe

        given = sys.argv[1:] if arguments is None else list(arguments)
        report = {
            "command": f"python benchmarks/whole_run.py {' '.join(given)}".strip(),
            "machine": describe(settings.device),
            "cells": found,
        }
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
