"""The default estimators on many tables, beside scikit-learn's and plain torch: scores, log loss, seconds, ranks.

    python benchmarks/tabular.py --out docs/results/tabular-defaults.json        # all tables, fold 2
    python benchmarks/tabular.py --folds 0,1 --methods ours,standardised         # where settings were chosen
    python benchmarks/tabular.py --tables pima,car --folds 0 --seed 3

Every method has its defaults, networks one hidden layer of 100 units; only the seed is set. "ours" takes X as it is.
"standardised" is scikit-learn's MLP behind StandardScaler, "raw" the same without, "adam" a plain torch loop on
standardised inputs (and targets): Adam, rate 1e-3, 50 epochs, batches of a sixteenth of the rows, 32 to 256. A linear
model is logistic or ridge regression behind StandardScaler. Larger tables are cut to 4,000 random rows. Folds are
three, shuffled with seed 0, stratified for classes; settings were chosen on folds 0 and 1, so fold 2 is reported.

    python benchmarks/tabular.py --methods realmlp --beside docs/results/tabular-defaults.json

runs RealMLP with its tuned defaults, where pytabkit is installed, and ranks it among the recorded runs of its tables.

On every fold all methods run one after the other in this process, on one thread, after runs that are thrown away;
seconds are those of the processor. A tie is within .002. Chances are clipped at 1e-7 for the log loss. With --depth
20 of the classification tables are run with eight hidden layers of 100 too.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from compact_json import dumps, rounded
from scipy.stats import rankdata
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import nn

import dladmm
from dladmm.training.run_folder import describe

Array = np.ndarray[Any, Any]

FOLDS, TIE, CLIP, EPOCHS = 3, 0.002, 1e-7, 50
METHODS = ("ours", "standardised", "raw", "adam", "linear", "boosting", "forest")
DEEP_METHODS = ("ours", "standardised", "adam")
DEEP_TABLES = (
    "GAMETES_Heterogeneity_20atts_1600_Het_0.4_0.2_50_EDM-2_001", "allbp", "analcatdata_dmft",
    "analcatdata_bankruptcy", "banana", "buggyCrx", "car", "cmc", "glass", "haberman", "led7", "mfeat-zernike",
    "movement_libras", "pendigits", "pima", "soybean", "spambase", "spectf", "wine-quality-white", "ring",
)  # fmt: skip


class Fold(NamedTuple):
    """Rows to train on and rows to measure on; y holds class numbers or real targets."""

    table: str
    kind: str
    number: int
    x: Array
    y: Array
    x_test: Array
    y_test: Array


class Adam(BaseEstimator):  # type: ignore[misc]
    """What people write by hand: a torch loop with Adam on mini-batches."""

    def __init__(self, hidden: tuple[int, ...], classes: bool, seed: int) -> None:
        self.hidden, self.classes, self.seed = hidden, classes, seed

    def fit(self, X: Array, y: Array) -> Adam:
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.as_tensor(X, dtype=torch.float32)
        if self.classes:
            self.classes_, y = np.unique(y, return_inverse=True)
        target = torch.as_tensor(y) if self.classes else torch.as_tensor(y, dtype=torch.float32)[:, None]
        sizes = [x.shape[1], *self.hidden, len(self.classes_) if self.classes else 1]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            layers = [part for n_in, n_out in pairwise(sizes) for part in (nn.Linear(n_in, n_out), nn.ReLU())]
        self.network_ = nn.Sequential(*layers[:-1])
        optimizer = torch.optim.Adam(self.network_.parameters(), lr=1e-3)
        loss = nn.CrossEntropyLoss() if self.classes else nn.MSELoss()
        size = min(256, max(32, len(x) // 16))
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), generator=generator).split(size):
                optimizer.zero_grad()
                loss(self.network_(x[rows]), target[rows]).backward()
                optimizer.step()
        return self

    @torch.no_grad()
    def _output(self, X: Array) -> torch.Tensor:
        found: torch.Tensor = self.network_(torch.as_tensor(X, dtype=torch.float32)).double()
        return found

    def predict_proba(self, X: Array) -> Array:
        return np.asarray(self._output(X).softmax(1))

    def predict(self, X: Array) -> Array:
        return np.asarray(self._output(X)[:, 0])


def estimator(method: str, kind: str, hidden: tuple[int, ...], seed: int) -> Any:
    """The method with its defaults."""
    classes = kind == "classification"
    network: dict[str, Any] = {"hidden_layer_sizes": hidden, "random_state": seed}
    if method == "ours":
        return (dladmm.MLPClassifier if classes else dladmm.MLPRegressor)(device="cpu", **network)
    if method in ("standardised", "raw"):
        made = (MLPClassifier if classes else MLPRegressor)(**network)
        return made if method == "raw" else make_pipeline(StandardScaler(), made)
    if method == "adam":
        scaled = make_pipeline(StandardScaler(), Adam(hidden, classes, seed))
        return scaled if classes else TransformedTargetRegressor(scaled, transformer=StandardScaler())
    if method == "realmlp":  # not among the defaults: python -m pip install "pytabkit[models]"
        from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

        made = RealMLP_TD_Classifier if classes else RealMLP_TD_Regressor
        return made(device="cpu", random_state=seed, n_threads=1)
    if method == "linear":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000) if classes else Ridge())
    if method == "boosting":
        return (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(
            random_state=seed
        )
    return (RandomForestClassifier if classes else RandomForestRegressor)(random_state=seed)


# The data ----------------------------------------------------------------------------------------------------------


def read_index(folder: Path) -> dict[str, dict[str, str]]:
    """What ``index.csv`` says of every table, by name."""
    with open(folder / "index.csv", newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def read_table(folder: Path, entry: dict[str, str], rows: int) -> tuple[Array, Array]:
    """Features and targets; columns that are not numbers are numbered by their sorted values."""
    with gzip.open(folder / entry["kind"] / f"{entry['name']}.tsv.gz", "rt", encoding="utf-8") as file:
        names, *lines = (line.rstrip("\n").split("\t") for line in file)
    cells = np.array(lines)

    def numbers(column: Array) -> Array:
        try:
            return column.astype(np.float64)
        except ValueError:
            return np.unique(column, return_inverse=True)[1].astype(np.float64)

    columns = [numbers(column) for column in cells.T]
    y = columns.pop(names.index(entry["target"]))
    x = np.stack(columns, axis=1)
    if len(x) > rows:
        kept = np.random.default_rng(0).permutation(len(x))[:rows]
        x, y = x[kept], y[kept]
    return x, np.unique(y, return_inverse=True)[1] if entry["kind"] == "classification" else y


def folds_of(settings: argparse.Namespace, entry: dict[str, str]) -> Iterator[Fold]:
    x, y = read_table(settings.data, entry, settings.rows)
    split = StratifiedKFold if entry["kind"] == "classification" else KFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer rows than folds
        splits = list(split(FOLDS, shuffle=True, random_state=0).split(x, y))
    for number in settings.folds:
        train, test = splits[number]
        yield Fold(entry["name"], entry["kind"], number, x[train], y[train], x[test], y[test])


# One run -----------------------------------------------------------------------------------------------------------


def measured(fold: Fold, method: str, hidden: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Score (accuracy, or R^2), log loss, seconds of ``fit``, and whether ours warned."""
    model = estimator(method, fold.kind, hidden, seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = time.process_time()
        model.fit(fold.x, fold.y)
        seconds = time.process_time() - began
    row = {"table": fold.table, "kind": fold.kind, "fold": fold.number, "method": method, "seconds": seconds}
    row |= {"rows": len(fold.x), "warned": bool(warned), "depth": len(hidden)}
    if fold.kind == "regression":
        error = np.square(model.predict(fold.x_test) - fold.y_test).sum()
        return row | {"score": float(1 - error / np.square(fold.y_test - fold.y_test.mean()).sum())}
    found = model.predict_proba(fold.x_test)
    labels = (model[-1] if hasattr(model, "steps") else model).classes_
    chances = np.zeros((len(found), int(max(labels.max(), fold.y_test.max())) + 1))
    chances[:, labels] = found
    own = np.clip(chances[np.arange(len(chances)), fold.y_test], CLIP, 1.0)
    return row | {
        "score": float((chances.argmax(1) == fold.y_test).mean()),
        "log_loss": float(-np.log(own).mean()),
    }


def runs_of(settings: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for every table, fold and method; progress goes to standard error."""
    index = read_index(settings.data)
    names = [name for name in settings.tables or index if name in index]
    plan: list[tuple[str, tuple[str, ...], tuple[int, ...]]] = [
        (name, tuple(settings.methods), (100,)) for name in names
    ]
    if settings.depth:
        deep = islice((name for name in names if name in DEEP_TABLES), settings.depth)
        plan += [(name, tuple(m for m in DEEP_METHODS if m in settings.methods), (100,) * 8) for name in deep]
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for place, (name, methods, hidden) in enumerate(plan, 1):
        for fold in folds_of(settings, index[name]):
            if not rows:
                for method in methods:  # first use in this process
                    measured(fold, method, hidden, settings.seed)
            rows += [measured(fold, method, hidden, settings.seed + fold.number) for method in methods]
        took = time.perf_counter() - began
        left = took / place * (len(plan) - place)
        print(
            f"{place} of {len(plan)}: {name}, {took:.0f} s, about {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
    return rows


def joined(recorded: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Recorded runs of the same tables, folds and depths by other methods, and these."""
    places = {(row["table"], row["fold"], row["depth"]) for row in rows}
    methods = {row["method"] for row in rows}
    kept = (row for row in recorded if (row["table"], row["fold"], row["depth"]) in places)
    return [row for row in kept if row["method"] not in methods] + rows


# What it amounts to ------------------------------------------------------------------------------------------------


def by_table(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, float]]:
    """Means over the folds: method, then table."""
    found: dict[str, dict[str, float]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        found[method] = {
            name: statistics.fmean(row[key] for row in own if row["table"] == name)
            for name in dict.fromkeys(row["table"] for row in own)
        }
    return found


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every method: mean and median score, mean rank, our wins, ties and losses against it, log loss, seconds."""
    scores = by_table(rows, "score")
    names = list(next(iter(scores.values())))
    ranks = rankdata([[-scores[m][name] for m in scores] for name in names], axis=1)
    classes = rows[0]["kind"] == "classification"
    losses = by_table(rows, "log_loss") if classes else {}
    seconds = {(row["table"], row["fold"], row["method"]): row["seconds"] for row in rows}
    found = []
    for place, method in enumerate(scores):
        apart = [scores["ours"][name] - scores[method][name] for name in names] if "ours" in scores else []
        ratios = [
            seconds[t, f, "ours"] / s for (t, f, m), s in seconds.items() if m == method and "ours" in scores
        ]
        entry: dict[str, Any] = {
            "method": method,
            "tables": len(names),
            "score": statistics.fmean(scores[method].values()),
            "median": statistics.median(scores[method].values()),
            "rank": float(np.mean(ranks[:, place])),
            "wins": sum(a > TIE for a in apart),
            "ties": sum(abs(a) <= TIE for a in apart),
            "losses": sum(a < -TIE for a in apart),
            "our_time_over_its": statistics.median(ratios) if ratios else None,
        }
        if classes:
            entry["log_loss"] = statistics.fmean(losses[method].values())
            if "ours" in scores:
                entry["our_log_loss_lower"] = sum(losses["ours"][n] < losses[method][n] for n in names)
        found.append(entry)
    return found


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = runs_of(settings)
    if settings.beside is not None:
        rows = joined(json.loads(settings.beside.read_text(encoding="utf-8"))["runs"], rows)
    report: dict[str, Any] = {
        "command": settings.command,
        "machine": describe("cpu"),
        "settings": {"rows": settings.rows, "folds": settings.folds, "seed": settings.seed},
    }
    parts = {"classification": 1, "regression": 1, "depth": 8}
    for name, depth in parts.items():
        kind = "classification" if name == "depth" else name
        own = [row for row in rows if (row["kind"], row["depth"]) == (kind, depth)]
        report[name] = rounded(summarised(own), 4) if own else []
    ours = [row for row in rows if row["method"] == "ours"]
    report["ours_warned"] = f"{sum(row['warned'] for row in ours)} of {len(ours)}"
    return report | {"runs": rounded(rows, 4)}


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    for name in ("classification", "regression", "depth"):
        for entry in report[name]:
            if entry is report[name][0]:
                lines.append(
                    f"{name}, {entry['tables']} tables: score, log loss, rank, ours won/tied/lost, ours' time"
                )
            loss = f"{entry['log_loss']:.4f}" if "log_loss" in entry else "-"
            ratio = entry["our_time_over_its"]
            lines.append(
                f"{entry['score']:9.4f} {loss:>7} {entry['rank']:6.2f} "
                f"{entry['wins']:3d}/{entry['ties']}/{entry['losses']:<3d} "
                f"{'-' if ratio is None else format(ratio, '.2f'):>6}  {entry['method']}"
            )
    return "\n".join([*lines, f"default fits that warned: {report['ours_warned']}"])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    def several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [read(part) for part in text.split(",") if part]

    shared = Path(__file__).resolve().parents[2] / "shared/tabular"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DLADMM_TABULAR", shared)))
    parser.add_argument("--tables", type=several(str), help="names; all of the index by default")
    parser.add_argument("--methods", type=several(str), default=list(METHODS))
    parser.add_argument("--rows", type=int, default=4000, help="larger tables are cut to so many rows")
    parser.add_argument("--folds", type=several(int), default=[2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=20, help="tables to run with eight hidden layers too")
    parser.add_argument(
        "--beside", type=Path, help="an earlier report, whose runs of the same tables are ranked too"
    )
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    settings = parser.parse_args(arguments)
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    settings.command = f"python benchmarks/tabular.py {given}".strip()
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    settings = parsed(arguments)
    with threadpool_limits(1):
        report = measure(settings)
    print(table(report))
    if settings.out is not None:
        settings.out.write_text(dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
