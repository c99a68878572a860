"""Random training problems as plain data: drawn from a seed, stored as JSON, judged by what the library promises."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from chaos.ledger import require
from convergent import train, train_graph
from dladmm import NoBetterThanConstant, Result, Status, mlp
from dladmm.activations import ACTIVATIONS
from dladmm.engine.certificate import rounding_slack
from dladmm.losses import LOSSES, get_loss
from dladmm.regularizers import REGULARIZERS

Problem = dict[str, Any]

ITERATIONS = 12


def draw(seed: int) -> Problem:
    """A problem of the issue's ranges: depth 1 to 8, widths 1 to 64, data scales 1e-6 to 1e6, everything by chance."""
    rng = np.random.default_rng([11, seed])

    def choice(options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    depth = int(rng.integers(1, 9))
    kind = choice(["mlp", "mlp", "mlp", "gcn"])
    penalty = choice(sorted(REGULARIZERS))
    strength = float(10.0 ** rng.uniform(-4, 2))
    parameters = {
        "l2": {"strength": strength},
        "l1": {"strength": strength},
        "elastic_net": {"l1": strength, "l2": float(10.0 ** rng.uniform(-4, 2))},
    }
    mode = choice(["convergent", "accelerated"])
    scale = float(10.0 ** rng.uniform(-6, 6))
    return {
        "seed": seed,
        "kind": kind,
        "mode": mode,
        "samples": int(rng.integers(4, 60)),
        "widths": [int(w) for w in rng.integers(1, 65, depth)],
        "outputs": int(rng.integers(2, 6)),
        "scale": scale,
        "target_scale": float(10.0 ** rng.uniform(-6, 6)),
        "shift": float(choice([0.0, 0.0, 1.0, 100.0])) if scale < 1e4 else 0.0,
        "columns": choice(["plain", "plain", "plain", "duplicate", "zero", "constant", "mixed scales"]),
        "activation": choice(sorted(ACTIVATIONS)),
        "loss": choice(sorted(LOSSES)),
        "regularizer": {"name": penalty} | parameters.get(penalty, {}),
        "w_solver": choice(["exact", "quadratic"]),
        "a_solver": choice(["exact", "quadratic"]),
        "dtype": choice(["float32", "float64"]),
        "rho_factor": float(choice([2.01, 3.0, 10.0, 1e3])) if mode == "convergent" else None,
        "nu": float(10.0 ** rng.uniform(-3, 3)) if mode == "convergent" else None,
        "init_scale": float(choice([0.0, 0.2, 1.0])),
        "max_iter": ITERATIONS,
    }


def data_of(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets, on the scales the problem names."""
    rng = np.random.default_rng(problem["seed"])
    n, d = problem["samples"], problem["widths"][0]
    x = (rng.normal(size=(n, d)) + problem["shift"]) * problem["scale"]
    match problem["columns"]:
        case "duplicate":
            x[:, 1:] = x[:, :1]
        case "zero":
            x[:, rng.random(d) < 0.7] = 0.0
        case "constant":
            x[:, rng.random(d) < 0.7] = problem["scale"]
        case "mixed scales":
            x *= 10.0 ** rng.uniform(-6, 6, d) / problem["scale"]
    if problem["loss"] == "multilabel":
        return x, rng.integers(0, 2, (n, problem["outputs"]))
    if problem["loss"] == "poisson":
        return x, rng.poisson(3.0, (n, problem["outputs"]))
    if get_loss(problem["loss"]).kind == "classification":
        y = rng.integers(0, problem["outputs"], n)
        y[:2] = 0, 1
        return x, y
    return x, rng.normal(size=(n, problem["outputs"])) * problem["target_scale"]


def solve(problem: Problem, **more: Any) -> Result:
    """Train on the problem as a user would, through the front doors."""
    x, y = data_of(problem)
    loss = get_loss(problem["loss"])
    options: dict[str, Any] = {
        name: problem[name]
        for name in (
            "mode", "loss", "regularizer", "w_solver", "a_solver", "dtype", "nu", "init_scale", "max_iter",
        )
        if problem[name] is not None
    }  # fmt: skip
    if problem["rho_factor"] is not None:
        options["rho"] = problem["rho_factor"] * loss.H
    options |= {"random_state": problem["seed"], "device": "cpu"} | more
    if problem["kind"] == "gcn":
        rng = np.random.default_rng(problem["seed"] + 1)
        edges = rng.integers(0, len(x), (2, 3 * len(x)))
        mask = np.ones(len(x), dtype=bool)
        mask[4:] = rng.random(len(x) - 4) < 0.5
        hidden, activation = problem["widths"][1:], problem["activation"]
        classes = problem["outputs"] if loss.kind == "classification" else None
        options.pop("a_solver")
        return train_graph(
            x, edges, y, mask, hidden=hidden, activation=activation, n_classes=classes, **options
        )
    network = mlp([*problem["widths"], problem["outputs"]], problem["activation"])
    return train(network, x, y, **options)


def judge(problem: Problem) -> Result:
    """Solve it and hold the result to every promise; :class:`Violation` says which was broken."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", NoBetterThanConstant)  # random labels
        result = solve(problem)
    judge_model(result)
    require(result.status is not Status.NON_FINITE, "the run ended in values that are not finite")
    require(result.status is not Status.DIVERGED, "the run diverged, though it is covered or safeguarded")
    require(result.history.n_iter <= problem["max_iter"], "more iterations than max_iter")
    judge_descent(result, problem["dtype"])
    return result


def judge_model(result: Result) -> None:
    """Never a NaN or an infinity in what comes back."""
    for name, tensor in result.module.state_dict().items():
        require(bool(torch.isfinite(tensor).all()), f"{name} of the returned model is not finite")


def judge_descent(result: Result, dtype: str) -> None:
    """Lagrangian (convergent) or true objective (accelerated, at feasible points the same column) never rise."""
    slack = rounding_slack(getattr(torch, dtype))
    values = [value for value in result.history["lagrangian"] if value is not None]
    require(all(map(math.isfinite, values)), "the Lagrangian is not finite")
    for k, (before, after) in enumerate(pairwise(values), start=2):
        allowed = slack * (abs(before) + abs(after))
        require(after - before <= allowed, f"iteration {k} rose from {before!r} to {after!r}")
    require(result.certificate.monotone, f"descent violations {result.certificate.descent_violations}")
