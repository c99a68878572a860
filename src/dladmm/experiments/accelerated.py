"""Accelerated mode from its one default beside gradient methods: test accuracy on all seven data sets.

    python -m dladmm.experiments.accelerated mnist --seeds 5 --out docs/results/accelerated-mnist.json
    python -m dladmm.experiments.accelerated cora --seeds 10 --methods accelerated,adam

    python -m dladmm.experiments.accelerated mnist --cells runs/reproduce-full --out docs/results/accelerated-mnist.json

Prints one JSON object (progress goes to standard error); with ``--out`` the methods are added to those in the file. The
paper's networks, full batch, float32: 784-1000-1000-10, and one hidden layer of 128 for graphs. Accelerated mode runs
200 iterations with no setting given; the gradient methods run 200 epochs, 500 on graphs, at the paper's learning rates.
``--cells`` runs nothing: the figures are those of a reproduction's cells, which are the same runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from dladmm import baselines, datasets
from dladmm.api.train import train
from dladmm.api.train_graph import train_graph
from dladmm.base.atomic import replacing
from dladmm.callbacks import Callback
from dladmm.datasets import GraphData
from dladmm.network.chain import mlp
from dladmm.report.data import Run
from dladmm.training.diagnostics import score
from dladmm.training.progress import ProgressBar
from dladmm.training.trainer import Result, Trainer

IMAGES = ("mnist", "fashion_mnist", "digits")
GRAPHS = ("cora", "pubmed", "citeseer", "coauthor-cs", "coauthor-physics", "karate")
GRADIENT_METHODS = ("adam", "gd", "adagrad", "adadelta")
ITERATIONS, GRAPH_EPOCHS = 200, 500
SHOWN = (*range(1, 11), 20, 50, 100, 150, 200, 300, 400, 500)
"""Iterations at which test accuracy is taken."""


class Watch(Callback):
    """Test accuracy at the iterations of :data:`SHOWN`, at the cost of one forward pass each."""

    def __init__(self) -> None:
        self.accuracy: dict[str, float] = {}

    def on_epoch_end(self, trainer: Trainer) -> None:
        k = trainer.history.n_iter
        if k in SHOWN and trainer.validation is not None:
            x, risk = trainer.validation
            accuracy = score(risk, trainer.engine.chain.predict(trainer.state.params, x))[1]
            self.accuracy[str(k)] = round(accuracy or 0.0, 4)


def run(name: str, data: Any, method: str, seed: int, device: str = "auto", **changes: Any) -> dict[str, Any]:
    """One method from one initialisation, measured."""
    graph = isinstance(data, GraphData)
    accelerated = method == "accelerated"
    epochs = GRAPH_EPOCHS if graph and not accelerated else ITERATIONS
    watch = Watch()
    settings: dict[str, Any] = {
        "max_iter": epochs,
        # images to the last iteration, so that every k of the table is there; graphs until they have settled
        "eps_rel": 1e-4 if graph and accelerated else 0.0,
        "random_state": seed,
        "device": device,
        "callbacks": [watch, ProgressBar(f"{name} {method} {seed}")],
    } | changes
    settings.setdefault("diagnostics_every", settings["max_iter"])
    if accelerated:
        settings["mode"] = "accelerated"
    if graph:
        settings |= {"hidden": (16,) if name == "karate" else (128,), "validation": "test"}
        result = (
            train_graph(data, **settings) if accelerated else baselines.train_graph(method, data, **settings)
        )
    else:
        hidden = (100, 100) if name == "digits" else (1000, 1000)
        given = (mlp([data.n_features, *hidden, data.n_classes]), data.x_train, data.y_train)
        settings["validation"] = (data.x_test, data.y_test)
        result = train(*given, **settings) if accelerated else baselines.train(method, *given, **settings)
    return summary(result, watch)


def summary(result: Result, watch: Watch) -> dict[str, Any]:
    """What a results page says of one run."""
    history = result.history
    reached = [int(k) for k, accuracy in watch.accuracy.items() if accuracy >= 0.95]
    return {
        "test_accuracy": watch.accuracy,
        "final": round(history.last("val_accuracy") or 0.0, 4),
        "first_at_95": min(reached, default=None),
        "train_accuracy": round(history.last("train_accuracy") or 0.0, 5),
        "train_loss": round(history.last("loss") or 0.0, 5),
        "iterations": history.n_iter,
        "status": result.status.name,
        "rises": len(result.certificate.descent_violations),
        "seconds_per_iteration": round((history["seconds"][-1] or 0.0) / history.n_iter, 5),
    }


def from_cells(name: str, folder: Path) -> dict[str, Any]:
    """The methods of a reproduction's accuracy experiment on this data set, as :func:`main` writes them."""
    from dladmm.reproduce import experiment
    from dladmm.reproduce.evidence import gather
    from dladmm.reproduce.plan import cells

    e = experiment("mlp-accuracy" if name in IMAGES else "gcn-accuracy", "full")
    evidence = gather(folder / e.id, cells(e, "cpu"))
    methods = {}
    for method in ("accelerated", *GRADIENT_METHODS):
        runs = [_of_cell(run) for run in evidence.of(name.replace("-", "_"), method)]
        if runs:
            methods[method] = _summed_up(
                runs, f"dladmm reproduce {e.id} --only '{name.replace('-', '_')}-{method}-*'"
            )
    return methods


