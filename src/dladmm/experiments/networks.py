"""Networks that are no MLP beside Adam on the same network and number of epochs: test accuracy.

    python -m dladmm.experiments.networks digits --seeds 3 --out docs/results/networks-digits.json
    python -m dladmm.experiments.networks mnist --samples 5000 --device cpu

Prints one JSON object (progress goes to standard error); with ``--out`` the methods are added to those in the file.
``--network cnn`` has two convolutions and one hidden linear layer; ``elman`` and ``gru`` read an image row by row;
``sign`` is an MLP of one hidden layer of 400 signs, beside it Adam on the straight-through estimator. Full batch,
float32; accelerated mode with no setting given (signs: pixels as they are), Adam at 1e-3.
``--held-out N`` measures on N training images that are left out instead of on the test set, to choose settings by.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dladmm import baselines, datasets
from dladmm.api.train import train
from dladmm.base.atomic import replacing
from dladmm.base.machine import describe
from dladmm.experiments.accelerated import Watch, summary
from dladmm.network.chain import Chain, mlp
from dladmm.network.recurrent_module import Recurrent
from dladmm.training.checks import check_device
from dladmm.training.progress import ProgressBar

NETWORKS = ("cnn", "elman", "gru", "sign")
DATASETS = ("digits", "mnist", "fashion_mnist")
METHODS = ("accelerated", "adam")
SIGN: dict[str, Any] = {"scale_inputs": False}
"""Networks of signs see pixels as they are: centred ones generalise worse (docs/any_network.md)."""


def cnn(pixels: int) -> nn.Sequential:
    """Two convolutions and a hidden linear layer, for digits (64 pixels) or MNIST (784)."""
    if pixels == 64:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


class StraightThrough(nn.Module):
    """sign(z), whose gradient is taken to be that of hardtanh: how back-propagation is made to train signs."""

    def forward(self, z: Tensor) -> Tensor:
        soft = z.clamp(-1, 1)
        return soft + (torch.where(z >= 0, 1.0, -1.0) - soft).detach()


def recurrent(kind: type[nn.RNN] | type[nn.GRU], pixels: int) -> nn.Sequential:
    """Reads an image row by row."""
    side = round(pixels**0.5)
    layer = Recurrent(kind(side, 64, batch_first=True))
    return nn.Sequential(nn.Unflatten(1, (side, side)), layer, nn.Linear(64, 10))


def network(name: str, pixels: int, method: str) -> nn.Module | Chain:
    """The network of an experiment; for signs Adam gets the straight-through estimator."""
    if name == "cnn":
        return cnn(pixels)
    if name in ("elman", "gru"):
        return recurrent(nn.RNN if name == "elman" else nn.GRU, pixels)
    if method == "adam":
        return nn.Sequential(nn.Linear(pixels, 400), StraightThrough(), nn.Linear(400, 10))
    return mlp([pixels, 400, 10], "sign")


Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def split(data: Any, samples: int | None, held_out: int) -> Split:
    """Training rows and those measured on; the same rows for every method and seed."""
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(0))
    kept = order[held_out:][:samples]
    x, y = torch.as_tensor(data.x_train), torch.as_tensor(data.y_train)
    if held_out:
        return (x[kept], y[kept]), (x[order[:held_out]], y[order[:held_out]])
    return (x[kept], y[kept]), (torch.as_tensor(data.x_test), torch.as_tensor(data.y_test))


def run(
    rows: Split, name: str, method: str, seed: int, iterations: int, device: str, **changes: Any
) -> dict[str, Any]:
    """One method from one initialisation, measured."""
    watch = Watch()
    given = network(name, rows[0][0].shape[1], method), *rows[0]
    settings: dict[str, Any] = {
        "max_iter": iterations,
        "eps_rel": 0.0,
        "random_state": seed,
        "device": device,
        "validation": rows[1],
        "callbacks": [watch, ProgressBar(f"{method} {seed}")],
        "diagnostics_every": iterations,
    } | changes
    if method == "accelerated":
        own = SIGN if name == "sign" else {}
        return summary(train(*given, mode="accelerated", **own | settings), watch)
    return summary(baselines.train(method, *given, **settings), watch)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--network", choices=NETWORKS, default="cnn")
    parser.add_argument("--samples", type=int, help="how many training images (default: all)")
    parser.add_argument("--held-out", type=int, default=0, help="measure on so many training images instead")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--settings", type=json.loads, default={}, help="of accelerated mode, as JSON")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    rows = split(datasets.load(chosen.dataset), chosen.samples, chosen.held_out)
    found: dict[str, Any] = {
        "data": chosen.dataset,
        "network": chosen.network,
        "samples": len(rows[0][0]),
        "methods": {},
    }
    if chosen.out is not None and chosen.out.exists():
        found = json.loads(chosen.out.read_text(encoding="utf-8"))
    for method in chosen.methods.split(","):
        changes = chosen.settings if method == "accelerated" else {}
        runs = [
            run(rows, chosen.network, method, seed, chosen.iterations, chosen.device, **changes)
            for seed in range(chosen.seeds)
        ]
        means = {
            k: round(statistics.fmean(r["test_accuracy"][k] for r in runs), 5)
            for k in runs[0]["test_accuracy"]
        }
        where = describe(check_device(chosen.device))["device"]
        found["methods"][method] = {
            "command": _shown(chosen, method), "device": where, "mean": means, "runs": runs,
        }  # fmt: skip
        if chosen.out is not None:
            with replacing(chosen.out) as file:
                file.write((json.dumps(found, indent=1) + "\n").encode())
    json.dump(found, sys.stdout, indent=1)
    print()


def _shown(chosen: argparse.Namespace, method: str) -> str:
    words = ["python -m dladmm.experiments.networks", chosen.dataset, f"--methods {method}"]
    words += [] if chosen.network == "cnn" else [f"--network {chosen.network}"]
    words += [f"--samples {chosen.samples}"] if chosen.samples else []
    words += [f"--held-out {chosen.held_out}"] if chosen.held_out else []
    words += [f"--settings '{json.dumps(chosen.settings)}'"] if chosen.settings else []
    return " ".join([*words, f"--iterations {chosen.iterations}", f"--seeds {chosen.seeds}"])


if __name__ == "__main__":
    main()
