"""NaN in the state, at any iteration and in any tensor, and Gram matrices without an inverse: a status, never a NaN."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch

from chaos.ledger import Ledger, require
from chaos.problems import judge_descent, judge_model
from convergent import train, train_graph
from dladmm import Callback, NoBetterThanConstant, Status, mlp
from dladmm.training.trainer import Trainer

SECONDS = 60.0
ITERATIONS = 8


def tensors_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Every tensor of the iterate and of the method, by name."""
    return {name: tensor for name, tensor in trainer.snapshot()[0].items() if tensor.is_floating_point()}


class Poison(Callback):
    """Puts a value into one entry of one tensor after one iteration."""

    def __init__(self, at: int, value: float, rng: random.Random) -> None:
        self.at, self.value, self.rng = at, value, rng
        self.hit = ""

    def on_epoch_end(self, trainer: Trainer) -> None:
        if trainer.history.n_iter != self.at:
            return
        found = tensors_of(trainer)
        self.hit = self.rng.choice(sorted(found))
        tensor = found[self.hit]
        tensor.view(-1)[self.rng.randrange(tensor.numel())] = self.value


def problem(number: int, rng: random.Random) -> dict[str, Any]:
    return {
        "mode": rng.choice(["convergent", "accelerated"]),
        "w_solver": rng.choice(["exact", "quadratic"]),
        "a_solver": rng.choice(["exact", "quadratic"]),
        "dtype": rng.choice(["float32", "float64"]),
        "max_iter": ITERATIONS,
        "random_state": number,
    }


def run_nan(ledger: Ledger, count: int, seed: int) -> None:
    """A NaN or an infinity in a random tensor at a random iteration of a random kind of run."""
    data = np.random.default_rng(seed)
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        x, y = data.normal(size=(25, 6)), data.integers(0, 3, 25)
        poison = Poison(rng.randrange(1, ITERATIONS), rng.choice([np.nan, np.inf, -np.inf]), rng)
        options = problem(number, rng) | {"callbacks": [poison]}
        graph = rng.random() < 0.3
        with ledger.attempt(f"NaN {number}: {options}", SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if graph:
                options.pop("a_solver")
                edges, mask = data.integers(0, 25, (2, 60)), np.ones(25, dtype=bool)
                result = train_graph(x, edges, y, mask, hidden=(5,), n_classes=3, **options)
            else:
                result = train(mlp([6, 5, 4, 3], rng.choice(["relu", "tanh", "sign"])), x, y, **options)
            require(poison.hit, "nothing was poisoned")
            require(isinstance(result.status, Status), "no status")
            judge_model(result)
            for name in ("lagrangian", "objective", "loss"):  # the poison itself counts as a step
                finite = all(value is None or np.isfinite(value) for value in result.history[name])
                require(finite, f"{name} of the history is not finite")
            ledger.count(result.status.name)


def singular(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Features whose Gram matrix has no inverse, or nearly none."""
    x = rng.normal(size=(20, 12))
    match kind:
        case "duplicate columns":
            x[:, 6:] = x[:, :6]
        case "nearly duplicate":
            x[:, 6:] = x[:, :6] * (1 + 1e-9 * rng.normal(size=(20, 6)))
        case "zero columns":
            x[:, ::2] = 0.0
        case "all zero":
            x[:] = 0.0
        case "constant":
            x[:] = 3.0
        case "wide":
            x = rng.normal(size=(5, 60))
        case "one sample twice":
            x[:] = x[0]
        case "tiny and huge":
            x *= 10.0 ** np.linspace(-6, 6, 12)
    return x


KINDS = (
    "duplicate columns", "nearly duplicate", "zero columns", "all zero", "constant", "wide", "one sample twice",
    "tiny and huge",
)  # fmt: skip


def run_singular(ledger: Ledger, count: int, seed: int) -> None:
    """Singular Gram matrices under every solver, penalty and mode: solved, and never uphill."""
    for number in range(count):
        rng = random.Random(f"singular {seed} {number}")
        data = np.random.default_rng([seed, number])
        kind = KINDS[number % len(KINDS)]
        x = singular(kind, data)
        y = data.integers(0, 3, len(x))
        y[:3] = 0, 1, 2
        options = problem(number, rng) | {
            "regularizer": rng.choice(["none", "l2", "l1", "elastic_net", "non_negative"])
        }
        if options["mode"] == "convergent":
            options["damping"] = rng.choice([0.0, 0.1])
        with ledger.attempt(f"{kind} {number}: {options}", SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", NoBetterThanConstant)  # random labels
            result = train(mlp([x.shape[1], 7, 3]), x, y, **options)
            require(result.status.ok, f"ended with {result.status.name}")
            judge_model(result)
            judge_descent(result, options["dtype"])
