"""Time and memory of a dlADMM iteration on graphs, beside the paper's table and an Adam epoch.

    python benchmarks/gcn.py                                   # five data sets, 16 to 256 hidden units
    python benchmarks/gcn.py --datasets cora --hidden 128      # one cell
    python benchmarks/gcn.py --device cuda --json > gcn.json

Measured in one process and in turn, so that other work on the machine meets all alike:

- *certified*: an iteration inside the certified region (rho = 1.5, mu = .01, l2 on W, the last W solved
  exactly);
- *paper*: an iteration with the paper's settings, quadratic steps and its loop from alpha0 = t0 = 1 (mu =
  1e-3, rho by --rho, the settings of src/dladmm/reproduce/configs/gcn-time-neurons.toml);
- *accelerated*: an iteration of mode="accelerated" (a refused attempt is part of it);
- one full-batch *Adam* epoch, with the same products: the features or A~ X, whichever form is cheaper, and
  stored transposes for the backward pass too.

An iteration is a backward and a forward sweep with the Lagrangian and the residuals measured, as in training;
an epoch is forward, backward and Adam's step. Times are medians, warm and synchronised. The paper's seconds
are those of its table "running time 3" for the same data set, hidden units and rho; its machine is not ours.
Memory is the peak of the process above what it held before the certified run (CPU) or torch's peak allocation
(GPU), A~ and features included. A data set that is not found is left out, with a line that says so. The table
goes to standard output; with --json it goes to standard error and one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import platform
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded
from mlp import NEVER, Contender, synchronize

from dladmm import datasets
from dladmm.api.graph_problem import GraphProblem, GraphSettings, graph_problem
from dladmm.api.train import fresh_parameters
from dladmm.compute.recording import WARM_CALLS
from dladmm.compute.sparse import SparseMatrix
from dladmm.datasets import GraphData
from dladmm.datasets._locate import locate, roots
from dladmm.datasets._registry import dataset
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.options import make_options
from dladmm.losses import get_loss
from dladmm.reproduce import paper
from dladmm.training.run_folder import describe
from dladmm.training.trainer import Trainer

NAMES = ["cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-physics"]
EMBEDDED = ["karate"]
MODES: dict[str, dict[str, Any]] = {
    "certified": {"rho": 1.5, "nu": 0.01, "regularizer": "l2"},
    "paper": {"nu": 1e-3, "w_solver": "quadratic", "alpha0": 1.0, "t0": 1.0, "start": "paper"},
    "accelerated": {"mode": "accelerated"},
}


class Times(torch.autograd.Function):
    """``M @ x`` for a fixed sparse or dense matrix, with the transpose in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, M: SparseMatrix | Tensor) -> Tensor:
        ctx.matrix = M
        return M @ x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.T @ gradient, None


def adam_epoch(problem: GraphProblem, weights: list[Tensor]) -> Callable[[], None]:
    """One full-batch Adam epoch of the network of ``problem``."""
    first, last = problem.chain.blocks[0].graph, problem.chain.blocks[-1].graph
    x, adjacency = first.operand(problem.x), last.adjacency
    W1, W2 = (W.T.contiguous().requires_grad_() for W in weights)
    optimizer = torch.optim.Adam([W1, W2], lr=0.01)
    labelled = torch.nonzero(problem.risk.weight[:, 0] > 0)[:, 0]
    target = problem.risk.target.argmax(1)[labelled]

    def epoch() -> None:
        optimizer.zero_grad()
        hidden = Times.apply(W1, x)
        if first.adjacency is not None:
            hidden = Times.apply(hidden, first.adjacency)
        logits = Times.apply(torch.relu(hidden) @ W2, adjacency)
        F.cross_entropy(logits[labelled], target, reduction="sum").backward()
        optimizer.step()

    return epoch


def graph_iteration(
    mode: str, data: GraphData, hidden: int, device: torch.device, *, rows: str = "all", **changes: Any
) -> tuple[Contender, GraphProblem, list[Tensor]]:
    """One iteration as the trainer makes it, its problem, and a copy of the weights it starts from."""
    changes = MODES[mode] | changes
    regularizer = changes.pop("regularizer", "auto")
    options = make_options(max_iter=NEVER, diagnostics_every=NEVER, **({"dropout": 0.0} | changes))
    settings = GraphSettings(
        hidden=(hidden,),
        activation="relu",
        rows=rows,
        loss=get_loss("cross_entropy"),
        validation=None,
        prox="auto",
        dtype=torch.float32,
        device=device,
        scaled=options.scale_inputs,
    )
    problem = graph_problem(data, settings)
    params = fresh_parameters(problem.chain, 0, options.init_scale, options.init_std, torch.float32, device)
    weights = [p["W"].clone() for p in params]
    trainer = Trainer(
        problem.chain,
        problem.x,
        problem.risk,
        options,
        penalty=options.penalty(regularizer),
        params=params,
        scaling=problem.scaling,
    )

    def step() -> None:
        ended = trainer._iterate(trainer.history.n_iter + 1)
        if ended is not None:
            raise RuntimeError(f"{mode} ended with {ended.name} after {trainer.history.n_iter} iterations.")

    method = trainer.method
    if not isinstance(method, Accelerated):
        return Contender(step), problem, weights
    return Contender(step, lambda: method.iteration + method.refused), problem, weights