def _of_cell(run: Run) -> dict[str, Any]:
    pairs = zip(run.column("iteration"), run.column("val_accuracy"), strict=True)
    accuracy = {str(int(k)): round(v, 4) for k, v in pairs if k is not None and v is not None}
    shown = {k: v for k, v in accuracy.items() if int(k) in SHOWN}
    reached = [int(k) for k, v in accuracy.items() if v >= 0.95]
    return {
        "test_accuracy": shown,
        "final": round(run.last("val_accuracy") or 0.0, 4),
        "first_at_95": min(reached, default=None),
        "train_accuracy": round(run.last("train_accuracy") or 0.0, 5),
        "train_loss": round(run.last("loss") or 0.0, 5),
        "iterations": run.iterations,
        "status": run.status,
        "rises": len((run.certificate or {}).get("descent_violations", [])),
        "seconds_per_iteration": None,  # several cells may have shared the device
    }


def _summed_up(runs: list[dict[str, Any]], command: str) -> dict[str, Any]:
    return {
        "command": command,
        "mean": {k: _mean(r["test_accuracy"].get(k) for r in runs) for k in runs[0]["test_accuracy"]},
        "final_mean": _mean(r["final"] for r in runs),
        "final_deviation": round(statistics.pstdev(r["final"] for r in runs), 4),
        "runs": runs,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=[*IMAGES, *GRAPHS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", default=",".join(("accelerated", *GRADIENT_METHODS)))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-penalty", action="store_true", help="accelerated mode without its penalty")
    parser.add_argument("--cells", type=Path, help="take the runs of this folder of a reproduction instead")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    data = datasets.load(chosen.dataset) if chosen.cells is None else None
    changes = {"regularizer": None} if chosen.no_penalty else {}
    found: dict[str, Any] = {"data": chosen.dataset, "methods": {}}
    if chosen.out is not None and chosen.out.exists():
        found = json.loads(chosen.out.read_text(encoding="utf-8"))
    if chosen.cells is not None:
        found = {"data": chosen.dataset, "methods": from_cells(chosen.dataset, chosen.cells)}
        _keep(found, chosen.out)
    for method in chosen.methods.split(",") if chosen.cells is None else ():
        runs = [
            run(chosen.dataset, data, method, seed, chosen.device, **changes) for seed in range(chosen.seeds)
        ]
        command = "python -m dladmm.experiments.accelerated " + _shown(chosen, method)
        found["methods"][method] = _summed_up(runs, command)
        _keep(found, chosen.out)
    json.dump(found, sys.stdout, indent=1)
    print()


def _keep(found: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        with replacing(out) as file:
            file.write((json.dumps(found, indent=1) + "\n").encode())


def _shown(chosen: argparse.Namespace, method: str) -> str:
    penalty = " --no-penalty" if chosen.no_penalty else ""
    return f"{chosen.dataset} --seeds {chosen.seeds} --methods {method}{penalty} --device {chosen.device}"


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 5) if known else None


if __name__ == "__main__":
    main()
