"""An iteration on one to four processes of this machine beside the cost model, and the model on larger machines.

    python benchmarks/scaling.py --out docs/results/scaling-cpu.json      # measures, then writes the tables of the page
    python benchmarks/scaling.py --page docs/results/scaling-cpu.json     # writes them again from the figures there are

Processes are real (gloo); each of them has one thread. The model is ``compute + calls * latency + bytes / bandwidth``
(docs/scaling.md): bytes and calls are counted where they are handed over and compared with the formula of
``benchmarks.traffic_model``, latency and bandwidth are those of single reductions, compute is that of one process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded
from traffic_model import iteration_traffic

from dladmm import datasets, mlp, train, train_graph
from dladmm.callbacks.traffic_log import TrafficLog
from dladmm.compute.partition import Partition, parts_of
from dladmm.distributed import ALONE, Group, Traffic
from dladmm.engine.options import make_options
from dladmm.network.graph import normalised_adjacency
from dladmm.training.run_folder import describe

WIDTHS, SAMPLES, ITERATIONS = (200, 300, 300, 10), 6_000, 6
MODES: dict[str, dict[str, Any]] = {
    "quadratic": {"mode": "convergent", "w_solver": "quadratic", "a_solver": "quadratic"},
    "exact": {"mode": "convergent"},
}
GRAPH, HIDDEN = "cora", 32
PAGE = Path(__file__).resolve().parents[1] / "docs" / "scaling.md"

# On paper --------------------------------------------------------------------------------------------------------

FLOPS = 51e12
"""Float32 products a second of one H200 without TF32, as NUMERICS has measured it."""

NETWORKS: dict[str, tuple[float, float]] = {"8 GPUs": (3e11, 2e-5), "1,024 GPUs": (4e10, 1e-4)}
"""Bytes a second and seconds a call of an all-reduce: assumed, as vendors state them (NVLink; 400 Gb/s a GPU)."""

PAPER_WIDTHS = (784, 1000, 1000, 10)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--worlds", default="1,2,3,4")
    parser.add_argument("--out", type=Path, help="where the JSON goes; the page's tables are written from it")
    parser.add_argument("--page", type=Path, help="write the page's tables from this JSON, measuring nothing")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.page:
        write_page(json.loads(args.page.read_text(encoding="utf-8")))
        return
    load = os.getloadavg()[0]
    report = measured([int(world) for world in args.worlds.split(",")], args.samples, args.iterations)
    report |= {"load_before": load, "on_paper": on_paper(), "graph_on_paper": graph_on_paper()}
    report = rounded(report, 4)
    if args.out:
        args.out.write_text(dumps(report) + "\n", encoding="utf-8")
        write_page(report)
    print(json.dumps(report) if args.json else "\n\n".join(tables(report).values()))


# Measuring -------------------------------------------------------------------------------------------------------


def measured(worlds: list[int], samples: int, iterations: int) -> dict[str, Any]:
    networks, runs, graphs = [], [], []
    for world in worlds:
        answers = on_ranks(world, samples, iterations)
        networks.append({"ranks": world} | answers["network"])
        runs += [{"mode": mode, "ranks": world} | run for mode, run in answers["runs"].items()]
        graphs.append({"ranks": world} | answers["graph"])
    add_model(runs, networks)
    return {
        "machine": describe(),
        "widths": list(WIDTHS),
        "samples": samples,
        "iterations": iterations,
        "network": networks,
        "runs": runs,
        "graph": graphs,
    }


def on_ranks(world: int, samples: int, iterations: int) -> dict[str, Any]:
    """What rank 0 of so many processes saw."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe(duplex=False)
        settings = (world, samples, iterations, folder, theirs)
        processes = [context.Process(target=work, args=(rank, *settings)) for rank in range(world)]
        for process in processes:
            process.start()
        theirs.close()
        answers: dict[str, Any] = ours.recv()
        for process in processes:
            process.join()
    return answers


