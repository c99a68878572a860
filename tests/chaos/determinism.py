"""The same seed twice, and a run that was broken off and taken up again: equal bit for bit on a CPU."""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from chaos.ledger import Ledger, require
from chaos.problems import Problem, draw, solve
from dladmm import Callback, Result
from dladmm.callbacks import Checkpoint
from dladmm.training.trainer import Trainer

SECONDS = 60.0


class BreakOff(Callback):
    """Ends a run as Ctrl-C does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_epoch_end(self, trainer: Trainer) -> None:
        if trainer.history.n_iter == self.at:
            raise KeyboardInterrupt


def parts(result: Result) -> dict[str, torch.Tensor]:
    state = result.state
    held = {f"output {l}": tensor for l, tensor in enumerate(state.outputs)}
    held |= {f"{name} {l}": p for l, block in enumerate(state.params) for name, p in block.items()}
    return held | {"u": state.u} | dict(result.module.state_dict())


def require_equal(first: Result, second: Result) -> None:
    """Bit for bit: tensors, history (but for the clock), status and certificate."""
    one, two = parts(first), parts(second)
    require(one.keys() == two.keys(), "other tensors")
    for name in one:
        require(torch.equal(one[name], two[name]), f"{name} differs")
    for column in first.history:
        same = first.history[column] == second.history[column]
        require(same or column == "seconds", f"the history's {column} differs")
    require(first.status is second.status, f"{first.status.name} and {second.status.name}")
    require(first.certificate == second.certificate, "the certificates differ")


def quiet(problem: Problem, **more: Any) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solve(problem, **more)


def run(ledger: Ledger, count: int, seed: int) -> None:
    for number in range(count):
        problem = draw(7_000_000 + 1000 * seed + number)
        stop = random.Random(f"{seed} {number}").randrange(1, problem["max_iter"])
        with ledger.attempt(f"{problem}", SECONDS):
            whole = quiet(problem)
            require_equal(whole, quiet(problem))
            if whole.history.n_iter <= stop:
                ledger.count("ended before the break")
                continue
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                quiet(problem, callbacks=[Checkpoint(folder, every=3), BreakOff(stop)])
                resumed = quiet(problem, callbacks=[Checkpoint(folder, every=3, resume=True)])
            require_equal(whole, resumed)
            ledger.count("resumed")
