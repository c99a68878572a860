"""The convergent algorithm on digits and MNIST: accuracy, descent and certificate of a few named settings.

    python -m dladmm.experiments.convergent digits --seeds 5
    python -m dladmm.experiments.convergent digits-sign --seeds 5      # also digits-step, digits-quantised
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
from dladmm.api.train import train
from dladmm.cli.demo import DIGITS, split_digits, train_digits
from dladmm.network.chain import mlp
from dladmm.training.progress import ProgressBar
from dladmm.training.trainer import ConvergenceNotGuaranteed, Result

MNIST: dict[str, dict[str, Any]] = {
    "mnist-exact": {"rho": 1.5, "nu": 10.0, "damping": 0.03, "init_scale": 0.2, "max_iter": 100},
    "mnist-paper": {"preset": "paper", "max_iter": 200},
    "mnist-paper-fista": {"preset": "paper", "prox": "fista", "max_iter": 200},
}
"""Hidden layers 1000-1000, relu, softmax cross-entropy, 55,000 training images, as in the paper.

rho, nu and damping of ``mnist-exact`` were chosen on the 5,000 validation images, inside rho > 2H."""

JUMPS: dict[str, Any] = {
    "hidden": (1000,),
    "rho": 1.5,
    "nu": 10.0,
    "damping": 1.0,
    "init_scale": 1.0,
    "regularizer": {"name": "l2", "strength": 3.0},
    "max_iter": 100,
}
"""For activations whose gradient is zero almost everywhere; chosen on splits of the training digits."""

DIGIT_RUNS: dict[str, dict[str, Any]] = {
    "digits": DIGITS,
    **{f"digits-{name}": JUMPS | {"activation": name} for name in ("sign", "step", "quantised")},
}

MILESTONES = (1, 2, 5, 10, 20, 50, 100, 150, 200)


def summary(result: Result) -> dict[str, Any]:
    """What a results page says of one run."""
    history, certificate = result.history, result.certificate
    milestones = sorted({k for k in MILESTONES if k < history.n_iter} | {history.n_iter})
    measured = [k for k in milestones if history["val_accuracy"][k - 1] is not None]
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


def linear_baseline(seed: int) -> float:
    """Test accuracy of scikit-learn's logistic regression on the same split of the digits."""
    from sklearn.linear_model import LogisticRegression

    x_train, x_test, y_train, y_test = split_digits(seed)
    return float(LogisticRegression(max_iter=5000).fit(x_train, y_train).score(x_test, y_test))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=[*DIGIT_RUNS, *MNIST])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-iter", type=int)
    chosen = parser.parse_args(arguments)
    changes = {} if chosen.max_iter is None else {"max_iter": chosen.max_iter}
    results = []
    for seed in range(chosen.seeds):
        if chosen.experiment in DIGIT_RUNS:
            settings = DIGIT_RUNS[chosen.experiment]
            results.append(train_digits(seed, settings, device=chosen.device, **changes))
        else:
            results.append(run_mnist(chosen.experiment, seed, chosen.device, **changes))
    runs = [summary(result) for result in results]
    last = [list(run["test_accuracy"].values())[-1] for run in runs]
    report: dict[str, Any] = {
        "command": f"python -m dladmm.experiments.convergent {' '.join(arguments or sys.argv[1:])}",
        "experiment": chosen.experiment,
        "settings": (DIGIT_RUNS | MNIST)[chosen.experiment] | changes,
        "test_accuracy_mean": statistics.mean(last),
        "test_accuracy_min": min(last),
        "runs": runs,
    }
    if chosen.experiment in DIGIT_RUNS:
        report["linear_model"] = statistics.mean(linear_baseline(seed) for seed in range(chosen.seeds))
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
