"""FedAvg, SCAFFOLD and FedADMM on silos with one class each, tuned on validation rows: what ``silos.py`` compares with.

    python benchmarks/federated.py SCAFFOLD --hidden 256          (one of them by itself)

All silos take part in every round, with local steps of SGD on mini-batches of their own rows. Networks of all silos are
one batched product. Settings are chosen as they would be for a run that matters: every cell of a grid for
``TRIALS[0]`` rounds, the best few for ``TRIALS[1]`` rounds, by the accuracy on rows that nobody trains on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

SILOS = 10
TRIALS = (40, 150)
"""Rounds of a short and of a long trial."""

FINALISTS = 2
RATES, STEPS, BATCHES = (0.03, 0.1, 0.3, 1.0), (1, 5, 10, 20), (50, 200)
RHOS = {"FedADMM": (0.01, 0.1, 1.0)}
COST = {"FedAvg": 2, "SCAFFOLD": 4, "FedADMM": 2}
"""Times the parameters travel in a round, up and down; SCAFFOLD's controls go with them."""


@dataclass
class Data:
    X: np.ndarray
    y: np.ndarray
    X_held: np.ndarray
    y_held: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


class Silos:
    """The parameters of ten copies of the network, and gradients of each on rows of its own silo."""

    def __init__(self, data: Data, hidden: int, batch: int, seed: int = 0) -> None:
        self.batch, self.random = batch, torch.Generator().manual_seed(seed)
        X, y = torch.tensor(data.X), torch.tensor(data.y)
        rows = [(y == k).nonzero()[:, 0] for k in range(SILOS)]
        self.counts = torch.tensor([len(own) for own in rows])
        self.places = torch.zeros(SILOS, int(self.counts.max()), dtype=torch.int64)
        for k, own in enumerate(rows):
            self.places[k, : len(own)] = own
        self.X, self.share = X, self.counts / self.counts.sum()
        n_in = X.shape[1]
        self.first = []
        for shape in ((n_in, hidden), (1, hidden), (hidden, SILOS), (1, SILOS)):
            drawn = torch.randn(shape, generator=self.random) * (2 / shape[0]) ** 0.5
            self.first.append(drawn if shape[0] > 1 else torch.zeros(shape))
        self.size = 4 * sum(p.numel() for p in self.first)

    def spread(self, params: list[Tensor]) -> list[Tensor]:
        return [p.expand(SILOS, *p.shape).clone() for p in params]

    def mean(self, params: list[Tensor]) -> list[Tensor]:
        return [torch.einsum("s,s...->...", self.share, p) for p in params]

    def gradients(self, params: list[Tensor]) -> list[Tensor]:
        """By hand: ten small networks in batched products."""
        drawn = torch.rand(SILOS, self.batch, generator=self.random) * self.counts[:, None]
        x = self.X[self.places.gather(1, drawn.long())]
        W, b, V, c = params
        h = torch.baddbmm(b, x, W).relu_()
        p = torch.baddbmm(c, h, V).softmax(2)
        own = torch.arange(SILOS)
        p[own, :, own] -= 1
        p /= self.batch
        back = torch.bmm(p, V.transpose(1, 2)).mul_(h > 0)
        found = [torch.bmm(x.transpose(1, 2), back), back.sum(1, keepdim=True)]
        return [*found, torch.bmm(h.transpose(1, 2), p), p.sum(1, keepdim=True)]


def fedavg(silos: Silos, rate: float, steps: int) -> Iterator[list[Tensor]]:
    """McMahan et al. 2017: local steps, then the mean."""
    theta = silos.first
    while True:
        own = silos.spread(theta)
        for _ in range(steps):
            torch._foreach_add_(own, silos.gradients(own), alpha=-rate)
        theta = silos.mean(own)
        yield theta


def scaffold(silos: Silos, rate: float, steps: int) -> Iterator[list[Tensor]]:
    """Karimireddy et al. 2020, their second option for the controls; parameters and controls travel."""
    theta = silos.first
    controls = [torch.zeros_like(p) for p in silos.spread(theta)]
    control = silos.mean(controls)
    while True:
        own = silos.spread(theta)
        shift = [all_ - mine for all_, mine in zip(control, controls, strict=True)]
        for _ in range(steps):
            torch._foreach_add_(own, silos.gradients(own), alpha=-rate)
            torch._foreach_add_(own, shift, alpha=-rate)
        controls = [(old - p) / (steps * rate) - s for s, old, p in zip(shift, theta, own, strict=True)]
        theta, control = silos.mean(own), silos.mean(controls)
        yield theta


def fedadmm(silos: Silos, rate: float, steps: int, rho: float) -> Iterator[list[Tensor]]:
    """Gong et al. 2022: local steps on the augmented Lagrangian, then the mean of ``w + u / rho``."""
    theta = silos.first
    own = silos.spread(theta)
    duals = [torch.zeros_like(p) for p in own]
    while True:
        for _ in range(steps):
            pairs = zip(own, silos.gradients(own), duals, theta, strict=True)
            for p, g, u, old in pairs:
                p.sub_(g + u + rho * (p - old), alpha=rate)
        for p, u, old in zip(own, duals, theta, strict=True):
            u.add_(p - old, alpha=rho)
        theta = silos.mean([p + u / rho for p, u in zip(own, duals, strict=True)])
        yield theta


