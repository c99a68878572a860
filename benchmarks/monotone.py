"""Monotone networks beside monotone gradient boosting, and both without constraints, on five tables.

    python benchmarks/monotone.py --out docs/results/monotone.json       # then: python docs/render.py
    python benchmarks/monotone.py --tables pima --folds 0

What is asked of features is what people know about them, not what the rows say: more of every score of a candidate
speaks for hiring (ESL, ERA), a larger engine does not make a car cheaper, more glucose does not make diabetes less
likely. Every estimator has its defaults; only the seed and the constraints are set. Scores are accuracy and R^2, means
of three folds (shuffled with seed 0, stratified for classes). Violations are pairs of rows that differ in one
constrained feature in which the prediction goes the wrong way, of 2,000 pairs per feature and fold: rows that the
estimator has not seen, the feature moved by up to its range; differences below 1e-9 are rounding.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from compact_json import dumps, rounded
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits

import dladmm
from dladmm.tables import read_table
from dladmm.training.run_folder import describe

Array = np.ndarray[Any, Any]

FOLDS, PAIRS, ROUNDING = 3, 2000, 1e-9
ALL = "every feature"
TABLES: dict[str, dict[str, int]] = {
    "1027_ESL": {ALL: 1},
    "1030_ERA": {ALL: 1},
    "195_auto_price": {"engine-size": 1, "horsepower": 1, "curb-weight": 1, "city-mpg": -1, "highway-mpg": -1},
    "pima": {"plasma glucose": 1, "Body mass index": 1, "Diabetes pedigree function": 1, "Age": 1},
    "breast-w": {
        "Clump_Thickness": 1, "Cell_Size_Uniformity": 1, "Cell_Shape_Uniformity": 1, "Marginal_Adhesion": 1,
        "Single_Epi_Cell_Size": 1, "Bland_Chromatin": 1, "Normal_Nucleoli": 1, "Mitoses": 1,
    },
}  # fmt: skip
"""1: the prediction (of two classes, the probability of the second) must not fall with the feature; -1: not rise."""

METHODS = ("monotone network", "network", "monotone boosting", "boosting")


def rows_of(folder: Path, name: str) -> tuple[Array, Array, list[int], bool]:
    """X, y, what is asked of every feature, and whether y holds classes."""
    classes = (folder / "classification" / f"{name}.tsv.gz").exists()
    frame = read_table(folder / ("classification" if classes else "regression") / f"{name}.tsv.gz")
    x = frame.without(["target"])
    asked = TABLES[name]
    signs = [asked.get(ALL, asked.get(feature, 0)) for feature in x.names]
    return np.column_stack(list(x.columns.values())), frame.values_of("target"), signs, classes


def estimator(method: str, classes: bool, signs: Sequence[int], seed: int) -> Any:
    """The method with its defaults."""
    bound = list(signs) if method.startswith("monotone") else None
    if "network" in method:
        kind: Any = dladmm.MLPClassifier if classes else dladmm.MLPRegressor
        return kind(monotone_constraints=bound, device="cpu", random_state=seed)
    boosting = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return boosting(monotonic_cst=bound, random_state=seed)


def violations(fitted: Any, classes: bool, X: Array, signs: Sequence[int], seed: int) -> int:
    """Pairs in which the prediction goes the wrong way."""
    rng, found = np.random.default_rng(seed), 0
    for j, sign in enumerate(signs):
        if sign:
            low = X[rng.integers(len(X), size=PAIRS)]
            high = low.copy()
            high[:, j] += rng.random(PAIRS) * np.ptp(X[:, j])
            before, after = (
                fitted.predict_proba(rows)[:, 1] if classes else fitted.predict(rows) for rows in (low, high)
            )
            found += int((sign * (after - before) < -ROUNDING * np.maximum(1, np.abs(before))).sum())
    return found


def measured(folder: Path, name: str, folds: Sequence[int], seed: int) -> dict[str, Any]:
    """One table: score, violations and seconds of every method, means over the folds."""
    x, y, signs, classes = rows_of(folder, name)
    splitter = (StratifiedKFold if classes else KFold)(FOLDS, shuffle=True, random_state=0)
    parts = list(splitter.split(x, y))
    methods: dict[str, Any] = {}
    for method in METHODS:
        scores, wrong, seconds = [], 0, []
        for number in folds:
            train, test = parts[number]
            began = time.process_time()
            fitted = estimator(method, classes, signs, seed).fit(x[train], y[train])
            seconds.append(time.process_time() - began)
            scores.append(float(fitted.score(x[test], y[test])))
            wrong += violations(fitted, classes, x[test], signs, number)
        found = {"score": statistics.mean(scores), "violations": wrong, "seconds": statistics.mean(seconds)}
        methods[method] = found
        print(
            f"{name:16} {method:18} {found['score']:.4f} {wrong:6} {found['seconds']:.2f} s", file=sys.stderr
        )
    asked = sum(map(abs, signs))
    return {
        "table": name,
        "rows": len(x),
        "features": x.shape[1],
        "asked": asked,
        "kind": "accuracy" if classes else "R^2",
        "pairs": PAIRS * asked * len(folds),
        "methods": methods,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    place = Path(__file__).resolve().parents[2] / "shared" / "tabular"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DLADMM_TABULAR", place)))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--folds", default="0,1,2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    folds = [int(text) for text in asked.folds.split(",")]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = [measured(asked.data, name, folds, asked.seed) for name in asked.tables.split(",")]
    report = {"machine": describe(), "folds": folds, "seed": asked.seed, "tables": tables}
    text = dumps(rounded(report))
    if asked.out is None:
        print(text)
    else:
        asked.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
