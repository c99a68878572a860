"""Memory of the paper's dlADMM on graphs with features kept sparse, as here, and made dense.

    python benchmarks/gcn_memory.py
    python benchmarks/gcn_memory.py --datasets cora,pubmed --json > docs/results/gcn-memory-dense.json

The settings of src/dladmm/reproduce/configs/gcn-memory.toml, 16 and 256 hidden units. Every cell is a process
of its own; its memory is the features themselves and the peak of the process above what it held when they were
read. On a CPU, so that nothing of a GPU's context is counted. The table goes to standard output; with --json
one JSON object does.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps

from dladmm.datasets import GraphData
from dladmm.report.tables import print_table
from dladmm.reproduce import experiment
from dladmm.runs.memory import peak_bytes, start_peak
from dladmm.runs.plan import Cell, cells
from dladmm.runs.problem import Problem
from dladmm.runs.running import Session, train

FEATURES = ("sparse", "dense")


def feature_bytes(data: GraphData) -> int:
    """Of values, and of the indices of sparse ones."""
    x = data.x
    if isinstance(x, torch.Tensor):
        return x.numel() * x.element_size()
    return int(x.data.nbytes + x.indices.nbytes + x.indptr.nbytes)


def weighed(cell: Cell, features: str, data_dir: str | None) -> dict[str, Any]:
    """One run of the paper's settings: bytes of its features, and what it needed besides."""
    torch.set_num_threads(1)
    session = Session(Path(), "cpu", data_dir)
    problem = session.problem(cell)
    data = problem.data
    assert isinstance(data, GraphData)
    if features == "dense":
        data = replace(data, x=data.x_dense())
    session = replace(session, load=lambda _: Problem(cell.network, data), problems={})
    held = start_peak("cpu")
    train(replace(cell, diagnostics_every=cell.max_iter), session, [])
    return {
        "dataset": cell.dataset,
        "hidden": cell.hidden[0],
        "features": features,
        "feature_bytes": feature_bytes(data),
        "run_bytes": peak_bytes("cpu") - held,
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--datasets", default="cora,citeseer,pubmed,coauthor_cs,coauthor_physics")
    made.add_argument("--iterations", type=int, default=1, help="the peak is that of the first")
    made.add_argument("--data-dir", help="folder of the data sets")
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    names, found = given.datasets.split(","), []
    for cell in cells(experiment("gcn-memory"), "cpu"):
        for features in FEATURES:
            if cell.dataset not in names:
                continue
            short = replace(cell, max_iter=given.iterations)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found.append(pool.submit(weighed, short, features, given.data_dir).result())
            print(found[-1], file=sys.stderr, flush=True)
    if given.json:
        print(dumps({"command": "python benchmarks/gcn_memory.py --json", "results": found}))
        return 0
    rows = [
        [
            f["dataset"],
            str(f["hidden"]),
            f["features"],
            *(f"{f[key] / 1e6:.0f} MB" for key in ("feature_bytes", "run_bytes")),
        ]
        for f in found
    ]
    print_table("Memory", ["data set", "hidden", "features", "of features", "of the run"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
