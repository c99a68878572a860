"""What the Lagrangian does on the citation graphs at the paper's rho, and what rows="all" is worth.

    python -m dladmm.experiments.gcn_theory

Prints one JSON object on standard output: for each setting the iterations at which the Lagrangian rose, whether the run
is certified, the last residual and the test accuracy. One initialisation each; nothing is chosen by these figures.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from dladmm import datasets
from dladmm.api.train_graph import train_graph
from dladmm.training.trainer import ConvergenceNotGuaranteed

LITERAL = {"w_solver": "quadratic", "alpha0": 1.0, "t0": 1.0, "start": "paper"}
"""The paper's loop from the authors' start."""

RUNS: list[dict[str, Any]] = [
    *(
        {"dataset": name, "rho": rho, "mu": 0.01}
        for name in ("cora", "citeseer", "pubmed")
        for rho in (1.0, 1.01)
    ),
    *({"dataset": name, "rho": 1e-3, "mu": 1e-3} for name in ("cora", "citeseer", "pubmed")),
    *({"dataset": name, "rho": 1e-3, "mu": 1e-3, **LITERAL} for name in ("cora", "citeseer", "pubmed")),
    {"dataset": "cora", "rho": 1.01, "mu": 1e-3, "regularizer": "l2", "strength": 0.3, "max_iter": 20},
    {"dataset": "cora", "rho": 0.1, "mu": 1e-3, "regularizer": "l2", "strength": 0.3, "max_iter": 20},
]


def run(setting: dict[str, Any]) -> dict[str, Any]:
    """One setting, and what was seen."""
    options = {"max_iter": 60} | setting
    data = datasets.load(options.pop("dataset"))
    if "strength" in options:
        options["regularizer"] = {"name": options["regularizer"], "strength": options.pop("strength")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
        result = train_graph(data, validation="test", diagnostics_every=options["max_iter"], **options)
    certificate = result.certificate
    return {
        "setting": {"max_iter": 60} | setting,
        "rises": list(certificate.descent_violations),
        "certified": certificate.certified,
        "residual": certificate.primal_residual.recomputed,
        "test_accuracy": result.history.last("val_accuracy"),
    }


def main() -> None:
    report = {
        "command": "python -m dladmm.experiments.gcn_theory",
        "runs": [run(setting) for setting in RUNS],
    }
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
