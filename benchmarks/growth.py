"""How the time of an iteration grows: with samples and width of an MLP, and with the edges of a graph.

    python benchmarks/growth.py --device cuda --json > growth.json      # 5,000 to 60,000 samples, width 1000
    python benchmarks/growth.py --samples 5000,10000,20000 --width 200 --widths 100,200,400,800
    python benchmarks/growth.py --axes edges --nodes 10000,30000,100000 --threads 1 --cpu-time
    python benchmarks/growth.py --axes width --mlp-modes quadratic taylor --width-samples 200 --widths 500,1000,2000

- *samples*: an MLP with two hidden layers of --width units, convergent mode with quadratic steps and with
  exact solves, and accelerated mode;
- *width*: the same with --width-samples samples and two hidden layers of each of --widths units; with --mlp-modes
  also *taylor*, the ADMM of Taylor et al., which solves systems as large as a layer is wide (O(n^3), where dlADMM
  has products alone, O(n^2)): the growth shows where layers are wider than there are samples;
- *edges*: a GCN on stochastic block model graphs whose nodes all have the same mean degree, so that edges and
  nodes grow together: the paper's settings (quadratic steps), whose loop from alpha0 = t0 = 1 tries more
  steps the more nodes there are, certified mode (gcn.py), whose loop starts at the curvature, and with
  --graph-modes accelerated mode. Beside them the bare sparse product A~ Z, alone: its gathers leave a CPU's
  caches as the graph grows, so it shows how far the machine itself is from linear.

All sizes and modes of an axis are timed in turn, so that other work on the machine meets all alike (with
--one-at-a-time size after size, which takes less memory); times are medians, warm and synchronised. An
iteration is what the trainer does: a sweep and its measurements. In accelerated mode an iteration may be
tried again; where there were iterations with one attempt, the median is theirs. Every exponent is the slope
of log time over log size by least squares, over all sizes and (at the top) between the two largest, where a
fixed cost a step hides least; beside it the exponent of the lowest times, which other work on the machine
disturbs less. The data are generated with a fixed seed. The table goes to standard output; with --json it
goes to standard error and one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded
from gcn import graph_iteration
from mlp import NEVER, Contender, library, random_data, synchronize, whole_numbers

from dladmm import mlp
from dladmm.api.arguments import fresh_parameters
from dladmm.baselines.taylor import BETA, RHO, taylor_method
from dladmm.compute.recording import WARM_CALLS
from dladmm.datasets.generated import sbm
from dladmm.engine.options import make_options
from dladmm.losses import Risk, get_loss
from dladmm.reproduce.fits import growth
from dladmm.solvers.step_along import StepAlong
from dladmm.training.run_folder import describe
from dladmm.training.trainer import Trainer

AXES = ("samples", "width", "edges")
MLP_MODES = ("quadratic", "exact", "accelerated", "taylor")
GRAPH_MODES: dict[str, dict[str, Any]] = {"paper": {"rho": 1e-3}, "certified": {}, "accelerated": {}}
BARE = "bare product"
NODES = {"cpu": [10_000, 20_000, 50_000, 100_000], "cuda": [10_000, 30_000, 100_000, 300_000, 1_000_000]}


class Size(NamedTuple):
    """One size on one axis: what is timed there, by mode, and what its rows say besides."""

    axis: str
    size: int
    contenders: dict[str, Contender]
    about: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "axis": self.axis,
                "mode": mode,
                "size": self.size,
                "seconds": contender.median_like_recorded or contender.median,
                "lowest_seconds": min(contender.seconds),
                "attempts": contender.attempts,
            }
            | self.about
            | ({"trials": trials(contender)} if self.axis == "edges" and mode != BARE else {})
            for mode, contender in self.contenders.items()
        ]


def timed(sizes: list[Size], settings: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of these sizes: all modes of all of them in turn, after calls that warm each."""
    device = torch.device(settings.device)
    warm = max(settings.warmup, WARM_CALLS + 2 if settings.compile else 0)
    contenders = [contender for size in sizes for contender in size.contenders.values()]
    for contender in contenders:
        for _ in range(warm):
            contender.step()
    synchronize(device)
    for _ in range(settings.iterations):
        for contender in contenders:
            contender.time(device, time.process_time if settings.cpu_time else time.perf_counter)
    return [row for size in sizes for row in size.rows()]


