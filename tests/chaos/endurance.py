"""A long run with callbacks and checkpoints: memory and file handles must stay where they are."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from chaos.ledger import Ledger, require, surroundings

SETTLED = 0.25
"""Share of the run after which caches, allocators and lazy imports have settled."""
MOST_GROWTH = 0.01
MOST_GROWTH_OF_A_SHORT_RUN = 0.03
"""Of fewer than 1,000 iterations: the allocator gives and takes 1 % between two looks, while one state of this run kept
per iteration would be 5 % after 30 of them."""


def resident() -> int:
    """Bytes in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def measure(iterations: int) -> dict[str, object]:
    """Train on digits in this process, looking at memory and handles again and again."""
    from dladmm import Callback, datasets, mlp, train
    from dladmm.callbacks import Checkpoint, CSVLogger, JSONLinesLogger

    class Watch(Callback):
        def __init__(self) -> None:
            self.memory: list[int] = []
            self.handles: list[int] = []

        def on_epoch_end(self, trainer: object) -> None:
            if trainer.history.n_iter % max(2, iterations // 100) == 0:  # type: ignore[attr-defined]
                gc.collect()
                self.memory.append(resident())
                self.handles.append(handles())

    data, watch = datasets.load("digits"), Watch()
    gc.freeze()  # what was imported is no garbage: a collection that passes over it is quick
    before = handles()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = train(
            mlp([64, 40, 10]), data.x_train, data.y_train, validation=(data.x_test, data.y_test),
            max_iter=iterations, eps_abs=0.0, eps_rel=0.0, device="cpu",
            callbacks=[Checkpoint(folder / "run", every=10), CSVLogger(folder / "log.csv"),
                       JSONLinesLogger(folder / "log.jsonl"), watch],
        )  # fmt: skip
        left = sorted(path.name for path in (folder / "run").iterdir())
    return {
        "iterations": result.history.n_iter,
        "memory": watch.memory,
        "handles": watch.handles,
        "handles_before": before,
        "handles_after": handles(),
        "left": left,
    }


def run(ledger: Ledger, iterations: int, seed: int) -> None:
    """In a process of its own, so that nothing else lives there."""
    command = [sys.executable, "-m", "chaos.endurance", str(iterations)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings())
    with ledger.attempt(f"{iterations} iterations on digits"):
        require(done.returncode == 0, done.stderr[-500:])
        found = json.loads(done.stdout)
        require(found["iterations"] == iterations, f"{found['iterations']} iterations")
        first, *_, last = settled = found["memory"][int(SETTLED * len(found["memory"])) :]
        growth = (max(settled) - first) / first
        ledger.notes |= {
            "iterations": iterations,
            "megabytes when settled": round(first / 1e6, 1),
            "megabytes at the end": round(last / 1e6, 1),
            "largest growth in percent": round(100 * growth, 3),
            "file handles": max(found["handles"]),
        }
        allowed = MOST_GROWTH if iterations >= 1000 else MOST_GROWTH_OF_A_SHORT_RUN
        require(growth <= allowed, f"memory grew by {growth:.2%}")
    with ledger.attempt("file handles during the run"):
        require(len(set(found["handles"])) == 1, f"file handles: {sorted(set(found['handles']))}")
    with ledger.attempt("file handles after the run"):
        require(found["handles_after"] == found["handles_before"], "file handles were left open")
    with ledger.attempt("checkpoints left"):
        expected = [f"checkpoint-{k:06d}.dladmm" for k in (iterations - 10, iterations)]
        require(found["left"] == expected, f"{found['left']}")


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
