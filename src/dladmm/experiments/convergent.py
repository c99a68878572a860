"""The convergent algorithm on digits and MNIST: accuracy, descent and certificate of a few named settings.

    python -m dladmm.experiments.convergent digits --seeds 5
    python -m dladmm.experiments.convergent mnist-exact --device cuda
    python -m dladmm.experiments.convergent mnist-paper --device cuda

Prints one JSON object on standard output (progress goes to standard error). Needs nothing but torch, numpy, scipy and
scikit-learn; MNIST is looked for as :mod:`dladmm.datasets` says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from typing import Any

from dladmm import datasets
from dladmm.api import train
from dladmm.chain import mlp
from dladmm.demo import DIGITS, train_digits
from dladmm.progress import ProgressBar
from dladmm.trainer import ConvergenceNotGuaranteed, Result

MNIST: dict[str, dict[str, Any]] = {
    "mnist-exact": {"rho": 1.5, "nu": 10.0, "damping": 0.03, "init_scale": 0.2, "max_iter": 100},
    "mnist-paper": {"preset": "paper", "max_iter": 200},
}
"""Hidden layers 1000-1000, relu, softmax cross-entropy, 55,000 training images, as in the paper.

rho, nu and damping of ``mnist-exact`` were chosen on the 5,000 validation images, inside rho > 2H."""

MILESTONES = (1, 2, 5, 10, 20, 50, 100, 150, 200)


def summary(result: Result) -> dict[str, Any]:
    """What a results page says of one run."""
    history, certificate = result.history, result.certificate
    measured = [k for k in MILESTONES if k <= history.n_iter and history["val_accuracy"][k - 1] is not None]
    return {
        "status": result.status.name,
        "test_accuracy": {k: round(history["val_accuracy"][k - 1] or 0.0, 4) for k in measured},
        "train_loss": {k: round(history["loss"][k - 1] or 0.0, 5) for k in measured},
        "lagrangian": {k: history["lagrangian"][k - 1] for k in measured},
        "final_rho": history["rho"][-1],
        "covered": certificate.covered,
        "monotone": certificate.monotone,
        "rises": len(certificate.descent_violations),
        "largest_entry": certificate.largest_norm,
        "certified": certificate.certified,
        "agrees": certificate.agrees,
        "seconds_per_iteration": (history["seconds"][-1] or 0.0) / history.n_iter,
    }


def run_mnist(name: str, seed: int, device: str, **changes: Any) -> Result:
    """One of the MNIST settings."""
    data = datasets.load("mnist")
    settings = MNIST[name] | {"diagnostics_every": 1} | changes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
        return train(
            mlp([784, 1000, 1000, 10]),
            data.x_train,
            data.y_train,
            validation=(data.x_test, data.y_test),
            random_state=seed,
            device=device,
            callbacks=[ProgressBar(name)],
            **settings,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=["digits", *MNIST])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-iter", type=int)
    chosen = parser.parse_args(arguments)
    changes = {} if chosen.max_iter is None else {"max_iter": chosen.max_iter}
    results = []
    for seed in range(chosen.seeds):
        if chosen.experiment == "digits":
            results.append(train_digits(seed, device=chosen.device, **changes))
        else:
            results.append(run_mnist(chosen.experiment, seed, chosen.device, **changes))
    runs = [summary(result) for result in results]
    last = [list(run["test_accuracy"].values())[-1] for run in runs]
    settings = DIGITS if chosen.experiment == "digits" else MNIST[chosen.experiment]
    json.dump(
        {
            "experiment": chosen.experiment,
            "settings": settings,
            "test_accuracy_mean": statistics.mean(last),
            "test_accuracy_min": min(last),
            "runs": runs,
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    main()
