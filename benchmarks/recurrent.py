"""What an iteration of a recurrent network costs beside an Adam epoch of it: ``python benchmarks/recurrent.py``.

Digits read row by row (1,437 images, 8 steps, 64 units) by an Elman network, a GRU and an LSTM: an iteration of
accelerated mode and a pass of streaming mode over one full-batch Adam epoch (torch's own layer), and the test accuracy
after 50 of each. What accelerated iterations and few or many passes reach of training images that were held out, a
quarter at a time, with several seeds, beside mini-batch Adam for as many seconds as the passes take; and of the same
images with pixels in other units. And a generated task of 100 steps: which of four symbols came first, before 99 steps
of noise, beside mini-batch Adam on the same network for as many seconds, with the best of three rates.

Seconds are those of this process, in one thread. Results are written to docs/results/recurrent.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
UNITS: dict[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x,
    "16 x": lambda x: 16 * x,
    "16 x + 100": lambda x: 16 * x + 100,
}
"""Of the pixels, which lie between 0 and 1."""


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
    module: nn.Module, x: Tensor, y: Tensor, mode: Any, iterations: int, seed: int = 0, **options: Any
) -> list[float]:
    clock = Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dladmm.train(
            module, x, y, mode=mode, max_iter=iterations, random_state=seed, device="cpu", dtype="float32",
            callbacks=[clock], **options,
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


class HeldOut:
    """Training images in parts, each held out in turn, with several seeds."""

    def __init__(self, kind: str, folds: int, seeds: int) -> None:
        data = datasets.load("digits")
        self.kind, self.x, self.y = kind, data.x_train.float(), data.y_train
        self.part = torch.arange(len(self.x)) * folds // len(self.x)
        self.runs = [(seed, k) for seed in range(seeds) for k in range(folds)]
        self.about = {"layer": kind, "folds": folds, "seeds": seeds}

    def mean(
        self, train: Callable[[nn.Module, Tensor, Tensor, int], float], unit: str = "x"
    ) -> dict[str, float]:
        """Accuracy on the parts held out and the seconds that ``train`` gives back, both means."""
        found, seconds, x = [], [], UNITS[unit](self.x)
        for seed, k in self.runs:
            torch.manual_seed(seed)
            module, kept = network(self.kind, 8, 64, 10, nn.Unflatten(1, (8, 8))), self.part != k
            seconds.append(train(module, x[kept], self.y[kept], seed))
            found.append(accuracy(module, x[~kept], self.y[~kept]))
        return {"accuracy": statistics.mean(found), "seconds": statistics.mean(seconds)}


def ours(module: nn.Module, x: Tensor, y: Tensor, seed: int, mode: str, n: int, **options: Any) -> float:
    return sum(trained(module, x, y, mode, n, seed, **options))


def adams(module: nn.Module, x: Tensor, y: Tensor, seed: int, seconds: float, rate: float) -> float:
    return adam_for(seconds, module, x, y, rate)


def held_out(images: HeldOut, runs: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Every run on images held out; Adam beside the streaming ones, for as many seconds, with its best rate there."""
    for mode, n in runs:
        found = images.mean(partial(ours, mode=mode, n=n))
        yield {**images.about, "mode": mode, "iterations": n, **found}
        if mode == "streaming":
            seconds = found["seconds"]
            others = {rate: images.mean(partial(adams, seconds=seconds, rate=rate)) for rate in ADAM_RATES}
            rate = max(others, key=lambda each: others[each]["accuracy"])
            yield {**images.about, "mode": "adam", "iterations": n, "rate": rate, **others[rate]}


def in_units(images: HeldOut, passes: int) -> Iterator[dict[str, Any]]:
    """Streaming mode on the same pixels in other units, scaled as it does and taken as they are."""
    for unit in UNITS:
        for scaled in (True, False):
            found = images.mean(partial(ours, mode="streaming", n=passes, scale_inputs=scaled), unit)
            yield {**images.about, "unit": unit, "scaled": scaled, "passes": passes, **found}


def adam_for(seconds: float, module: nn.Module, x: Tensor, y: Tensor, rate: float) -> float:
    """Mini-batch Adam from torch's own start, pass by pass until so many CPU seconds are over; the seconds it took."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    began, generator = time.process_time(), torch.Generator().manual_seed(0)
    while time.process_time() < began + seconds:
        for rows in torch.randperm(len(x), generator=generator).split(ADAM_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    return time.process_time() - began


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
    held, units = [], []
    for kind in s.layers:
        images = HeldOut(kind, s.folds, s.seeds)
        for rows, found in ((held, held_out(images, runs)), (units, in_units(images, s.few_passes))):
            for row in found:
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    machine = describe(torch.device("cpu"))
    report = {"machine": machine, "digits": digits, "held_out": held, "units": units, "sequences": sequences}
    s.out.write_text(dumps(rounded(report, 4)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
