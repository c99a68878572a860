"""The figures of docs/performance.md that want a GPU, made again by one command: ``python benchmarks/gpu_page.py``.

It runs the programs that the page names, one after the other, for some minutes, and puts what they print into
docs/results, or into --out; $DLADMM_DATA has the data sets. ``--only large products`` makes some of them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from installed import environment

from dladmm import datasets

HERE = Path(__file__).resolve().parent
GRAPHS = [
    *((name, units) for units in (16, 128, 256) for name in ("pubmed", "coauthor-cs", "coauthor-physics")),
    ("cora", 16),
    ("citeseer", 256),
]
QUADRATIC = (
    "--mode",
    "convergent",
    "--options",
    "precision=tf32",
    "w_solver=quadratic",
    "a_solver=quadratic",
)
CELLS = (
    "torch-alone", "mlp-float32", "mlp-float32-again", "mlp-tf32", "mlp-float32", "cnn-float32", "cnn-adam",
)  # fmt: skip
MOST_KERNELS, WIDEST = 16, 110
"""Of a profile: lines that are kept, and their length."""

Run = Callable[..., str]


def printed(program: str, *arguments: str) -> str:
    """What a program of this folder prints."""
    print(program, *arguments, file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / program), *arguments]
    return subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True).stdout


def iteration(output: str, units: int | None = None) -> str:
    """The line of ``kernel_times.py`` that has the milliseconds; memory where the GPU holds nothing else, on graphs."""
    (line,) = (line for line in output.splitlines() if "ms, Adam epoch" in line)
    if units is None:
        return re.sub(r"; memory.*", "", line)
    return re.sub(r"; warm-up.*", "", line).replace("{}:", f"{{}}, {units} units:")


def profile(output: str) -> str:
    """The kernels with the most time, and all of them."""
    rows = [line for line in output.splitlines() if re.match(r"\s+[\d.]+ms +\d+ x ", line)]
    kept = [line[:WIDEST].rstrip() for line in (*rows[:-1][:MOST_KERNELS], rows[-1])]
    return "\n".join(["   in all  calls  kernel", *kept])


def results(run: Run, images: str, fashion: str, only: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names of files in docs/results and their texts."""
    shared = ("--device", "cuda", "--top", str(MOST_KERNELS + 1))
    summary: list[str] = []
    if "graphs" in only:
        for name, units in GRAPHS:
            given = ("--device", "cuda", "--hidden", str(units), "--no-table", "--repeats", "20")
            summary.append(iteration(run("kernel_times.py", name, *given), units))
    for what, problem, options in (
        ("accelerated-mlp", "mlp", ()), ("quadratic-tf32", "mlp", QUADRATIC), ("accelerated-cnn", "cnn", ()),
    ):  # fmt: skip
        if "iterations" in only:
            output = run("kernel_times.py", problem, *shared, "--images", images, *options)
            summary.append(iteration(output))
            yield f"profile-{what}.txt", profile(output)
    if "iterations" in only:
        output = run("kernel_times.py", "cnn", *shared, "--images", fashion, "--no-table")
        summary.append(iteration(output).replace("cnn", "cnn on Fashion-MNIST", 1))
    if "whole" in only:
        summary.append(run("whole_run.py", "--images", images, "--cells", *CELLS).rstrip("\n"))
    if {"graphs", "iterations", "whole"} <= set(only):
        yield "performance-h200-auto.txt", "\n".join(summary)
    if "large" in only:
        yield "performance-large-graph-cuda.txt", run("large_graph.py", "--device", "cuda").rstrip("\n")
    if "products" in only:
        yield "products-h200.txt", run("product_kernel.py").rstrip("\n")
        yield "split-products-h200.txt", run("split_products.py", "--device", "cuda").rstrip("\n")


PARTS = ("graphs", "iterations", "whole", "large", "products")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results")
    settings = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name in ("mnist", "fashion_mnist"):
            data, file = datasets.load(name), Path(folder) / f"{name}.npz"
            pixels = (data.x_train.numpy() * 255).round().astype(np.uint8)
            np.savez(file, X=pixels, y=data.y_train.numpy())
            files.append(str(file))
        for name, text in results(printed, *files, settings.only):
            (settings.out / name).write_text(text + "\n", encoding="utf-8")
            print(f"{settings.out / name}\n{text}", flush=True)


if __name__ == "__main__":
    main()