def mlp_size(axis: str, samples: int, width: int, settings: argparse.Namespace) -> Size:
    sizes = [settings.inputs, width, width, settings.classes]
    shape = argparse.Namespace(**vars(settings) | {"samples": samples})
    x, y = random_data(shape, torch.float32, torch.device(settings.device))
    contenders = {
        mode: taylor(sizes, x, y, settings.seed)
        if mode == "taylor"
        else library(mode, sizes, x, y, settings.seed, compile=settings.compile or "auto")
        for mode in settings.mlp_modes
    }
    about = {"samples": samples, "width": width}
    return Size(axis, about[axis], contenders, about)


def taylor(sizes: list[int], x: torch.Tensor, y: torch.Tensor, seed: int) -> Contender:
    """One iteration of the ADMM of Taylor et al., whose least squares solve systems as large as a layer is wide."""
    options = make_options("default", rho=RHO, nu=BETA, max_iter=NEVER, diagnostics_every=NEVER)
    chain, loss = mlp(sizes), get_loss("cross_entropy")
    trainer = Trainer(
        chain,
        x,
        Risk(loss, loss.encode(y, sizes[-1], x.dtype)),
        options,
        penalty=options.penalty("auto"),
        params=fresh_parameters(chain, seed, 1.0, None, x.dtype, x.device),
        method=taylor_method(seed),
        seed=seed,
    )
    return Contender(lambda: trainer._iterate(trainer.history.n_iter + 1) and None)


def graph_size(nodes: int, settings: argparse.Namespace) -> Size:
    began = time.perf_counter()
    data = sbm(n_nodes=nodes, degree=settings.degree, n_features=settings.features, seed=settings.seed)
    generating = time.perf_counter() - began
    made = {
        mode: graph_iteration(
            mode,
            data,
            settings.hidden,
            torch.device(settings.device),
            compile=settings.compile or "auto",
            **options,
        )
        for mode, options in GRAPH_MODES.items()
        if mode in settings.graph_modes
    }
    contenders = {mode: contender for mode, (contender, _, _) in made.items()}
    adjacency = made[settings.graph_modes[0]][1].chain.blocks[-1].graph.adjacency
    entries = torch.ones(nodes, settings.hidden, device=settings.device)

    def product() -> None:
        adjacency @ entries

    contenders[BARE] = Contender(product)
    edges = data.edge_index.shape[1] // 2
    return Size("edges", edges, contenders, {"nodes": nodes, "generating_seconds": generating})


def trials(contender: Contender) -> int:
    """How many steps the backtracking of graph layers tries in one more iteration."""
    tried, rise = 0, StepAlong.rise

    def counted(self: StepAlong, step: float) -> float:
        nonlocal tried
        tried += 1
        return rise(self, step)

    StepAlong.rise = counted  # type: ignore[method-assign]
    try:
        contender.step()
    finally:
        StepAlong.rise = rise  # type: ignore[method-assign]
    return tried