def work(rank: int, world: int, samples: int, iterations: int, folder: str, pipe: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wait, place = timedelta(seconds=300), f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world, timeout=wait)
    comm = Group() if world > 1 else ALONE
    answers = {
        "network": {} if world == 1 else network(comm),
        "runs": {mode: run(comm, mode, samples, iterations) for mode in MODES},
        "graph": graph(comm, iterations),
    }
    if rank == 0:
        pipe.send(answers)
    dist.barrier()
    dist.destroy_process_group()


def network(comm: Any) -> dict[str, float]:
    """Seconds of a reduction of one number, and bytes a second of one of 4 MB."""

    def seconds(n: int, repeats: int) -> float:
        found = []
        for _ in range(repeats):
            numbers = torch.ones(n)
            began = time.perf_counter()
            comm.total(numbers)
            found.append(time.perf_counter() - began)
        return median(found)

    latency, large = seconds(2, 300), seconds(1 << 20, 15)
    return {"latency_s": latency, "bytes_a_second": 4 * (1 << 20) / max(large - latency, 1e-9)}


def run(comm: Any, mode: str, samples: int, iterations: int) -> dict[str, Any]:
    """The fastest iteration after the first: others share this machine."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, WIDTHS[-1], samples)
    X = rng.normal(size=(samples, WIDTHS[0])).astype(np.float32) + 0.1 * y[:, None]
    chain, log = mlp(WIDTHS), TrafficLog()
    settings = MODES[mode] | {"diagnostics_every": 10_000, "eps_abs": 0.0, "eps_rel": 0.0}
    result = train(
        chain, X.astype(np.float32), y, max_iter=iterations, callbacks=[log], communicator=comm, **settings
    )
    seconds = np.diff([0.0, *(s or 0.0 for s in result.history["seconds"])])
    options = make_options(max_iter=iterations, **settings)
    formula = iteration_traffic(chain, options, options.penalty("auto"), samples, torch.float32)
    ordinary = log.iterations[1:-1] if comm.size > 1 else [Traffic()]
    return {
        "seconds": float(min(seconds[1:])),
        "calls": ordinary[0].calls,
        "bytes": ordinary[0].bytes,
        "calls_formula": formula.calls,
        "bytes_formula": formula.bytes,
        "seconds_in_calls": median(t.seconds for t in ordinary),
    }


def graph(comm: Any, iterations: int) -> dict[str, Any]:
    """A GCN on a graph: quality of the partition and bytes of boundary rows, beside 8 exchanges a hidden layer."""
    data = _graph()
    log = TrafficLog()
    result = train_graph(
        data, hidden=(HIDDEN,), max_iter=iterations, callbacks=[log], communicator=comm,
        mode="convergent", w_solver="quadratic", diagnostics_every=10_000, eps_abs=0.0, eps_rel=0.0,
    )  # fmt: skip
    seconds = np.diff([0.0, *(s or 0.0 for s in result.history["seconds"])])
    matrix = normalised_adjacency(data.edge_index, data.n_nodes)
    owner, method = parts_of(matrix, comm.size)
    found = Partition.of(matrix, owner, comm.size, method)
    sent = 0
    if comm.size > 1:
        entries = matrix.tocoo()
        row, column = entries.coords
        apart = (owner[row] != owner[column]) & (owner[column] == comm.rank)
        sent = len(np.unique(np.stack([owner[row][apart], column[apart]]), axis=1).T)
    width = min(HIDDEN, data.n_classes)
    return {
        "name": data.name,
        "nodes": data.n_nodes,
        "edges": found.edges,
        "cut": found.cut,
        "halo": list(found.halo),
        "exchanged": log.iterations[2].exchanged if comm.size > 1 else 0,
        "exchanged_formula": 4 * width * (4 * sent + 4 * found.halo[comm.rank]) if comm.size > 1 else 0,
        "seconds": float(min(seconds[1:])),
    }


def _graph() -> Any:
    try:
        return datasets.load(GRAPH)  # type: ignore[call-overload]
    except Exception:
        return datasets.load("sbm")


def add_model(runs: list[dict[str, Any]], networks: list[dict[str, Any]]) -> None:
    """What the model says of every run: compute as of one process, shared by as many cores as there are."""
    cores = os.cpu_count() or 1
    alone = {entry["mode"]: entry["seconds"] for entry in runs if entry["ranks"] == 1}
    for entry in runs:
        world = entry["ranks"]
        told = 0.0
        if world > 1:
            link = next(link for link in networks if link["ranks"] == world)
            told = entry["calls"] * link["latency_s"] + entry["bytes"] / link["bytes_a_second"]
        entry["model_compute_s"] = alone.get(entry["mode"], float("nan")) / min(world, cores)
        entry["model_told_s"] = told
        entry["model_s"] = entry["model_compute_s"] + told


# On larger machines ------------------------------------------------------------------------------------------------


def on_paper() -> list[dict[str, Any]]:
    """784-1000-1000-10, quadratic and exact, on 8 and on 1,024 GPUs: where telling takes as long as computing."""
    chain = mlp(PAPER_WIDTHS)
    found = []
    for name, (bandwidth, latency) in NETWORKS.items():
        ranks = int(name.split()[0].replace(",", ""))
        for mode, settings in MODES.items():
            options = make_options(**settings)
            told = iteration_traffic(chain, options, options.penalty("auto"), 10**9, torch.float32)
            telling = told.calls * latency + 2 * (ranks - 1) / ranks * told.bytes / bandwidth
            flops = flops_a_sample(mode)
            for samples in (60_000, 10**9):
                compute = samples / ranks * flops / FLOPS
                found.append(
                    {
                        "machine": name,
                        "mode": mode,
                        "samples": samples,
                        "calls": told.calls,
                        "bytes": told.bytes,
                        "compute_s": compute,
                        "told_s": telling,
                        "efficiency": compute / (compute + telling),
                        "samples_a_gpu_at_half": telling * FLOPS / flops,
                        "gb_a_gpu": gigabytes(samples / ranks),
                    }
                )
    return found


def flops_a_sample(mode: str) -> float:
    """Operations of an iteration for one sample: products counted as tests/compute/test_products.py counts them."""
    pairs = list(pairwise(PAPER_WIDTHS))
    first = 2 * 2 * pairs[0][0] * pairs[0][1]
    total = float(first)
    for n_in, n_out in pairs[1:]:
        total += 2 * 8 * n_in * n_out
        if mode == "exact":  # the Gram matrix, and the inverse applied twice where it is not the narrow one
            total += 2 * n_in * n_in + (2 * 2 * n_in * n_in if n_out >= n_in else 0)
    return total


def gigabytes(rows: float) -> float:
    """Variables, predictions, u, targets and X in float32 (docs/memory.md)."""
    links = 2 * (2 * sum(PAPER_WIDTHS[1:-1]) + PAPER_WIDTHS[-1])
    return rows * 4 * (links + 2 * PAPER_WIDTHS[-1] + PAPER_WIDTHS[0]) / 1e9


def graph_on_paper() -> list[dict[str, Any]]:
    """A graph of 10^9 edges and 5 * 10^7 nodes, 128 features, 128 hidden, 40 classes."""
    nodes, edges, features, hidden, classes, size = 5e7, 1e9, 128, 128, 40, 4
    found = []
    for name, (bandwidth, latency) in NETWORKS.items():
        ranks = int(name.split()[0].replace(",", ""))
        for cut in (0.05, 0.3):
            halo = min(2 * cut * edges / ranks, nodes * (ranks - 1) / ranks)
            exchanged = 8 * halo * min(hidden, classes) * size
            sparse_reads = 8 * (2 * edges + nodes) / ranks * min(hidden, classes) * size
            compute = sparse_reads / 2e12  # bound by memory: 2 TB/s of the device's 4.8 for gathered rows
            told = exchanged / bandwidth + 8 * latency
            rows = nodes / ranks * (features + 4 * hidden + 4 * classes) + halo * min(hidden, classes)
            found.append(
                {
                    "machine": name,
                    "cut": cut,
                    "halo_rows": halo,
                    "own_rows": nodes / ranks,
                    "exchanged_bytes": exchanged,
                    "compute_s": compute,
                    "told_s": told,
                    "gb_a_gpu": (rows * size + (2 * edges + nodes) / ranks * 8) / 1e9,
                }
            )
    return found


# The page --------------------------------------------------------------------------------------------------------


def tables(report: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/scaling.md by name."""
    return {
        "network": _table(
            ["ranks", "a reduction of 8 bytes", "a reduction of 4 MB"],
            [
                [n["ranks"], f"{1e3 * n['latency_s']:.3f} ms", f"{n['bytes_a_second'] / 1e6:,.0f} MB/s"]
                for n in report["network"]
                if "latency_s" in n
            ],
        ),
        "runs": _table(
            ["mode", "ranks", "calls", "(formula)", "bytes", "(formula)", "s in calls", "s measured", "s model"],
            [
                [
                    r["mode"], r["ranks"], r["calls"], r["calls_formula"] if r["ranks"] > 1 else 0,
                    f"{r['bytes']:,}", f"{r['bytes_formula']:,}" if r["ranks"] > 1 else 0,
                    f"{r['seconds_in_calls']:.3f}", f"{r['seconds']:.3f}", f"{r['model_s']:.3f}",
                ]
                for r in report["runs"]
            ],
        ),
        "graph": _table(
            ["ranks", "edges cut", "halo rows", "bytes exchanged by rank 0", "(formula)", "s measured"],
            [
                [
                    g["ranks"], f"{g['cut']:,} of {g['edges']:,}", ", ".join(map(str, g["halo"])),
                    f"{g['exchanged']:,}", f"{g['exchanged_formula']:,}", f"{g['seconds']:.3f}",
                ]
                for g in report["graph"]
            ],
        ),
        "paper": _table(
            ["", "mode", "samples", "GB a GPU", "MB told", "calls", "compute", "telling", "efficiency"],
            [
                [
                    p["machine"], p["mode"], f"{p['samples']:.0e}", f"{p['gb_a_gpu']:,.3g}",
                    f"{p['bytes'] / 1e6:.1f}", p["calls"], f"{1e3 * p['compute_s']:,.3g} ms",
                    f"{1e3 * p['told_s']:.3g} ms", f"{100 * p['efficiency']:.3g} %",
                ]
                for p in report["on_paper"]
            ],
        ),
        "half": _table(
            ["", "mode", "samples a GPU at which telling takes as long as computing"],
            [
                [p["machine"], p["mode"], f"{p['samples_a_gpu_at_half']:,.0f}"]
                for p in report["on_paper"]
                if p["samples"] == 10**9
            ],
        ),
        "graph_paper": _table(
            ["", "edges cut", "own rows", "halo rows", "GB a GPU", "GB exchanged", "compute", "telling"],
            [
                [
                    p["machine"], f"{100 * p['cut']:.0f} %", f"{p['own_rows']:,.3g}", f"{p['halo_rows']:,.3g}",
                    f"{p['gb_a_gpu']:,.3g}", f"{p['exchanged_bytes'] / 1e9:.3g}",
                    f"{1e3 * p['compute_s']:,.3g} ms", f"{1e3 * p['told_s']:,.3g} ms",
                ]
                for p in report["graph_on_paper"]
            ],
        ),
    }  # fmt: skip


def _table(header: list[str], rows: list[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def written(page: str, report: dict[str, Any]) -> str:
    """The page with its tables made anew; each stands between two comments with its name."""
    for name, table in tables(report).items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    return page


def write_page(report: dict[str, Any]) -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")


if __name__ == "__main__":
    main()
