"""The registry of data sets: files with sha256, addresses, licences and statistics."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Literal

from dladmm.base.errors import InputError
from dladmm.datasets._checksums import COAUTHOR_FILES, IDX_FILES, PLANETOID_COPIES, PLANETOID_FILES, File

Kind = Literal["images", "graph"]


@dataclass(frozen=True)
class Dataset:
    """The registry entry of a data set; one without files is embedded or generated."""

    name: str
    title: str
    kind: Kind
    licence: str
    statistics: dict[str, int] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    folders: tuple[str, ...] = ()  #: below a data folder; the first is where a download goes
    addresses: tuple[str, ...] = ()  #: each ends in a slash; tried in this order
    copy: File | None = None  #: one converted file that can replace all of `files`

    @property
    def embedded(self) -> bool:
        """Whether the data set needs no files."""
        return not self.files

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(file.size for file in self.files)


def _images(
    name: str, title: str, licence: str, rows: int, folder: str, addresses: tuple[str, ...]
) -> Dataset:
    return Dataset(
        name,
        title,
        "images",
        licence,
        {"features": 784, "classes": 10, "train": rows, "test": 10_000},
        files=IDX_FILES[name],
        folders=(name, f"{folder}/raw"),
        addresses=addresses,
    )


def _planetoid(name: str, title: str, statistics: tuple[int, int, int, int]) -> Dataset:
    return Dataset(
        name,
        title,
        "graph",
        "MIT; data: LINQS group",
        dict(zip(_GRAPH_NUMBERS, statistics, strict=True)),
        files=tuple(File(f"ind.{name}.{part}", size, sha) for part, size, sha in PLANETOID_FILES[name]),
        folders=("planetoid", f"{title}/raw"),
        addresses=(
            "https://github.com/kimiyoung/planetoid/raw/master/data/",
            "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/",
        ),
        copy=PLANETOID_COPIES[name],
    )


def _coauthor(name: str, title: str, folder: str, statistics: tuple[int, int, int, int]) -> Dataset:
    return Dataset(
        name,
        title,
        "graph",
        "MIT; data: Microsoft Academic Graph",
        dict(zip(_GRAPH_NUMBERS, statistics, strict=True)),
        files=(COAUTHOR_FILES[name],),
        folders=("coauthor", f"{folder}/raw"),
        addresses=(
            "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/",
            "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz/",
        ),
    )


_GRAPH_NUMBERS = ("nodes", "edges", "features", "classes")

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        _images(
            "mnist",
            "MNIST",
            "none stated by its authors",
            55_000,
            "MNIST",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
        ),
        _images(
            "fashion_mnist",
            "Fashion-MNIST",
            "MIT (Zalando SE)",
            60_000,
            "FashionMNIST",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
        ),
        _planetoid("cora", "Cora", (2_708, 10_556, 1_433, 7)),
        _planetoid("citeseer", "CiteSeer", (3_327, 9_104, 3_703, 6)),
        _planetoid("pubmed", "PubMed", (19_717, 88_648, 500, 3)),
        _coauthor("coauthor_cs", "Coauthor CS", "CS", (18_333, 163_788, 6_805, 15)),
        _coauthor("coauthor_physics", "Coauthor Physics", "Physics", (34_493, 495_924, 8_415, 5)),
        Dataset(
            "digits", "Digits (scikit-learn)", "images", "CC BY 4.0 (UCI)", {"features": 64, "classes": 10}
        ),
        Dataset(
            "karate",
            "Zachary's karate club",
            "graph",
            "none stated (1977)",
            {"nodes": 34, "edges": 156},
        ),
        Dataset("moons", "Two moons", "images", "generated", {"features": 2, "classes": 2}),
        Dataset("spirals", "Spirals", "images", "generated", {"features": 2}),
        Dataset("sbm", "Stochastic block model", "graph", "generated"),
    )
}


def names() -> tuple[str, ...]:
    """The names of all data sets that `load` accepts."""
    return tuple(DATASETS)


def dataset(name: str) -> Dataset:
    """The registry entry for a name; case, spaces and hyphens do not matter."""
    key = name.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(name, str) else ""
    if key not in DATASETS:
        near = difflib.get_close_matches(key, DATASETS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"name is {name!r}{hint}; it must be one of {', '.join(DATASETS)}")
    return DATASETS[key]
