"""What a run takes: the estimate before it, its tensors' peak, and how far its process grows.

    python benchmarks/memory.py                                         # 200-300-300-10, 20,000 samples, all modes
    python benchmarks/memory.py --dataset mnist --widths 784,1000,1000,10 --modes exact --max-memory 2GB

Every run is one iteration with all its measurements, on random data or a data set's training rows, in a process of its
own: once with its tensors accounted for (recording.py), once alone for the resident memory, read after a small run has
loaded what any run loads. Bytes are those above the data. Prints a table, with --json one JSON object a run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from recording import Recorder

from dladmm import datasets, mlp, train
from dladmm.engine.memory_limit import bytes_of, chunk, needs_of
from dladmm.engine.options import make_options

MODES: dict[str, dict[str, Any]] = {
    "quadratic": {"mode": "convergent", "w_solver": "quadratic", "a_solver": "quadratic"},
    "exact": {"mode": "convergent"},
    "accelerated": {"mode": "accelerated"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", default="200,300,300,10")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--dataset", help="take its training rows, all of them")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--max-memory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=["tensors", "process"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args)))
        return
    if not args.json:
        print(
            f"{args.widths}, {args.dataset or args.samples}, float32, max_memory {args.max_memory}; MB above the data"
        )
        print(
            f"{'mode':12} {'at once':>8} {'estimate':>9} {'tensors':>9} {'process':>9} {'estimate/tensors':>17}"
        )
    for mode in args.modes.split(","):
        both = [_child(args, mode, kind) for kind in ("tensors", "process")]
        found = both[1] | both[0] | {"process": both[1]["process"]}
        if args.json:
            print(json.dumps(found))
            continue
        shown = "".join(f"{found[name] / 1e6:10,.0f}" for name in ("estimate", "tensors", "process"))
        rows = f"{found['at_once'] or 'all':>8}"
        print(f"{mode:12} {rows}{shown} {found['estimate'] / found['tensors']:17.3f}", flush=True)


def _child(args: argparse.Namespace, mode: str, kind: str) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--widths",
        args.widths,
        "--samples",
        str(args.samples),
        "--modes",
        mode,
    ]
    command += ["--dataset", args.dataset] if args.dataset else []
    command += ["--child", kind] + (["--max-memory", args.max_memory] if args.max_memory else [])
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer


def measured(args: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    widths, options = [int(width) for width in args.widths.split(",")], MODES[args.modes]
    x, y = rows(args, widths)
    chosen = make_options(max_memory=args.max_memory, **options)
    needs = needs_of(mlp(widths), x, chosen, chosen.penalty("auto"))
    at_once = None if args.max_memory is None else chunk(needs, bytes_of(args.max_memory), x)
    estimate = needs if at_once is None else replace(needs, at_once=at_once)
    train(mlp([widths[0], 4, widths[-1]]), x[:500], y[:500], device="cpu", max_iter=1, **options)
    before, recorder = _resident(), Recorder()
    with recorder if args.child == "tensors" else nullcontext():
        train(mlp(widths), x, y, device="cpu", max_iter=1, max_memory=args.max_memory, **options)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "mode": args.modes,
        "at_once": at_once,
        "estimate": estimate.peak,
        "whole": needs.peak,
        "least": needs.least,
        "tensors": recorder.peak,
        "process": after - before,
    }


def rows(args: argparse.Namespace, widths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    if args.dataset:
        data: Any = datasets.load(args.dataset)
        return torch.as_tensor(data.x_train, dtype=torch.float32), torch.as_tensor(data.y_train)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(args.samples, widths[0], generator=generator)
    return x, torch.randint(0, widths[-1], (args.samples,), generator=generator)


def _resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
