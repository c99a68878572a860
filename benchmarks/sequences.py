"""Recurrent networks on recorded sequences, beside mini-batch Adam: ``python benchmarks/sequences.py``.

The sequences lie in the package aeon, of which files are read alone: ``pip install aeon --no-deps --target FOLDER``,
then ``--aeon FOLDER/aeon``. Settings were looked at on some sets (``LOOKED_AT``), the others were run once.

Training and test part are put together and dealt into parts, each held out in turn. Streaming mode has its defaults;
Adam has torch's own layer and start, standardised features, a rate that falls linearly, as many CPU seconds, and is
shown with the rate that is best on these very parts. Results go to docs/results/sequences.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded
from recurrent import ADAM_RATES, LAYERS, accuracy, network, trained

from dladmm.training.run_folder import describe

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "sequences.json"
LOOKED_AT = ("BasicMotions", "GunPoint", "ItalyPowerDemand", "JapaneseVowels_eq")
ASIDE = ("ArrowHead", "OSULeaf", "PickupGestureWiimoteZ_eq")
LEAST_RATE = 0.02
"""Of Adam's first rate, at its end."""

Fit = Callable[[nn.Module, Tensor, Tensor], float]
"""Trains a network on sequences and classes; the CPU seconds it took."""


def read(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Sequences (N, steps, features) and classes: features are parted by colons, the class follows the last one."""
    rows = [
        line.split(":")
        for part in ("TRAIN", "TEST")
        for line in (folder / "datasets" / "data" / name.removesuffix("_eq") / f"{name}_{part}.ts")
        .read_text(encoding="utf-8")
        .splitlines()
        if line.strip() and line[0] not in "#@"
    ]
    x = torch.tensor([[[float(v) for v in channel.split(",")] for channel in row[:-1]] for row in rows])
    names = sorted({row[-1].strip() for row in rows})
    return x.transpose(1, 2).contiguous(), torch.tensor([names.index(row[-1].strip()) for row in rows])


def adam(seconds: float, rate: float) -> Fit:
    def fit(module: nn.Module, x: Tensor, y: Tensor) -> float:
        optimizer = torch.optim.Adam(module.parameters(), lr=rate)
        size = min(64, max(16, len(x) // 16))
        began, generator, done = time.process_time(), torch.Generator().manual_seed(0), 0.0
        while done < 1:
            optimizer.param_groups[0]["lr"] = rate * max(LEAST_RATE, 1 - done)
            for rows in torch.randperm(len(x), generator=generator).split(size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimizer.step()
            done = (time.process_time() - began) / seconds
        return done * seconds

    return fit


def held_out(
    kind: str, x: Tensor, y: Tensor, fit: Fit, *, folds: int, standardised: bool
) -> dict[str, float]:
    part = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)) * folds // len(x)
    found, seconds = [], []
    for k in range(folds):
        torch.manual_seed(k)
        kept, module = part != k, network(kind, x.shape[2], 64, int(y.max()) + 1)
        shift, scale = x[kept].mean((0, 1)), x[kept].std((0, 1)).clamp_min(1e-6)
        given = (x - shift) / scale if standardised else x
        seconds.append(fit(module, given[kept], y[kept]))
        found.append(accuracy(module, given[~kept], y[~kept]))
    return {"accuracy": statistics.mean(found), "seconds": statistics.mean(seconds)}


def measured(kind: str, x: Tensor, y: Tensor, passes: int, folds: int) -> dict[str, Any]:
    def ours(module: nn.Module, x: Tensor, y: Tensor) -> float:
        return sum(trained(module, x, y, "streaming", passes))

    own = held_out(kind, x, y, ours, folds=folds, standardised=False)
    others = {
        rate: held_out(kind, x, y, adam(own["seconds"], rate), folds=folds, standardised=True)
        for rate in ADAM_RATES
    }
    rate = max(others, key=lambda each: others[each]["accuracy"])
    return {**own, "adam_accuracy": others[rate]["accuracy"], "adam_rate": rate}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aeon", type=Path, help="the folder of the package, where it cannot be imported")
    parser.add_argument("--sets", nargs="*", default=[*LOOKED_AT, *ASIDE])
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=["GRU", "LSTM"])
    parser.add_argument("--passes", type=int, default=25)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    s = parser.parse_args(arguments)
    spec = None if s.aeon else find_spec("aeon")
    if s.aeon is None and (spec is None or spec.origin is None):
        parser.error(
            "aeon is not installed; pip install aeon --no-deps --target FOLDER, then --aeon FOLDER/aeon."
        )
    folder = s.aeon or Path(spec.origin).parent  # type: ignore[union-attr, arg-type]
    torch.set_num_threads(1)
    rows = []
    for name in s.sets:
        x, y = read(folder, name)
        about = {"set": name, "rows": len(x), "steps": x.shape[1], "features": x.shape[2]}
        about |= {"classes": int(y.max()) + 1, "looked_at": name in LOOKED_AT}
        for kind in s.layers:
            rows.append({**about, "layer": kind, **measured(kind, x, y, s.passes, s.folds)})
            print(rows[-1], file=sys.stderr, flush=True)
    report = {"machine": describe(torch.device("cpu")), "passes": s.passes, "folds": s.folds, "rows": rows}
    s.out.write_text(dumps(rounded(report, 4)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
