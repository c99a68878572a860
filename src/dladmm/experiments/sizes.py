"""Whether accelerated mode's one default depends on the number of samples or on the width: MNIST, part of it.

    python -m dladmm.experiments.sizes --out docs/results/accelerated-sizes.json

Networks 784-w-w-10 on the first N training images, 50 iterations, accuracy on the last 5,000 training images (no test
image is looked at), beside Adam at the paper's learning rate after as many epochs. ``refused`` counts attempts that the
safeguard did not take: how well the lengths of steps fit the problem.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dladmm import baselines, datasets
from dladmm.api.train import train
from dladmm.base.atomic import replacing
from dladmm.callbacks import Callback
from dladmm.engine.accelerated import Accelerated
from dladmm.network.chain import mlp
from dladmm.training.progress import ProgressBar
from dladmm.training.trainer import Trainer

SAMPLES, WIDTHS, ITERATIONS, HELD_OUT = (500, 2000, 8000), (50, 150, 450), 50, 5000


class Refusals(Callback):
    """How many attempts were refused so far."""

    count = 0

    def on_epoch_end(self, trainer: Trainer) -> None:
        if isinstance(trainer.method, Accelerated):
            self.count = trainer.method.refused


def measured(x: Any, y: Any, samples: int, width: int, iterations: int) -> dict[str, Any]:
    """Both methods from one initialisation on the first rows."""
    refusals = Refusals()
    given = mlp([x.shape[1], width, width, 10]), x[:samples], y[:samples]
    shared: dict[str, Any] = {
        "validation": (x[-HELD_OUT:], y[-HELD_OUT:]),
        "max_iter": iterations,
        "eps_rel": 0.0,
        "diagnostics_every": iterations,
        "random_state": 0,
    }
    bar = ProgressBar(f"{samples} images, width {width}")
    ours = train(*given, mode="accelerated", callbacks=[refusals, bar], **shared)
    adam = baselines.train("adam", *given, **shared)
    return {
        "samples": samples,
        "width": width,
        "refused": refusals.count,
        "train_loss": round(ours.history.last("loss") or 0.0, 4),
        "held_out": round(ours.history.last("val_accuracy") or 0.0, 4),
        "adam_train_loss": round(adam.history.last("loss") or 0.0, 4),
        "adam_held_out": round(adam.history.last("val_accuracy") or 0.0, 4),
    }


def render(report: dict[str, Any]) -> str:
    """The section of docs/results.md."""
    lines = [
        "## Samples and widths: accelerated mode's default on parts of MNIST",
        "",
        f"    {report['command']}",
        "",
        f"Networks 784-w-w-10 after {report['iterations']} iterations (Adam: epochs), accuracy on training images that",
        "were held out.",
        "",
        "| images | width | attempts refused | training loss | held-out accuracy | Adam's loss | Adam's accuracy |",
        "| --- " * 7 + "|",
    ]
    for row in report["results"]:
        accuracy = f"{row['held_out']:.4f} | {row['adam_train_loss']:.4f} | {row['adam_held_out']:.4f}"
        lines.append(
            f"| {row['samples']} | {row['width']} | {row['refused']} | {row['train_loss']:.4f} | {accuracy} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, nargs="+", default=list(SAMPLES))
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    data = datasets.load("mnist")
    x, y = np.asarray(data.x_train), np.asarray(data.y_train)
    report = {
        "command": "python -m dladmm.experiments.sizes",
        "iterations": chosen.iterations,
        "results": [measured(x, y, n, w, chosen.iterations) for n in chosen.samples for w in chosen.widths],
    }
    if chosen.out is not None:
        with replacing(chosen.out) as file:
            file.write((json.dumps(report, indent=1) + "\n").encode())
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
