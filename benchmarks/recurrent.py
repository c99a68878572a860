"""What an iteration of a recurrent network costs beside an Adam epoch of it: ``python benchmarks/recurrent.py``.

Digits read row by row (1,437 images, 8 steps, 64 units) by an Elman network, a GRU and an LSTM: an iteration of
accelerated mode and a pass of streaming mode over one full-batch Adam epoch (torch's own layer), and the test accuracy
after 50 of each; and what accelerated iterations and few or many passes reach of training images that were held out, a
quarter at a time, with several seeds. And a generated task of 100 steps: which of four symbols came first, before 99
steps of noise, beside mini-batch Adam on the same network for as many seconds, with the best of three rates.

Seconds are those of this process, in one thread. Results are written to docs/results/recurrent.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded

import dladmm
from dladmm import datasets
from dladmm.callbacks import Callback
from dladmm.training.run_folder import describe

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "recurrent.json"
LAYERS: dict[str, Any] = {"Elman": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
TARGETS = {"Elman": 15.0, "GRU": 20.0, "LSTM": 20.0}
"""Adam epochs that were asked for."""
STEPS, SYMBOLS = 100, 4
ADAM_RATES, ADAM_BATCH = (1e-3, 3e-3, 1e-2), 64


class Clock(Callback):
    """CPU seconds of every iteration."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since = 0.0

    def on_train_begin(self, trainer: Any) -> None:
        self._since = time.process_time()

    def on_epoch_end(self, trainer: Any) -> None:
        self.seconds.append(time.process_time() - self._since)
        self._since = time.process_time()


def network(kind: str, n_in: int, hidden: int, n_out: int, *first: nn.Module) -> nn.Sequential:
    layer = dladmm.Recurrent(LAYERS[kind](n_in, hidden, batch_first=True))
    return nn.Sequential(*first, layer, nn.Linear(hidden, n_out))


def adam_epoch(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Seconds, the least of eight."""
    optimizer, found = torch.optim.Adam(module.parameters()), []
    for _ in range(8):
        began = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        found.append(time.process_time() - began)
    return min(found)


def trained(
    module: nn.Module, x: Tensor, y: Tensor, mode: Any, iterations: int, seed: int = 0
) -> list[float]:
    clock = Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dladmm.train(
            module, x, y, mode=mode, max_iter=iterations, random_state=seed, device="cpu", dtype="float32",
            callbacks=[clock],
        )  # fmt: skip
    return clock.seconds


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((module(x).argmax(1) == y).double().mean())


def first_symbol(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(n, 100, 4) and the symbol of the first step, which is 1 there; all the rest is noise."""
    x = 0.1 * torch.randn(n, STEPS, SYMBOLS, generator=generator)
    y = torch.randint(0, SYMBOLS, (n,), generator=generator)
    x[torch.arange(n), 0, y] += 1
    return x, y


def on_digits(kind: str, iterations: int, passes: int) -> dict[str, Any]:
    data = datasets.load("digits")
    x, y, x_test, y_test = data.x_train.float(), data.y_train, data.x_test.float(), data.y_test

    def made() -> nn.Sequential:
        return network(kind, 8, 64, 10, nn.Unflatten(1, (8, 8)))

    epoch, whole = adam_epoch(made(), x, y), made()
    accelerated = statistics.median(trained(whole, x, y, "accelerated", iterations))
    epoch = min(epoch, adam_epoch(made(), x, y))
    module = made()
    streaming = statistics.median(trained(module, x, y, "streaming", passes))
    return {
        "layer": kind,
        "adam_epoch_ms": 1e3 * epoch,
        "accelerated/adam": accelerated / epoch,
        "streaming/adam": streaming / epoch,
        "target": TARGETS[kind],
        "iterations": iterations,
        "accelerated_test_accuracy": accuracy(whole, x_test, y_test),
        "passes": passes,
        "streaming_test_accuracy": accuracy(module, x_test, y_test),
    }


def held_out(kind: str, runs: Sequence[tuple[str, int]], folds: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Mean accuracy on parts of the training images, in order, that were held out; CPU seconds of a run."""
    data = datasets.load("digits")
    x, y = data.x_train.float(), data.y_train
    part = torch.arange(len(x)) * folds // len(x)
    for mode, iterations in runs:
        found, seconds = [], []
        for seed in range(seeds):
            for k in range(folds):
                module, kept = network(kind, 8, 64, 10, nn.Unflatten(1, (8, 8))), part != k
                seconds.append(sum(trained(module, x[kept], y[kept], mode, iterations, seed)))
                found.append(accuracy(module, x[~kept], y[~kept]))
        means = {"accuracy": statistics.mean(found), "seconds": statistics.mean(seconds)}
        yield {"layer": kind, "mode": mode, "iterations": iterations, "folds": folds, "seeds": seeds} | means


def adam_for(seconds: float, module: nn.Module, x: Tensor, y: Tensor, rate: float) -> None:
    """Mini-batch Adam from torch's own start, until so many CPU seconds are over."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    until, generator = time.process_time() + seconds, torch.Generator().manual_seed(0)
    while time.process_time() < until:
        for rows in torch.randperm(len(x), generator=generator).split(ADAM_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()


def on_sequences(kind: str, rows: int, hidden: int, passes: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    (x, y), (x_test, y_test) = first_symbol(rows, generator), first_symbol(1000, generator)
    module = network(kind, SYMBOLS, hidden, SYMBOLS)
    began = time.process_time()
    trained(module, x, y, "streaming", passes)
    seconds = time.process_time() - began
    found = {
        "layer": kind,
        "steps": STEPS,
        "rows": rows,
        "hidden": hidden,
        "passes": passes,
        "seconds": seconds,
    }
    found["test_accuracy"] = accuracy(module, x_test, y_test)
    others = {}
    for rate in ADAM_RATES:
        torch.manual_seed(0)
        other = network(kind, SYMBOLS, hidden, SYMBOLS)
        adam_for(seconds, other, x, y, rate)
        others[rate] = accuracy(other, x_test, y_test)
    rate = max(others, key=others.__getitem__)
    return found | {"adam_test_accuracy": others[rate], "adam_rate": rate, "adam_batch": ADAM_BATCH}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=50, help="of accelerated mode")
    parser.add_argument("--passes", type=int, default=50, help="of streaming mode")
    parser.add_argument("--few-passes", type=int, default=10)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sequence-passes", type=int, default=18)
    parser.add_argument("--sequence-rows", type=int, default=600)
    parser.add_argument("--sequence-layers", nargs="*", choices=LAYERS, default=["Elman"])
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    s = parser.parse_args(arguments)
    torch.set_num_threads(1)
    digits = []
    for kind in s.layers:
        digits.append(on_digits(kind, s.iterations, s.passes))
        print(digits[-1], file=sys.stderr, flush=True)
    sequences = []
    for kind in s.sequence_layers:
        sequences.append(on_sequences(kind, s.sequence_rows, 24, s.sequence_passes))
        print(sequences[-1], file=sys.stderr, flush=True)
    runs = ("accelerated", s.iterations), ("streaming", s.few_passes), ("streaming", s.passes)
    held = []
    for kind in s.layers:
        for row in held_out(kind, runs, s.folds, s.seeds):
            held.append(row)
            print(row, file=sys.stderr, flush=True)
    machine = describe(torch.device("cpu"))
    report = {"machine": machine, "digits": digits, "held_out": held, "sequences": sequences}
    s.out.write_text(dumps(rounded(report, 4)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
