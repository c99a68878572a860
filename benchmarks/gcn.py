"""Time and memory of one dlADMM iteration on graphs, beside one full-batch Adam epoch of the same network.

    python benchmarks/gcn.py                                   # five data sets, 16 and 256 hidden units
    python benchmarks/gcn.py --datasets cora --hidden 128      # the ratio of issue 4
    python benchmarks/gcn.py --device cuda

Both use the same products: the features or A~ X, whichever form is cheaper, with the transpose stored for Adam's
backward pass too. An iteration is a backward and a forward sweep with the Lagrangian and the residuals measured, as in
training; an epoch is forward, backward and Adam's step. Medians of several, measured in turn in one process. Memory is
the peak of the process above what it held before the run (CPU) or torch's peak allocation (GPU), A~ and features
included. A table goes to standard error, one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm import datasets
from dladmm.engine import Engine
from dladmm.graph_api import GraphProblem, graph_problem
from dladmm.losses import get_loss
from dladmm.regularizers import get_regularizer
from dladmm.sparse import SparseMatrix
from dladmm.subproblems import SubproblemOptions

NAMES = ["cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-physics"]


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


def iteration(problem: GraphProblem, params: list[dict[str, Tensor]], solver: str) -> Callable[[], None]:
    """One iteration, measured as the trainer measures it."""
    options = SubproblemOptions(w_solver=solver)
    engine = Engine(problem.chain, problem.x, problem.risk, get_regularizer("l2"), options)
    state = engine.feasible_state(params, 1.5, 0.01)

    def step() -> None:
        engine.sweep(state)
        energy = engine.energy(state)
        torch.stack([energy.lagrangian, energy.residual_squared, engine.dual_optimality(state)]).tolist()

    return step


def clock(step: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, hidden: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One data set and width, in a process of its own so that its peak memory is its own."""
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    data = datasets.load(name)
    held = 0 if device.type == "cuda" else peak_bytes(device)
    problem = graph_problem(
        data,
        hidden=(hidden,),
        activation="relu",
        rows=arguments.rows,
        loss=get_loss("cross_entropy"),
        validation=None,
        prox="auto",
        dtype=torch.float32,
        device=device,
    )
    params = problem.chain.initial_parameters(
        torch.Generator().manual_seed(0), 0.2, dtype=torch.float32, device=device
    )
    weights = [p["W"].clone() for p in params]
    step = iteration(problem, params, arguments.solver)
    for _ in range(3):
        clock(step, device)
    memory = peak_bytes(device) - held
    epoch = adam_epoch(problem, weights)
    for _ in range(3):
        clock(epoch, device)
    ours, theirs = [], []
    for _ in range(arguments.repeats):  # in turn, so that other work on the machine meets both alike
        ours.append(clock(step, device))
        theirs.append(clock(epoch, device))
    admm, adam = statistics.median(ours), statistics.median(theirs)
    return {
        "dataset": name,
        "hidden": hidden,
        "rows": arguments.rows,
        "iteration_seconds": admm,
        "adam_epoch_seconds": adam,
        "ratio": admm / adam,
        "memory_bytes": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--hidden", nargs="+", type=int, default=[16, 256])
    parser.add_argument("--rows", choices=["all", "train"], default="all")
    parser.add_argument("--solver", choices=["exact", "quadratic"], default="exact", help="of the last W")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    results = []
    header = f"{'data set':18} {'hidden':>6} {'iteration':>11} {'Adam epoch':>11} {'ratio':>6} {'memory':>10}"
    print(header, file=sys.stderr)
    for name in arguments.datasets:
        for hidden in arguments.hidden:
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                row = pool.apply(measure, (name, hidden, arguments))
            results.append(row)
            print(
                f"{name:18} {hidden:6d} {1e3 * row['iteration_seconds']:8.2f} ms "
                f"{1e3 * row['adam_epoch_seconds']:8.2f} ms {row['ratio']:6.2f} {row['memory_bytes'] / 1e6:7.0f} MB",
                file=sys.stderr,
                flush=True,
            )
    where = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor()
    json.dump(
        {
            "command": f"python benchmarks/gcn.py {' '.join(sys.argv[1:])}".strip(),
            "device": where or platform.machine(),
            "threads": arguments.threads,
            "torch": torch.__version__,
            "results": results,
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    main()
