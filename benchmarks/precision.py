"""What products in less than float32 do to accuracy and to the certificate.

    python benchmarks/precision.py                                # 5,000 images of MNIST, 784-200-200-10
    python benchmarks/precision.py --device cuda --rows 55000 --widths 1000,1000 --json > precision.json

Convergent mode with quadratic steps and with exact solves, inside the certified region, and accelerated mode, each
with products in float32, TF32 (on a GPU only) and bfloat16, from the same initial weights. *Rises* counts iterations at
which the Lagrangian (accelerated: the true objective) rose beyond rounding, *shortfalls* those at which it fell by less
than Property 2 promises; *agrees* says whether the numbers that the run reports are those computed again from raw data
without any cache. The table goes to standard output; with --json it goes to standard error and one JSON object to
standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded

from dladmm import datasets, mlp, train
from dladmm.training.run_folder import describe

MODES: dict[str, dict[str, Any]] = {
    "quadratic": {
        "mode": "convergent",
        "w_solver": "quadratic",
        "a_solver": "quadratic",
        "rho": 1.5,
        "nu": 0.5,
    },
    "exact": {"mode": "convergent", "rho": 1.5, "nu": 0.5},
    "accelerated": {"mode": "accelerated"},
}


def measure(data: Any, mode: str, precision: str, settings: argparse.Namespace) -> dict[str, Any]:
    rows = settings.rows
    x, y = data.x_train[:rows], data.y_train[:rows]
    widths = [x.shape[1], *settings.widths, 10]
    result = train(
        mlp(widths, "relu"),
        x,
        y,
        precision=precision,
        max_iter=settings.iterations,
        device=settings.device,
        validation=(data.x_test, data.y_test),
        eps_abs=0.0,
        eps_rel=0.0,
        **MODES[mode],
    )
    certificate, history = result.certificate, result.history
    return {
        "mode": mode,
        "precision": precision,
        "test_accuracy": history.last("val_accuracy"),
        "loss": history.last("loss"),
        "rises": len(certificate.descent_violations),
        "shortfalls": len(certificate.sufficient_descent_violations),
        "agrees": certificate.agrees,
        "certified": certificate.certified,
        "stationarity": history.last("stationarity"),
    }


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['mode']:12} {row['precision']:9} {row['test_accuracy']:9.4f} {row['loss']:10.5f} {row['rises']:6d} "
        f"{row['shortfalls']:10d} {row['stationarity']:13.3g} {'yes' if row['agrees'] else 'no':>7} "
        f"{'yes' if row['certified'] else 'no':>10}"
    )


HEADER = (
    f"{'mode':12} {'products':9} {'test':>9} {'loss':>10} {'rises':>6} {'shortfalls':>10} {'stationarity':>13} "
    f"{'agrees':>7} {'certified':>10}"
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion_mnist", "digits"])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--widths", default="200,200", help="hidden units")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    settings.widths = [int(width) for width in settings.widths.split(",")]
    people = sys.stderr if settings.json else sys.stdout
    data = datasets.load(settings.dataset)
    precisions = (
        ["float32", "tf32", "bfloat16"] if settings.device.startswith("cuda") else ["float32", "bfloat16"]
    )
    print(HEADER, file=people, flush=True)
    results = []
    for mode in MODES:
        for precision in precisions:
            results.append(rounded(measure(data, mode, precision, settings)))
            print(line(results[-1]), file=people, flush=True)
    if settings.json:
        given = sys.argv[1:] if arguments is None else arguments
        report = {
            "command": f"python benchmarks/precision.py {' '.join(given)}".strip(),
            "machine": describe(settings.device),
            "torch": torch.__version__,
            "results": results,
        }
        print(dumps(rounded(report)))


if __name__ == "__main__":
    main()
