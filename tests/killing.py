"""Kill a training run again and again, at random moments, and see what is left: ``python tests/killing.py 200``.

Each round forks a process that goes on with the run, checkpointing after every iteration, and ends it by SIGKILL.
After each kill the folder must have a loadable checkpoint; the run that at last comes to its end must be bit-equal to
one that was never touched. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from convergent import train
from dladmm import mlp
from dladmm.callbacks import Checkpoint
from dladmm.training.checkpoint import iteration_of, latest

SHORTEST, LONGEST = 40, 400


def iterations(kills):
    """Few kills need no long run, and many should meet it at every stage."""
    return min(max(SHORTEST, 12 * kills), LONGEST)


def run(callbacks, max_iter):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    X = rng.normal(size=(60, 5)) + np.eye(3, 5)[y]
    settings = {"max_iter": max_iter, "eps_abs": 0.0, "eps_rel": 0.0, "diagnostics_every": 1}
    return train(mlp([5, 6, 3]), X, y, validation=(X[:20], y[:20]), callbacks=callbacks, **settings)


def resumed(folder, max_iter):
    return run([Checkpoint(folder, every=1, resume=True)], max_iter)


def child(folder, max_iter):
    """A process that goes on with the run until it is killed or done."""
    pid = os.fork()
    if pid == 0:
        try:
            resumed(folder, max_iter)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def main(kills: int, seed: int) -> dict[str, object]:
    torch.set_num_threads(1)
    random.seed(seed)
    max_iter = iterations(kills)
    killed, lost, reached, leftovers = 0, 0, [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(20 * kills):
            if killed == kills:
                break
            before = latest(folder)
            pid = child(folder, max_iter)
            time.sleep(random.uniform(0.005, 0.12))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSIGNALED(status):
                if os.WEXITSTATUS(status):
                    raise SystemExit("the child failed by itself")
                for path in folder.iterdir():  # the run was done before the signal came: start over
                    path.unlink()
                continue
            killed += 1
            after = latest(folder)
            lost += after is None and before is not None
            reached.append(-1 if after is None else iteration_of(after))
            leftovers += sum(path.suffix == ".tmp" for path in folder.iterdir())
        last, whole = resumed(folder, max_iter), run([], max_iter)
        equal = all(torch.equal(a, b) for a, b in zip(tensors(last), tensors(whole), strict=True))
        equal &= last.history["lagrangian"] == whole.history["lagrangian"]
        remaining = sorted(path.name for path in folder.iterdir())
    return {
        "killed": killed,
        "lost": lost,
        "reached": reached,
        "killed_while_writing": leftovers,
        "equal": equal,
        "remaining": remaining,
    }


def tensors(result):
    state = result.state
    return [*state.W, *state.b, *state.z, *state.a, state.u]


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
