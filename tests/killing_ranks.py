"""Kill a rank of a torchrun run again and again, at random moments: ``python tests/killing_ranks.py 20``.

torchrun starts all ranks anew each time, and they go on from the last checkpoint. The run that at last comes to its end
must be bit-equal to one that was never touched. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from dladmm import load_model
from dladmm.training.checkpoint import checkpoints, iteration_of

RANKS = 2


def command(out, npz, max_iter, restarts):
    return [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={RANKS}",
            "--monitor-interval=0.1",
        ),
        *(f"--max-restarts={restarts}", "--standalone", "-m", "--", "dladmm", "train", "mlp"),
        *("--npz", str(npz), "--mode", "convergent", "--nu", "1"),  # "--": torchrun has a --numa-binding
        *("--hidden", "6", "--max-iter", str(max_iter), "--dtype", "float64", "--out", str(out)),
        *("--checkpoint-every", "1", "--timeout", "20", "--json"),
    ]


def started(out, npz, max_iter, restarts=0, more=()):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*command(out, npz, max_iter, restarts), *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(process):
    """The processes that torchrun started."""
    try:
        return [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def data(folder):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 75)
    x = rng.normal(size=(75, 5)) + np.eye(3, 5)[y]
    np.savez(folder / "data.npz", x=x, y=y)
    return folder / "data.npz"


def reached(out):
    found = checkpoints(out / "checkpoints")
    return iteration_of(found[0]) if found else -1


def main(kills, seed, max_iter):
    random.seed(seed)
    killed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        npz = data(folder)
        whole, broken = folder / "whole", folder / "broken"
        said = started(whole, npz, max_iter).communicate(timeout=600)
        process = started(broken, npz, max_iter, restarts=kills)
        while len(killed) < kills and process.poll() is None:
            before = reached(broken)
            # Until this life has made its first step
            while reached(broken) <= before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(random.uniform(0.0, 0.4))
            alive = ranks_of(process)
            if not alive:
                continue
            victim = random.choice(alive)
            os.kill(victim, signal.SIGKILL)
            killed.append(reached(broken))
            while victim in ranks_of(process) and process.poll() is None:
                time.sleep(0.02)
        stdout, stderr = process.communicate(timeout=600)
        if process.returncode != 0:
            raise SystemExit(f"the run did not come to its end:\n{stderr[:6000]}\n{said[1][-500:]}")
        one, other = (load_model(run / "model.safetensors") for run in (whole, broken))
        pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
        equal = all(torch.equal(a, b) for a, b in pairs)
        equal &= one.history["lagrangian"] == other.history["lagrangian"]
        metrics = json.loads(stdout.strip().splitlines()[-1])
    return {
        "killed": len(killed),
        "iterations_reached_when_killed": killed,
        "iterations": metrics["iterations"],
        "equal": equal,
    }


if __name__ == "__main__":
    kills = int(sys.argv[1])
    print(json.dumps(main(kills, int(sys.argv[2]) if len(sys.argv) > 2 else 0, 40 + 20 * kills)))
