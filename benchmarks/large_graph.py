"""An iteration on a generated graph of the size of OGB's products graph: time and memory, made on the device itself.

    python benchmarks/large_graph.py --device cuda                       # 2.4 million nodes, 1.2 x 10^8 entries of A
    python benchmarks/large_graph.py --nodes 2000 --degree 10 --hidden 16

Nodes have classes, features that show them and ``degree`` neighbours in the mean, more often of their own class; a
tenth is labelled. The graph is drawn, sorted and normalised by torch where it will be used, because scipy would take
minutes; what is timed is an iteration of the library's own trainer. Memory is the most that torch held during the
iterations, graph and features included.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gcn import MODES
from mlp import NEVER, Contender, synchronize

from dladmm.api.train import fresh_parameters
from dladmm.compute.sparse import SparseMatrix
from dladmm.engine.options import make_options
from dladmm.losses import Risk, get_loss
from dladmm.network.graph_chain import gcn
from dladmm.training.run_folder import describe
from dladmm.training.trainer import Trainer


def drawn_graph(nodes: int, degree: float, classes: int, device: torch.device) -> tuple[SparseMatrix, Tensor]:
    """``A~`` of a block model with as many classes, and the classes of the nodes."""
    generator = torch.Generator(device=device).manual_seed(0)
    labels = torch.arange(nodes, device=device) % classes
    pairs = int(nodes * degree / 2)
    first = torch.randint(nodes, (pairs,), generator=generator, device=device)
    second = torch.randint(nodes, (pairs,), generator=generator, device=device)
    alike = torch.rand(pairs, generator=generator, device=device) < 0.5
    second = torch.where(alike, (second - second % classes + first % classes).clamp_max(nodes - 1), second)
    own = torch.arange(nodes, device=device)
    keys = torch.cat([first * nodes + second, second * nodes + first, own * (nodes + 1)])
    del first, second, alike
    keys = torch.unique(keys)
    rows, columns = keys // nodes, (keys % nodes).int()
    del keys
    degrees = torch.bincount(rows, minlength=nodes)
    scale = degrees.float().rsqrt()
    values = scale[rows] * scale[columns.long()]
    starts = torch.zeros(nodes + 1, dtype=torch.int32, device=device)
    starts[1:] = degrees.cumsum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr = torch.sparse_csr_tensor(starts, columns, values, size=(nodes, nodes), check_invariants=False)
    return SparseMatrix(csr, csr), labels


def iteration(
    mode: str, adjacency: SparseMatrix, x: Tensor, labels: Tensor, settings: argparse.Namespace
) -> Contender:
    """One iteration as the trainer makes it."""
    changes: dict[str, Any] = dict(MODES[mode])
    regularizer = changes.pop("regularizer", "auto")
    options = make_options(max_iter=NEVER, diagnostics_every=NEVER, **({"dropout": 0.0} | changes))
    chain = gcn([x.shape[1], settings.hidden, settings.classes], adjacency, "relu", propagated=True)
    loss = get_loss("cross_entropy")
    weight = (torch.arange(len(x), device=x.device) % 10 == 0).to(x.dtype)[:, None]
    risk = Risk(loss, loss.encode(labels, settings.classes, x.dtype), weight)
    params = fresh_parameters(chain, 0, options.init_scale, options.init_std, x.dtype, x.device)
    trainer = Trainer(chain, x, risk, options, penalty=options.penalty(regularizer), params=params)

    def step() -> None:
        ended = trainer._iterate(trainer.history.n_iter + 1)
        if ended is not None:
            raise RuntimeError(f"{mode} ended with {ended.name} after {trainer.history.n_iter} iterations.")

    return Contender(step)


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(settings.device)
    on_gpu = device.type == "cuda"
    began = time.perf_counter()
    adjacency, labels = drawn_graph(settings.nodes, settings.degree, settings.classes, device)
    generator = torch.Generator(device=device).manual_seed(1)
    centres = torch.randn(settings.classes, settings.features, generator=generator, device=device)
    x = (
        torch.randn(settings.nodes, settings.features, generator=generator, device=device)
        + 0.3 * centres[labels]
    )
    x = adjacency @ x
    synchronize(device)
    found: dict[str, Any] = {
        "entries": int(adjacency.csr.values().numel()),
        "drawing_seconds": time.perf_counter() - began,
        "modes": {},
    }
    for mode in settings.modes:
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        contender = iteration(mode, adjacency, x, labels, settings)
        for _ in range(settings.warmup):
            contender.step()
        for _ in range(settings.iterations):
            contender.time(device)
        memory = torch.cuda.max_memory_allocated() if on_gpu else None
        found["modes"][mode] = {"iteration_seconds": contender.median, "memory_bytes": memory}
        del contender
        gc.collect()  # a trainer and its callbacks hold one another
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--degree", type=float, default=50.0)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--classes", type=int, default=47)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["certified", "accelerated"])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    found = measure(settings)
    people = sys.stderr if settings.json else sys.stdout
    print(
        f"{settings.nodes:,} nodes, {found['entries']:,} entries, {settings.features}-{settings.hidden}-"
        f"{settings.classes}; drawn in {found['drawing_seconds']:.1f} s",
        file=people,
    )
    for mode, of in found["modes"].items():
        memory = "" if of["memory_bytes"] is None else f", {of['memory_bytes'] / 1e9:.1f} GB"
        print(f"{mode:12} {1e3 * of['iteration_seconds']:9.1f} ms{memory}", file=people)
    if settings.json:
        given = sys.argv[1:] if arguments is None else list(arguments)
        report = {
            "command": f"python benchmarks/large_graph.py {' '.join(given)}".strip(),
            "machine": describe(settings.device),
            "settings": vars(settings),
        }
        print(json.dumps(report | found, indent=1))


if __name__ == "__main__":
    main()
