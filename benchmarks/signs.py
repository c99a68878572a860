"""Networks of signs beside the straight-through estimator as people use it: the rows of docs/signs.md.

    python benchmarks/signs.py --data carry --device cuda --workers 4 --out signs.jsonl      # about five minutes
    python benchmarks/signs.py --rows digits --device cpu --out signs-digits.jsonl
    python benchmarks/signs.py --report signs.jsonl signs-digits.jsonl --out docs/results/signs-h200.json

- *ours*: ``dladmm.MLPClassifier(hidden, activation="sign", weights=...)`` with its defaults and the row's passes;
  *ours, fewer passes* on digits.
- *straight-through*: benchmarks/straight_through.py, the best of a grid of 6 (rate 1e-3, 3e-3, 1e-2; batch 128, 512)
  on the last tenth of the training images (5,000 at most), one seed; on digits, whose tenth has 143 images, by five
  folds. Then all training images and five seeds; on digits, whose test set has 360 images, all images in five folds,
  so that the estimator's setting was chosen on images that it is reported on. The row of 2,048 units takes the setting
  chosen for the row of +1 and -1 with 1,000. It has 60 passes of either, a minute or two on an H200.
- *straight-through, smoothed*: the same setting with labels smoothed by 0.1, as ours are for 50,000 rows.

Test images are reported, never chosen by. Every finished run is a line of --out at once; runs that are there already
are not made again. --workers processes share the device, so that seconds are those of a shared device; on a CPU they
are the processor's own, of all threads together, which other programs do not lengthen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from compact_json import dumps, rounded
from plain_torch import Images, read_images
from straight_through import Network, Setting, clock_of, fit

RATES, BATCHES, HELD_OUT, SEEDS = (1e-3, 3e-3, 1e-2), (128, 512), 5000, 5
OURS, THEIRS, SMOOTHED = "ours", "straight-through", "straight-through, smoothed"
FEWER = "ours, fewer passes"
LEVELS = {"name": "quantised", "levels": 4, "low": -1.0, "high": 1.0}


@dataclass(frozen=True)
class Row:
    """A row of the table; ``chosen_for`` is the row whose chosen setting the straight-through estimator takes.

    ``fewer`` are passes of a second run of ours, ``folds`` how many parts of the training images are held out in turn.
    """

    title: str
    data: str
    hidden: tuple[int, ...]
    passes: int = 20
    activation: Any = "sign"
    weights: Any = None
    levels: tuple[int, int] = (2, 0)
    chosen_for: str | None = None
    seeds: int = SEEDS
    fewer: int | None = None
    folds: int = 1


ROWS = {
    "real": Row("MNIST, 1000-1000, sign units, real W", "mnist", (1000, 1000)),
    "binary": Row(
        "MNIST, 1000-1000, sign units, hidden W of +1 / -1", "mnist", (1000, 1000), weights="binary", levels=(2, 2)
    ),
    "fashion": Row("Fashion-MNIST, 1000-1000, sign units, real W", "fashion", (1000, 1000)),
    "levels": Row(
        "MNIST, 1000-1000, 4-level units, 2-bit W", "mnist", (1000, 1000), activation=LEVELS, weights=2, levels=(4, 4)
    ),
    "wide": Row(
        "MNIST, 2048-2048-2048, sign units, +1 / -1 but the last layer", "mnist", (2048,) * 3, passes=60,
        weights="binary", levels=(2, 2), chosen_for="binary",
    ),
    "digits": Row("digits, 200-200, sign units, real W", "digits", (200, 200), fewer=8, folds=5),
}  # fmt: skip


def digits() -> Images:
    """The library's own split of scikit-learn's digits."""
    from dladmm import datasets

    data = datasets.load("digits")
    x, x_test = (torch.as_tensor(part, dtype=torch.float32) for part in (data.x_train, data.x_test))
    y, y_test = (torch.as_tensor(part, dtype=torch.long) for part in (data.y_train, data.y_test))
    return Images(x, y, x_test, y_test)


def images_of(row: Row, settings: argparse.Namespace) -> Images:
    if row.data == "digits":
        return Images(*(part.to(settings.device) for part in digits()))
    return read_images(settings.data / f"{row.data}.npz", settings.device, settings.samples)


class Log:
    """Finished runs, one line each; what is there already is not made again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        # A worker may be writing the last one
        return [json.loads(line) for line in lines if line.endswith("}")]

    def found(self, **wanted: Any) -> list[dict[str, Any]]:
        return [run for run in self.runs() if all(run[key] == value for key, value in wanted.items())]

    def add(self, **run: Any) -> None:
        line = json.dumps(rounded(run))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, file=sys.stderr, flush=True)