def fitted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An exponent for every axis and mode that has two sizes or more, from the seconds of its rows."""
    found = []
    for axis, mode in dict.fromkeys((row["axis"], row["mode"]) for row in rows):
        of_it = [row for row in rows if (row["axis"], row["mode"]) == (axis, mode)]
        if len({row["size"] for row in of_it}) < 2:
            continue
        sizes = [row["size"] for row in of_it]
        fit, lowest = (growth(sizes, [[row[key] for row in of_it]]) for key in ("seconds", "lowest_seconds"))
        found.append(
            {
                "axis": axis,
                "mode": mode,
                "exponent": fit.exponent,
                "error": fit.error,
                "top": fit.top,
                "r2": fit.r2,
                "of_lowest": lowest.exponent,
            }
        )
    return found


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    makers: dict[str, list[Callable[[], Size]]] = {
        "samples": [partial(mlp_size, "samples", n, settings.width, settings) for n in settings.samples],
        "width": [partial(mlp_size, "width", settings.width_samples, w, settings) for w in settings.widths],
        "edges": [partial(graph_size, n, settings) for n in settings.nodes],
    }
    rows: list[dict[str, Any]] = []
    for axis in settings.axes:
        groups = [[make] for make in makers[axis]] if settings.one_at_a_time else [makers[axis]]
        for group in groups:
            new = timed([make() for make in group], settings)
            gc.collect()  # a trainer's parts refer to each other
            if settings.device.startswith("cuda"):
                torch.cuda.empty_cache()
            rows += new
            for row in new:
                shown = f"{axis} {row['size']:,}, {row['mode']}: {1e3 * row['seconds']:.2f} ms"
                print(shown, file=sys.stderr, flush=True)
    rows = rounded(rows)  # the exponents are those of the figures that are printed
    return {
        "command": settings.command,
        "machine": describe(settings.device),
        "settings": {key: value for key, value in vars(settings).items() if key != "command"},
        "exponents": rounded(fitted(rows)),
        "rows": rows,
    }


def table(report: dict[str, Any]) -> str:
    """The report for people: a block for each axis, with a column for each mode."""
    settings, where = report["settings"], report["machine"]
    lines = [
        f"{where['device']}, {where['threads']} threads, {where['cpu']}, torch {where['torch']}; "
        f"medians of {settings['iterations']}, milliseconds an iteration"
    ]
    about = {
        "samples": f"{settings['inputs']}-{settings['width']}-{settings['width']}-{settings['classes']}",
        "width": f"two hidden layers, {settings['width_samples']:,} samples",
        "edges": f"block model graphs, mean degree {settings['degree']:g}, {settings['hidden']} hidden units",
    }
    for axis in AXES:
        rows = [row for row in report["rows"] if row["axis"] == axis]
        if not rows:
            continue
        modes = list(dict.fromkeys(row["mode"] for row in rows))
        lines += ["", f"{axis}: {about[axis]}", f"{'':16}" + "".join(f"{mode:>14}" for mode in modes)]
        for size in dict.fromkeys(row["size"] for row in rows):
            seconds = {row["mode"]: row["seconds"] for row in rows if row["size"] == size}
            lines.append(f"{size:>16,}" + "".join(f"{1e3 * seconds[mode]:14.2f}" for mode in modes))
        fits = {fit["mode"]: fit for fit in report["exponents"] if fit["axis"] == axis}
        if fits:
            for name, key in (
                ("exponent", "exponent"),
                ("standard error", "error"),
                ("at the top", "top"),
                ("of the lowest", "of_lowest"),
            ):
                lines.append(f"{name:>16}" + "".join(f"{fits[mode][key]:14.2f}" for mode in modes))
        if axis == "edges":
            for mode in (mode for mode in modes if mode != BARE):
                counts = ", ".join(str(row["trials"]) for row in rows if row["mode"] == mode)
                lines.append(f"steps tried by the backtracking in one iteration, {mode}: {counts}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--inputs", type=int, default=784)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=whole_numbers, default=[5_000, 10_000, 20_000, 40_000, 60_000])
    parser.add_argument("--width", type=int, default=1000, help="hidden units while samples grow")
    parser.add_argument("--widths", type=whole_numbers, default=[250, 500, 1000, 2000])
    parser.add_argument("--width-samples", type=int, default=20_000, help="samples while the width grows")
    parser.add_argument(
        "--nodes", type=whole_numbers, help="up to 100,000 on a CPU and 1,000,000 on a GPU by default"
    )
    parser.add_argument("--degree", type=float, default=20.0, help="edges are half of it times the nodes")
    parser.add_argument("--features", type=int, default=128, help="of a node")
    parser.add_argument("--hidden", type=int, default=128, help="hidden units of the GCN")
    parser.add_argument("--mlp-modes", nargs="+", choices=MLP_MODES, default=list(MLP_MODES[:-1]))
    parser.add_argument("--graph-modes", nargs="+", choices=GRAPH_MODES, default=["paper", "certified"])
    parser.add_argument("--iterations", type=int, default=9, help="timed ones")
    parser.add_argument("--warmup", type=int, default=3, help="untimed ones")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="seconds of the processor: other work on the machine counts less",
    )
    parser.add_argument("--one-at-a-time", action="store_true", help="size after size, for less memory")
    parser.add_argument("--compile", action="store_true", help="elementwise work compiled by torch")
    parser.add_argument("--tf32", action="store_true", help="let float32 products on a GPU round to TF32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    if settings.iterations < 1:
        parser.error("--iterations must be at least 1")
    if settings.nodes is None:
        settings.nodes = NODES["cuda" if settings.device.startswith("cuda") else "cpu"]
    given = sys.argv[1:] if arguments is None else arguments
    settings.command = f"python benchmarks/growth.py {' '.join(given)}".strip()
    report = measure(settings)
    print(table(report), file=sys.stderr if settings.json else sys.stdout)
    if settings.json:
        print(dumps(report))


if __name__ == "__main__":
    main()