def paper_seconds(name: str, hidden: int) -> dict[float, float]:
    """The paper's seconds an epoch for this data set and width, by rho; empty where it has no such cell."""
    cells = paper.figures()["tab:running time 3"].get(name.replace("-", "_"))
    if cells is None or hidden not in cells["neurons"]:
        return {}
    column = cells["neurons"].index(hidden)
    return {rho: row[column] for rho, row in zip(cells["rho"], cells["seconds"], strict=True)}


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, hidden: int, settings: argparse.Namespace) -> dict[str, Any]:
    """One data set and width: on a CPU in a process of its own, so that its peak memory is its own."""
    torch.set_num_threads(settings.threads)
    device = torch.device(settings.device)
    if device.type == "cuda":
        torch._dynamo.reset()  # kernels for these very shapes, as in a process that has no others
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    data = datasets.load(name)
    held = 0 if device.type == "cuda" else peak_bytes(device)
    own: dict[str, dict[str, Any]] = {
        "certified": {"w_solver": settings.solver},
        "paper": {"rho": settings.rho},
    }
    common = {"rows": settings.rows, "compile": settings.compile or "auto"}
    warm = WARM_CALLS + 2

    def warmed(step: Contender) -> Contender:
        for _ in range(warm):
            step.step()
        synchronize(device)
        return step

    certified, problem, weights = graph_iteration(
        "certified", data, hidden, device, **own["certified"], **common
    )
    modes = {"certified": warmed(certified)}
    memory = peak_bytes(device) - held
    for mode in ("paper", "accelerated"):
        contender, _, _ = graph_iteration(mode, data, hidden, device, **own.get(mode, {}), **common)
        modes[mode] = warmed(contender)
    epoch = warmed(Contender(adam_epoch(problem, weights)))
    for _ in range(settings.repeats):
        for contender in (*modes.values(), epoch):
            contender.time(device)
    theirs = paper_seconds(name, hidden)
    published = theirs.get(settings.rho)

    def of_mode(contender: Contender) -> dict[str, Any]:
        return {
            "iteration_seconds": contender.median,
            "attempts": contender.attempts,
            "ratio_to_adam": contender.median / epoch.median,
            "times_as_fast_as_the_paper": None if published is None else published / contender.median,
        }

    return {
        "dataset": name,
        "hidden": hidden,
        "rows": settings.rows,
        "iteration_seconds": certified.median,
        "adam_epoch_seconds": epoch.median,
        "ratio": certified.median / epoch.median,
        "memory_bytes": memory,
        "paper_seconds": published,
        "paper_seconds_lowest_of_all_rho": min(theirs.values(), default=None),
        "modes": {mode: of_mode(contender) for mode, contender in modes.items()},
    }


HEADER = (
    f"{'':18} {'':>6} {'iteration, ms':^30} {'Adam':>8} {'to an Adam epoch':^17} "
    f"{'paper':>7} {'times as fast':^13}\n"
    f"{'data set':18} {'hidden':>6} {'certified':>9} {'paper':>8} {'accelerated':>11} {'epoch':>8} "
    f"{'cert.':>5} {'paper':>5} {'acc.':>5} {'s':>7} {'paper':>6} {'acc.':>6} {'memory':>8}"
)


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    modes = row["modes"]
    ms = {mode: 1e3 * of["iteration_seconds"] for mode, of in modes.items()}
    ratios = " ".join(f"{of['ratio_to_adam']:5.2f}" for of in modes.values())
    published = row["paper_seconds"]
    faster = [modes[mode]["times_as_fast_as_the_paper"] for mode in ("paper", "accelerated")]
    shown = " ".join(f"{'-' if x is None else f'{x:.1f}':>6}" for x in faster)
    return (
        f"{row['dataset']:18} {row['hidden']:6d} {ms['certified']:9.2f} {ms['paper']:8.2f} "
        f"{ms['accelerated']:11.2f} {1e3 * row['adam_epoch_seconds']:8.2f} {ratios} "
        f"{'-' if published is None else f'{published:.4f}':>7} {shown} {row['memory_bytes'] / 1e6:5.0f} MB"
    )


def missing(name: str) -> bool:
    entry = dataset(name)
    return not entry.embedded and locate(entry, roots()) is None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=NAMES, choices=NAMES + EMBEDDED)
    parser.add_argument("--hidden", nargs="+", type=int, default=[16, 32, 64, 128, 256])
    parser.add_argument("--rows", choices=["all", "train"], default="all")
    parser.add_argument(
        "--solver", choices=["exact", "quadratic"], default="exact", help="of the last W, certified mode"
    )
    parser.add_argument("--rho", type=float, default=1e-3, help="of the paper's settings and of its table")
    parser.add_argument("--compile", action="store_true", help="elementwise work compiled by torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    if settings.repeats < 1:
        parser.error("--repeats must be at least 1")
    people = sys.stderr if settings.json else sys.stdout
    print(HEADER, file=people, flush=True)
    results, skipped = [], []
    for name in settings.datasets:
        if missing(name):
            skipped.append(name)
            print(
                f"{name:18} skipped: its files are not found (see docs/datasets.md)", file=people, flush=True
            )
            continue
        for hidden in settings.hidden:
            if settings.device.startswith("cuda"):
                results.append(rounded(measure(name, hidden, settings)))
            else:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    results.append(rounded(pool.apply(measure, (name, hidden, settings))))
            print(line(results[-1]), file=people, flush=True)  # the figures of the JSON, to its digits
    if not settings.json:
        return
    where = torch.cuda.get_device_name() if settings.device.startswith("cuda") else platform.processor()
    given = sys.argv[1:] if arguments is None else arguments
    report = {
        "command": f"python benchmarks/gcn.py {' '.join(given)}".strip(),
        "device": where or platform.machine(),
        "threads": settings.threads,
        "torch": torch.__version__,
        "machine": describe(settings.device) | {"threads": settings.threads},
        "settings": vars(settings),
        "skipped": skipped,
        "results": results,
    }
    print(dumps(rounded(report)))


if __name__ == "__main__":
    main()