def make_ours(name: str, row: Row, settings: argparse.Namespace, log: Log) -> None:
    """The estimator with its defaults, on all training images."""
    from dladmm import MLPClassifier

    images = images_of(row, settings)
    parts = [[part.cpu().numpy() for part in each] for each in reported(images, row.folds)]
    x, y = parts[0][:2]
    passes, hidden = settings.passes or row.passes, settings.hidden or row.hidden

    def made(seed: int, max_iter: int) -> Any:
        return MLPClassifier(
            hidden,
            row.activation,
            weights=row.weights,
            max_iter=max_iter,
            random_state=seed,
            device=settings.device,
        )

    made(0, 1).fit(x[:2000], y[:2000])  # the first use of every kernel
    asked = [(OURS, passes), *([] if row.fewer is None else [(FEWER, settings.passes or row.fewer)])]
    for method, max_iter in asked:
        for seed in range(min(row.seeds, settings.seeds)):
            if log.found(row=name, method=method, seed=seed):
                continue
            clock, found = clock_of(images.x), []
            for x, y, x_test, y_test in parts:
                began = clock()
                fitted = made(seed, max_iter).fit(x, y)
                seconds = clock() - began
                found.append((fitted.score(x_test, y_test), seconds))
            log.add(row=name, method=method, kind="test", setting=None, seed=seed, passes=max_iter,
                    **averaged(found))  # fmt: skip


def averaged(found: list[tuple[float, float]]) -> dict[str, float]:
    """Means of accuracies and seconds."""
    return {
        name: mean(each) for name, each in zip(("accuracy", "seconds"), zip(*found, strict=True), strict=True)
    }


def reported(images: Images, folds: int) -> list[Images]:
    """What is reported: the test images, or all images in so many folds where they are few."""
    if folds == 1:
        return [images]
    x, y = torch.cat([images.x, images.x_test]), torch.cat([images.y, images.y_test])
    return held_out(Images(x, y, x, y), folds)


