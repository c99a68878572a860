"""Ten silos with one class of MNIST each: messages and bytes until one network has 97 % on the test rows.

    python benchmarks/silos.py --out docs/results/silos.json                          (an hour on one core)
    python benchmarks/silos.py --rows 4000 --hidden 30 --target 0.85 --rounds 60 --short-trial 10 --long-trial 20
    python benchmarks/silos.py --only dladmm noise same --out docs/results/silos.json (those parts anew)

dladmm runs its own messages (threads stand for silos). FedAvg, SCAFFOLD and FedADMM are those of ``federated.py``,
tuned on held-out rows as dladmm's settings here were. Bytes are those of one silo, up and down; of float32 numbers
without headers for the three. Test rows are looked at to report, after every batch and every fifth round.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import torch
from federated import METHODS, SILOS, Data, add_arguments, read, tuned_run

from dladmm import mlp, train
from dladmm.base.history import Status
from dladmm.callbacks import Callback
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.silos import Hub, run_silos, train_silo
from dladmm.training.run_folder import describe

KEPT = ("rows", "hidden", "target", "rounds", "short_trial", "long_trial", "seconds")
PARTS = ("dladmm", "others", "noise", "same", "sweep")
CHOSEN = {
    "mode": "streaming",
    "batch_size": 5500,
    "max_iter": 3,
    "streaming": StreamingOptions(
        stretch=6.0, damping=3.0, largest_change=1.0, largest_relative_change=1.0, averaging=20.0
    ),
}
"""Few and long steps, chosen on held-out rows among batches of 512 to 13,750 and some thirty settings."""

RUNS = {
    "dladmm, float32": {"settings": CHOSEN, "precision": "float32"},
    "dladmm, bfloat16": {"settings": CHOSEN, "precision": "bfloat16"},
    "dladmm, float32, masked": {"settings": CHOSEN, "precision": "float32", "secure": True},
    "dladmm, float32, defaults": {"settings": {"mode": "streaming"}, "precision": "float32"},
    "dladmm, float32, accelerated": {
        "settings": {"mode": "accelerated", "dropout": 0.0, "sweep": "backward", "max_iter": 20},
        "precision": "float32",
    },
}
NOISES = (0.01, 0.1, 1.0)


class Watch(Callback):
    """Test accuracy, messages and bytes of the first silo after every batch or iteration; ends a run at the target."""

    def __init__(self, silo, data: Data, target: float, steps: int | None) -> None:
        self.silo, self.target, self.steps, self.curve = silo, target, steps, []
        self.X, self.y = torch.tensor(data.X_test), torch.tensor(data.y_test)

    def on_batch_end(self, trainer) -> None:
        self._look(trainer)

    def on_epoch_end(self, trainer) -> None:
        if trainer.options.mode != "streaming":
            self._look(trainer)

    def _look(self, trainer) -> None:
        if self.silo.rank:
            return
        with torch.no_grad():
            accuracy = float((trainer.present_network()(self.X).argmax(1) == self.y).double().mean())
        both = self.silo.traffic.bytes + self.silo.received
        self.curve.append([self.silo.traffic.calls, both, accuracy])
        if accuracy >= self.target or len(self.curve) == self.steps:
            trainer.request_stop(Status.INTERRUPTED)


def ours(data: Data, args, settings: dict, steps: int | None = None, **how) -> dict:
    """A run over messages, to the target or for so many batches."""
    curves = []

    def task(k: int):
        mine = data.y == k

        def run(silo):
            watch = Watch(silo, data, args.target if steps is None else 2.0, steps)
            network = mlp([data.X.shape[1], args.hidden, SILOS])
            given = {"diagnostics_every": 1000, "smallest": 1, "callbacks": [watch]} | settings
            train_silo(silo, network, data.X[mine], data.y[mine], **given)
            if silo.rank == 0:
                curves.append(watch.curve)

        return run

    began = time.process_time()
    run_silos([task(k) for k in range(SILOS)], hub=Hub(SILOS), patience=3600, **how)
    points = curves[0]
    at = next((point for point in points if point[2] >= args.target), None)
    if steps is not None:  # a request to stop takes effect a batch later
        points = points[:steps]
    last = points[-1] if at is None or steps is not None else at
    words = {name: str(value) for name, value in settings.items()}
    return {
        "reached": at is not None,
        "rounds": last[0],
        "bytes": last[1],
        "accuracy": last[2],
        "best": max(point[2] for point in points),
        "batches": points.index(last) + 1,
        "mode": words.pop("mode"),
        "settings": words,
        "seconds": time.process_time() - began,
        **how,
    }


def same_network(data: Data, args) -> dict:
    """How far the parameters of one-class silos are from those of all rows together, relative to their length."""
    order = torch.tensor(data.y).sort(stable=True).indices.numpy()
    X, y, found = data.X[order], data.y[order], {}
    widths = [X.shape[1], args.hidden, SILOS]
    runs = (("convergent", "float32", 20), ("accelerated", "float32", 20), ("accelerated", "float64", 20))
    for mode, dtype, iterations in runs:
        settings = {"mode": mode, "dtype": dtype, "max_iter": iterations, "diagnostics_every": 1000}
        pooled = train(mlp(widths), X, y, **settings)

        def task(k: int, settings=settings):
            return lambda silo: train_silo(silo, mlp(widths), X[y == k], y[y == k], smallest=1, **settings)

        result = run_silos([task(k) for k in range(SILOS)], patience=3600)[0]
        mine, theirs = (torch.nn.utils.parameters_to_vector(r.module.parameters()) for r in (result, pooled))
        with torch.no_grad():
            rows = torch.tensor(data.X_test, dtype=mine.dtype)
            equal = result.module(rows).argmax(1) == pooled.module(rows).argmax(1)
            away = float((mine - theirs).norm() / theirs.norm())
        found[f"{mode}, {dtype}"] = {
            "iterations": iterations, "rows": len(y), "away": away, "same_predictions": float(equal.double().mean()),
        }  # fmt: skip
    return found


def sweeps(data: Data, rows: int = 6000, iterations: int = 20) -> list[dict]:
    """The paper's sweep beside updates on the way back alone: objective and accuracy on held-out rows."""
    X, y, found = torch.tensor(data.X_held), torch.tensor(data.y_held), []
    for hidden in ([100], [100, 100]):
        for sweep in ("both", "backward"):
            widths = [data.X.shape[1], *hidden, SILOS]
            settings = {"mode": "accelerated", "dropout": 0.0, "sweep": sweep, "max_iter": iterations}
            result = train(mlp(widths), data.X[:rows], data.y[:rows], diagnostics_every=1000, **settings)
            with torch.no_grad():
                held = float((result.module(X).argmax(1) == y).double().mean())
            layers = len(hidden) + 1
            found.append({
                "network": "-".join(map(str, widths)), "sweep": sweep, "held": held,
                "messages": layers + 1 if sweep == "backward" else 2 * layers,
                "objective": result.history.last("objective"), "rows": rows, "iterations": iterations,
            })  # fmt: skip
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    add_arguments(parser)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    data = read(args.rows)
    record: dict = {"methods": {}, "noise": {}, "same": {}, "sweep": []}
    if args.out is not None and args.out.exists() and set(args.only) != set(PARTS):
        record |= json.loads(args.out.read_text(encoding="utf-8"))
    record |= {"machine": describe("cpu"), "n_rows": len(data.y)}
    record["settings"] = {name: getattr(args, name) for name in KEPT}

    def keep(part: str, name: str, found: dict) -> None:
        record[part][name] = found
        print(
            name, {key: value for key, value in found.items() if key not in ("trials", "curve")}, flush=True
        )
        if args.out is not None:
            args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    if "dladmm" in args.only:
        for name, run in RUNS.items():
            keep("methods", name, ours(data, args, **run))
    if "others" in args.only:
        for name in METHODS:
            keep("methods", name, tuned_run(name, data, args))
    if "noise" in args.only:
        batches = record["methods"]["dladmm, float32"]["batches"]
        for noise in NOISES:
            how = {"precision": "float32", "noise": noise}
            keep("noise", f"{noise:g}", ours(data, args, CHOSEN, steps=batches, **how))
    if "same" in args.only:
        for name, found in same_network(data, args).items():
            keep("same", name, found)
    if "sweep" in args.only:
        record["sweep"] = sweeps(data)
        if args.out is not None:
            args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