METHODS = {"FedAvg": fedavg, "SCAFFOLD": scaffold, "FedADMM": fedadmm}


def accuracy(params: list[Tensor], X: Tensor, y: Tensor) -> float:
    W, b, V, c = params
    return float((((X @ W + b).relu() @ V + c).argmax(1) == y).double().mean())


@torch.no_grad()
def curve(
    name: str, data: Data, hidden: int, settings: dict, rounds: int, *,
    every: int = 5, target: float = 2.0, test: bool = False, seconds: float = np.inf,
) -> list:  # fmt: skip
    """``[round, accuracy]`` of the averaged network, on the test rows or on those held out."""
    began = time.process_time()
    settings = dict(settings)
    silos = Silos(data, hidden, settings.pop("batch"))
    X, y = (data.X_test, data.y_test) if test else (data.X_held, data.y_held)
    X, y = torch.tensor(X), torch.tensor(y)
    points, iterates = [], METHODS[name](silos, **settings)
    for k in range(1, rounds + 1):
        theta = next(iterates)
        if k % every == 0 or k == rounds:
            points.append([k, accuracy(theta, X, y)])
            late = time.process_time() - began > seconds
            if points[-1][1] >= target or late or not np.isfinite(float(theta[0].sum())):
                break
    return points


def chosen(
    name: str, data: Data, hidden: int, grid: list[dict], trials: tuple[int, int] = TRIALS
) -> tuple[dict, list]:
    """The best settings after a long trial of those that were best after a short one, and all trials."""
    records = []
    for rounds, cells in ((trials[0], grid), (trials[1], None)):
        if cells is None:
            best = sorted(records, key=lambda r: -r["accuracy"])[:FINALISTS]
            cells = [{k: v for k, v in r.items() if k not in ("rounds", "accuracy")} for r in best]
        for cell in cells:
            found = curve(name, data, hidden, cell, rounds, every=max(1, rounds // 4))[-1][1]
            records.append({**cell, "rounds": rounds, "accuracy": found})
            print(name, records[-1], flush=True)
    last = [r for r in records if r["rounds"] == trials[1]]
    best = max(last, key=lambda r: r["accuracy"])
    return {k: v for k, v in best.items() if k not in ("rounds", "accuracy")}, records


def grid_of(name: str) -> list[dict]:
    cells = [{"rate": r, "steps": s, "batch": b} for r, s, b in product(RATES, STEPS, BATCHES)]
    cells = [c for c in cells if c["steps"] * c["batch"] <= 2000]  # a third of a silo's rows
    if name not in RHOS:
        return cells
    some = [c for c in cells if c["batch"] == BATCHES[0] and c["steps"] >= 10 and c["rate"] < 1]
    return [{**c, "rho": rho} for rho in RHOS[name] for c in some]


def tuned_run(name: str, data: Data, args: argparse.Namespace) -> dict:
    """One method to the target on the test rows, or to the end of its rounds or seconds."""
    began = time.process_time()
    best, records = chosen(name, data, args.hidden, grid_of(name), (args.short_trial, args.long_trial))
    points = curve(
        name, data, args.hidden, best, args.rounds, target=args.target, test=True, seconds=args.seconds
    )
    size = Silos(data, args.hidden, 1).size
    rounds, reached = points[-1]
    return {
        "reached": reached >= args.target,
        "rounds": rounds,
        "bytes": rounds * COST[name] * size,
        "accuracy": reached,
        "best": max(value for _, value in points),
        "curve": [points[i] for i in range(0, len(points), max(1, len(points) // 40))],
        "seconds": time.process_time() - began,
        **best,
        "trials": records,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help="the first rows alone, for a trial")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--target", type=float, default=0.97)
    parser.add_argument("--rounds", type=int, default=2000, help="at most, for the others")
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="of CPU for the last run of each of the others"
    )
    parser.add_argument("--short-trial", type=int, default=TRIALS[0])
    parser.add_argument("--long-trial", type=int, default=TRIALS[1])


def read(rows: int | None) -> Data:
    """MNIST: 55,000 training rows, 5,000 held out to choose settings by, 10,000 test rows."""
    from dladmm import datasets

    found = datasets.load("mnist")
    parts = []
    for split in ("train", "val", "test"):
        X, y = (np.asarray(getattr(found, f"{letter}_{split}")) for letter in "xy")
        parts += [X.reshape(len(X), -1).astype(np.float32) / (255 if X.max() > 1 else 1), y.astype(np.int64)]
    if rows is not None:
        parts[0], parts[1] = parts[0][:rows], parts[1][:rows]
    return Data(*parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("method", choices=sorted(METHODS))
    parser.add_argument("--out")
    add_arguments(parser)
    args = parser.parse_args()
    result = tuned_run(args.method, read(args.rows), args)
    print({key: value for key, value in result.items() if key not in ("trials", "curve")})
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(result, file)