def held_out(images: Images, folds: int) -> list[Images]:
    """The training images without some of them, which are tested on: the last tenth, or a part in turn of so many."""
    if folds == 1:
        return [images.holding_out(min(HELD_OUT, len(images.x) // 10))]
    order = torch.randperm(len(images.x), generator=torch.Generator().manual_seed(0)).to(images.x.device)
    parts = order.chunk(folds)
    rest = [torch.cat([part for j, part in enumerate(parts) if j != i]) for i in range(folds)]
    return [
        Images(images.x[kept], images.y[kept], images.x[out], images.y[out])
        for kept, out in zip(rest, parts, strict=True)
    ]


def make_theirs(
    name: str, row: Row, settings: argparse.Namespace, log: Log, method: str = THEIRS, smoothing: float = 0.0
) -> None:
    """The grid on held-out images, then the chosen setting on all."""
    images = images_of(row, settings)
    held = held_out(images, row.folds)
    passes, hidden = settings.passes or row.passes, settings.hidden or row.hidden
    network = Network(hidden, *row.levels)
    for rate in RATES if row.chosen_for is None and method == THEIRS else ():
        for batch in BATCHES:
            setting = Setting(rate, batch)
            if not log.found(row=name, kind="grid", setting=list(setting)):
                found = [fit(part, network, setting, passes, 0) for part in held]
                log.add(row=name, method=THEIRS, kind="grid", setting=setting, seed=0, passes=passes,
                        **averaged(found))  # fmt: skip
    grid = log.found(row=row.chosen_for or name, kind="grid")
    while len(grid) < len(RATES) * len(BATCHES):  # another worker's
        time.sleep(1)
        grid = log.found(row=row.chosen_for or name, kind="grid")
    best = Setting(*max(grid, key=lambda run: run["accuracy"])["setting"])._replace(smoothing=smoothing)
    for seed in range(min(row.seeds, settings.seeds)):
        if not log.found(row=name, method=method, kind="test", seed=seed):
            found = [fit(part, network, best, passes, seed) for part in reported(images, row.folds)]
            log.add(row=name, method=method, kind="test", setting=best, seed=seed, passes=passes,
                    **averaged(found))  # fmt: skip


def make_smoothed(name: str, row: Row, settings: argparse.Namespace, log: Log) -> None:
    """The chosen setting with smoothed labels."""
    make_theirs(name, row, settings, log, SMOOTHED, 0.1)


PARTS = {"ours": make_ours, "theirs": make_theirs, "smoothed": make_smoothed}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for every row and method: mean, lowest, seconds, seeds."""
    lines = []
    for name, row in ROWS.items():
        for method in (OURS, FEWER, THEIRS, SMOOTHED):
            own = [run for run in runs if (run["row"], run["method"], run["kind"]) == (name, method, "test")]
            if own:
                accuracies = [run["accuracy"] for run in own]
                lines.append(
                    {"row": name, "title": row.title, "method": method, "setting": own[0]["setting"]}
                    | {"mean": mean(accuracies), "lowest": min(accuracies), "seeds": len(own)}
                    | {"passes": own[0]["passes"], "seconds": mean(run["seconds"] for run in own)}
                )
    return lines


def report(settings: argparse.Namespace) -> None:
    """One JSON file of the finished runs."""
    from dladmm.training.run_folder import describe

    runs = [run for path in settings.report for run in Log(path).runs()]
    found = {
        "machine": json.loads(settings.machine) if settings.machine else describe(settings.device),
        "command": settings.made_by or settings.command, "summary": rounded(summary(runs)), "runs": runs,
    }  # fmt: skip
    settings.out.write_text(dumps(found) + "\n", encoding="utf-8")


def at_once(settings: argparse.Namespace, argv: list[str]) -> None:
    """Every row's parts as processes of their own, so many at a time; what can be missed comes last."""
    units = [(row, part) for row in settings.rows for part in settings.parts if part != "smoothed"]
    units += [(row, "smoothed") for row in settings.rows if "smoothed" in settings.parts]
    running: list[subprocess.Popen[bytes]] = []
    for row, part in units:
        while len([process for process in running if process.poll() is None]) >= settings.workers:
            time.sleep(0.5)
        words = [sys.executable, __file__, *argv, "--workers", "1", "--rows", row, "--parts", part]
        running.append(subprocess.Popen(words))
    for process in running:
        process.wait()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), default=[r for r in ROWS if r != "digits"]
    )
    parser.add_argument("--parts", type=lambda text: text.split(","), default=[*PARTS])
    parser.add_argument(
        "--data", type=Path, default=Path("carry"), help="folder with mnist.npz and fashion.npz"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--report", type=Path, nargs="+", help="write the JSON of these finished runs to --out"
    )
    parser.add_argument("--machine", help="with --report: the description of the machine, JSON")
    parser.add_argument("--made-by", help="with --report: the command that made the runs")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--passes", type=int, help="fewer, to try it out")
    parser.add_argument(
        "--hidden", type=lambda text: tuple(map(int, text.split(","))), help="smaller, to try it out"
    )
    parser.add_argument("--samples", type=int, help="fewer training images, to try it out")
    given = sys.argv[1:] if argv is None else argv
    settings = parser.parse_args(given)
    settings.command = f"python benchmarks/signs.py {' '.join(given)}"
    for asked, known in ((settings.rows, ROWS), (settings.parts, PARTS)):
        unknown = [name for name in asked if name not in known]
        if unknown:
            parser.error(f"unknown {unknown[0]!r}; known: {', '.join(known)}")
    if settings.report:
        report(settings)
    elif settings.workers > 1:
        at_once(settings, given)
    else:
        run(settings)


def run(settings: argparse.Namespace) -> None:
    """The rows and parts that were asked for, in this process."""
    log = Log(settings.out)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # for both: streaming mode takes it by itself
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in settings.rows:
                for part in settings.parts:
                    PARTS[part](name, ROWS[name], settings, log)
    finally:
        torch.set_float32_matmul_precision(before)


if __name__ == "__main__":
    main()
