"""Small tables: streaming mode beside scikit-learn's MLPClassifier, accuracy, log loss and seconds.

    python benchmarks/tabular_streaming.py                      # the library's defaults, 14 tables, 3 folds
    python benchmarks/tabular_streaming.py --grid --json        # choose settings on folds 0 and 1, report fold 2
    python benchmarks/tabular_streaming.py --tables pima --passes 20 --batch 64 --l2 1

Both have one hidden layer of 100 units and nothing else set but the seed. Streaming mode brings its inputs to a common
scale itself; scikit-learn's network stands behind StandardScaler, whose time is counted. Tables of more than --rows
rows are cut to a random sample of so many, the same for both. The folds are stratified, three, shuffled with seed 0.
On every fold the methods run one after the other in this process, on one thread, after a run that is thrown away;
seconds are those of the processor, so that other work on the machine does not count.

With --grid the number of passes, the batch, label smoothing, the planned end and an l2 penalty are varied. The rule is
chosen on folds 0 and 1: the best mean accuracy of those whose median time is at most --most of scikit-learn's. Only
then fold 2 is looked at, for the rule and for the library's defaults. --json prints one JSON object to standard output
and the tables to standard error.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from compact_json import dumps, rounded
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import dladmm
from dladmm.callbacks import Callback
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.training.run_folder import describe

TABLES = (
    "buggyCrx", "pima", "coil2000", "pendigits", "wine-quality-white", "yeast", "cmc", "kr-vs-kp", "mfeat-zernike",
    "spambase", "ring", "churn", "dna", "soybean",
)  # fmt: skip
FOLDS, HIDDEN, SCIKIT = 3, 100, "scikit-learn"


class Fold(NamedTuple):
    """Rows to train on and rows to measure on."""

    table: str
    number: int
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    x_test: np.ndarray[Any, Any]
    y_test: np.ndarray[Any, Any]


class Variant(NamedTuple):
    """Settings of streaming mode; None is the library's default."""

    passes: int | None = None
    planned: bool | None = None
    smoothing: float | None = None
    batch: int | str | None = None
    l2: float | None = None

    @property
    def name(self) -> str:
        said = [f"{key} {value}" for key, value in self._asdict().items() if value is not None]
        return ", ".join(said) or "defaults"

    def batch_size(self, rows: int) -> int | None:
        """Rows of a batch: a number, or ``rows/8`` between 32 and 256."""
        if isinstance(self.batch, str):
            return min(256, max(32, rows // int(self.batch.removeprefix("rows/"))))
        return self.batch

    def options(self, rows: int) -> dict[str, Any]:
        constants = {"planned": self.planned, "smoothing": self.smoothing}
        streaming = StreamingOptions(**{key: value for key, value in constants.items() if value is not None})
        found: dict[str, Any] = {"mode": "streaming", "streaming": streaming}
        if self.passes is not None:
            found["max_iter"] = self.passes
        if self.batch is not None:
            found["batch_size"] = self.batch_size(rows)
        if self.l2 is not None:
            found["regularizer"] = {"name": "l2", "strength": self.l2} if self.l2 else None
        return found


DEFAULTS = Variant()


# The data ----------------------------------------------------------------------------------------------------------


def read_table(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features and class numbers of a table of the Penn Machine Learning Benchmarks."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        names, *rows = (line.rstrip("\n").split("\t") for line in file)
    target = names.index("target")
    _, y = np.unique([row.pop(target) for row in rows], return_inverse=True)
    return np.array(rows, dtype=np.float64), y


def folds_of(name: str, settings: argparse.Namespace) -> list[Fold]:
    x, y = read_table(settings.data / f"{name}.tsv.gz")
    if len(x) > settings.rows:
        kept = np.sort(np.random.default_rng(0).permutation(len(x))[: settings.rows])
        x, (_, y) = x[kept], np.unique(y[kept], return_inverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer rows than folds
        splits = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y))
    return [
        Fold(name, number, x[train], y[train], x[test], y[test])
        for number, (train, test) in enumerate(splits)
        if number in settings.folds
    ]


# One run -----------------------------------------------------------------------------------------------------------


def measured(fold: Fold, chances: np.ndarray[Any, Any], seconds: float) -> dict[str, Any]:
    """Accuracy, log loss (chances at least 1e-15, as scikit-learn clips them) and seconds."""
    own = np.clip(chances[np.arange(len(chances)), fold.y_test], 1e-15, 1.0)
    accuracy = float((chances.argmax(1) == fold.y_test).mean())
    return {"accuracy": accuracy, "log_loss": float(-np.log(own).mean()), "seconds": seconds}


def run_scikit_learn(fold: Fold, seed: int) -> dict[str, Any]:
    model = make_pipeline(StandardScaler(), MLPClassifier(random_state=seed))
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(fold.x, fold.y)
    seconds = time.process_time() - began
    found = model.predict_proba(fold.x_test)
    chances = np.zeros((len(found), int(max(fold.y.max(), fold.y_test.max())) + 1))
    chances[:, model.classes_] = found
    return measured(fold, chances, seconds) | {"passes": model[-1].n_iter_}


class Snapshots(Callback):
    """Chances of the test rows after some passes: a run without a planned end is good at any of them."""

    def __init__(self, fold: Fold, at: Iterable[int]) -> None:
        self.fold, self.at, self.found = fold, frozenset(at), dict[int, dict[str, Any]]()

    def on_epoch_end(self, trainer: Any) -> None:
        passes = trainer.history.n_iter
        if passes not in self.at:
            return
        seconds = time.process_time() - self.began
        params = trainer.scaling.fold(trainer.state.params) if trainer.scaling else trainer.state.params
        network = trainer.engine.chain.to_module(params)
        self.found[passes] = measured(self.fold, chances_of(network, self.fold), seconds) | {"passes": passes}
        self.began += time.process_time() - self.began - seconds

    def on_train_begin(self, trainer: Any) -> None:
        self.began = self.start


def chances_of(network: torch.nn.Module, fold: Fold) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        out = network(torch.as_tensor(fold.x_test, dtype=torch.float32)).double().softmax(1).numpy()
    return np.asarray(out)


def run_streaming(
    fold: Fold, variant: Variant, seed: int, at: Iterable[int] = ()
) -> dict[int, dict[str, Any]]:
    """What was measured, by the number of passes: the last one, and those of ``at``."""
    classes = int(max(fold.y.max(), fold.y_test.max())) + 1
    network = dladmm.mlp([fold.x.shape[1], HIDDEN, classes])
    snapshots = Snapshots(fold, at)
    callbacks = [snapshots] if snapshots.at else []
    snapshots.start = began = time.process_time()
    options = variant.options(len(fold.x))
    result = dladmm.train(
        network, fold.x, fold.y, random_state=seed, device="cpu", callbacks=callbacks, **options
    )
    seconds = time.process_time() - began
    passes = result.history.n_iter
    last = measured(fold, chances_of(result.module, fold), seconds) | {"passes": passes}
    return snapshots.found | ({} if passes in snapshots.found else {passes: last})


# Many runs ---------------------------------------------------------------------------------------------------------


def grid(settings: argparse.Namespace) -> list[Variant]:
    """All variants, shorter ones first."""
    axes = (settings.passes, settings.planned, settings.smoothing, settings.batch, settings.l2)
    return [Variant(*point) for point in product(*axes)]


def run_variants(fold: Fold, variants: Sequence[Variant], seed: int) -> dict[str, dict[str, Any]]:
    """Every variant on one fold; lengths of an unplanned one are looked up in its longest run."""
    found: dict[str, dict[str, Any]] = {}
    for variant in variants:
        if variant.name in found:
            continue
        same = [v for v in variants if v._replace(passes=None) == variant._replace(passes=None)]
        if variant.planned is not False or len(same) == 1:
            (found[variant.name],) = run_streaming(fold, variant, seed).values()
            continue
        lengths = {v.passes or 10: v for v in same}
        for passes, what in run_streaming(
            fold, variant._replace(passes=max(lengths)), seed, at=lengths
        ).items():
            found[lengths[passes].name] = what
    return found


def measure_folds(settings: argparse.Namespace, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """One row for every table, fold and method."""
    rows: list[dict[str, Any]] = []
    for place, name in enumerate(settings.tables, 1):
        for fold in folds_of(name, settings):
            if not rows:  # first use of torch and of scikit-learn in this process
                run_streaming(fold, Variant(passes=2), settings.seed)
                run_scikit_learn(fold, settings.seed)
            found = {SCIKIT: run_scikit_learn(fold, settings.seed)}
            found |= run_variants(fold, variants, settings.seed)
            where = {"table": name, "fold": fold.number, "rows": len(fold.x)}
            rows += [where | {"method": method} | what for method, what in found.items()]
            print(
                f"{place} of {len(settings.tables)}: {name}, fold {fold.number}", file=sys.stderr, flush=True
            )
    return rows


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every method: mean accuracy and log loss over tables, median seconds and median ratio to scikit-learn's."""
    theirs = {(row["table"], row["fold"]): row for row in rows if row["method"] == SCIKIT}
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        beside = [theirs[row["table"], row["fold"]] for row in own]
        pairs = list(zip(own, beside, strict=True))
        found.append(
            {
                "method": method,
                "accuracy": statistics.fmean(row["accuracy"] for row in own),
                "log_loss": statistics.fmean(row["log_loss"] for row in own),
                "seconds": statistics.median(row["seconds"] for row in own),
                "ratio": statistics.median(mine["seconds"] / other["seconds"] for mine, other in pairs),
                "not_below": sum(mine["accuracy"] >= other["accuracy"] for mine, other in pairs),
                "runs": len(own),
            }
        )
    return found


def chosen(summary: list[dict[str, Any]], most: float) -> str:
    """The most accurate variant whose median time is at most this share of scikit-learn's; the fastest if none is."""
    own = [row for row in summary if row["method"] != SCIKIT]
    fast = [row for row in own if row["ratio"] <= most] or [min(own, key=lambda row: row["ratio"])]
    return str(max(fast, key=lambda row: row["accuracy"])["method"])


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "command": settings.command,
        "machine": describe("cpu"),
        "settings": {key: value for key, value in vars(settings).items() if key not in ("command", "data")},
    }
    variants = list(dict.fromkeys([DEFAULTS, *grid(settings)]))
    if settings.grid:
        asked = settings.folds
        settings.folds = [0, 1]
        rows = measure_folds(settings, variants)
        summary = summarised(rounded(rows))
        name = chosen(summary, settings.most)
        report |= {"choosing": {"runs": rounded(rows), "summary": rounded(summary), "chosen": name}}
        settings.folds = [2]
        variants = list(dict.fromkeys([DEFAULTS, *(v for v in variants if v.name == name)]))
        reported = rounded(measure_folds(settings, variants))
        settings.folds = asked
    else:
        reported = rounded(measure_folds(settings, variants))
    return report | {"runs": reported, "summary": rounded(summarised(reported))}


# Showing -----------------------------------------------------------------------------------------------------------


def summary_lines(summary: list[dict[str, Any]], title: str) -> list[str]:
    lines = [title, f"{'accuracy':>9} {'log loss':>9} {'seconds':>8} {'ratio':>6} {'not below':>10}  method"]
    for row in sorted(summary, key=lambda row: -row["accuracy"]):
        counted = f"{row['not_below']}/{row['runs']}"
        lines.append(
            f"{row['accuracy']:9.4f} {row['log_loss']:9.4f} {row['seconds']:8.3f} {row['ratio']:6.2f} {counted:>10}"
            f"  {row['method']}"
        )
    return lines


def table_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Accuracy, log loss and seconds by table, means over folds; scikit-learn first."""
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows):
        lines.append(name)
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if (row["table"], row["method"]) == (name, method)]
            means = {
                key: statistics.fmean(row[key] for row in own)
                for key in ("accuracy", "log_loss", "seconds", "passes")
            }
            lines.append(
                f"{means['accuracy']:9.4f} {means['log_loss']:9.4f} {means['seconds']:8.3f} "
                f"{means['passes']:6.0f} passes  {method}"
            )
    return lines


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    if "choosing" in report:
        choosing = report["choosing"]
        lines += [*summary_lines(choosing["summary"], "folds 0 and 1"), f"chosen: {choosing['chosen']}", ""]
    of = report["settings"]
    title = f"{len(of['tables'])} tables, hidden ({HIDDEN},), one thread; seconds and ratio are medians"
    lines += [*table_lines(report["runs"]), "", *summary_lines(report["summary"], title)]
    return "\n".join(lines)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    def several(read: Any) -> Any:
        return lambda text: [read(part) for part in text.split(",") if part]

    def flag(text: str) -> bool | None:
        return {"yes": True, "no": False, "default": None}[text]

    def batch(text: str) -> int | str | None:
        return None if text == "default" else text if text.startswith("rows/") else int(text)

    shared = Path(__file__).resolve().parents[2] / "shared/tabular"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("DLADMM_TABULAR", shared)) / "classification"
    )
    parser.add_argument("--tables", type=several(str), default=list(TABLES))
    parser.add_argument("--rows", type=int, default=4000, help="larger tables are cut to so many rows")
    parser.add_argument("--folds", type=several(int), default=[0, 1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grid", action="store_true", help="choose settings on folds 0 and 1, report fold 2")
    parser.add_argument("--most", type=float, default=0.5, help="of scikit-learn's time, for the chosen rule")
    parser.add_argument("--passes", type=several(int))
    parser.add_argument("--planned", type=several(flag), help="yes,no")
    parser.add_argument("--smoothing", type=several(float))
    parser.add_argument("--batch", type=several(batch), help="numbers, rows/8 or default")
    parser.add_argument("--l2", type=several(float), help="strengths of the penalty for a summed loss")
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    whole: dict[str, list[Any]] = {
        "passes": [10, 20, 40], "planned": [True, False], "smoothing": [0.0, 0.1], "batch": [None, "rows/8"],
        "l2": [None],
    }  # fmt: skip
    for name, values in whole.items():
        if getattr(settings, name) is None:
            setattr(settings, name, values if settings.grid else [None])
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    settings.command = f"python benchmarks/tabular_streaming.py {given}".strip()
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    settings = parsed(arguments)
    with threadpool_limits(1):
        report = measure(settings)
    print(table(report), file=sys.stderr if settings.json else sys.stdout)
    if settings.json:
        print(dumps(report))


if __name__ == "__main__":
    main()
