"""The published files: every number of the paper's two tables, and what is known about each set."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from dladmm import datasets
from dladmm.datasets._registry import DATASETS
from dladmm.datasets.planetoid import PARTS, parse_planetoid, parse_planetoid_npz

pytestmark = pytest.mark.realdata

# name: training rows, test rows, features, classes (the paper's table of MLP data sets)
IMAGES = {"mnist": (55_000, 10_000, 784, 10), "fashion_mnist": (60_000, 10_000, 784, 10)}
# name: nodes, edges, classes, features, label rate in per cent (the paper's table of GCN data sets)
GRAPHS = {
    "cora": (2708, 10556, 7, 1433, "5.17"),
    "pubmed": (19717, 88648, 3, 500, "0.30"),
    "citeseer": (3327, 9104, 6, 3703, "3.61"),
    "coauthor_cs": (18333, 163788, 15, 6805, "8.18"),
    "coauthor_physics": (34493, 495924, 5, 8415, "1.45"),
}
CLASS_SIZES = {
    "cora": [351, 217, 418, 818, 426, 298, 180],
    "citeseer": [264, 590, 668, 701, 596, 508],
    "pubmed": [4103, 7739, 7875],
    "coauthor_cs": [708, 462, 2050, 429, 1394, 2193, 371, 924, 775, 118, 1444, 2033, 420, 4136, 876],
    "coauthor_physics": [5750, 5045, 17426, 2753, 3519],
}
PLANETOID = ("cora", "citeseer", "pubmed")


@pytest.mark.parametrize("name", IMAGES)
def test_paper_table_of_images(name, real_data):
    data = datasets.load(name, data_dir=real_data)
    assert (len(data.x_train), len(data.x_test), data.n_features, data.n_classes) == IMAGES[name]
    assert (float(data.x_train.min()), float(data.x_train.max())) == (0.0, 1.0)
    statistics = DATASETS[name].statistics
    assert (statistics["train"], statistics["test"]) == IMAGES[name][:2]


def test_mnist_in_full(real_data):
    data, paper = (datasets.load("mnist", data_dir=real_data, full=full) for full in (True, False))
    assert data.y_train.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.y_test.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (float(data.x_train.mean()), float(data.x_train.std())) == pytest.approx(
        (0.1307, 0.3081), abs=1e-4
    )
    assert paper.y_train.equal(data.y_train[5000:])
    assert paper.y_val.equal(data.y_train[:5000])
    assert paper.x_val[17].equal(data.x_train[17])


def test_fashion_mnist_in_full(real_data):
    data = datasets.load("fashion_mnist", data_dir=real_data)
    assert data.y_train.bincount().tolist() == [6000] * 10
    assert data.y_test.bincount().tolist() == [1000] * 10
    assert (float(data.x_train.mean()), float(data.x_train.std())) == pytest.approx(
        (0.2860, 0.3530), abs=1e-4
    )
    assert len(datasets.load("fashion_mnist", data_dir=real_data, full=False).x_train) == 55_000


@pytest.mark.parametrize("name", GRAPHS)
def test_paper_table_of_graphs(name, real_data):
    graph = datasets.load(name, data_dir=real_data)
    rate = f"{100 * int(graph.train_mask.sum()) / graph.n_nodes:.2f}"
    assert (graph.n_nodes, graph.n_edges, graph.n_classes, graph.n_features, rate) == GRAPHS[name]
    assert DATASETS[name].statistics == {
        "nodes": graph.n_nodes,
        "edges": graph.n_edges,
        "features": graph.n_features,
        "classes": graph.n_classes,
    }
    assert graph.y.bincount().tolist() == CLASS_SIZES[name]
    adjacency = graph.adjacency()
    assert (adjacency - adjacency.T).nnz == 0
    assert adjacency.nnz == graph.n_edges
    assert adjacency.diagonal().sum() == 0
    assert graph.x.has_canonical_format
    masks = graph.train_mask.int() + graph.val_mask.int() + graph.test_mask.int()
    assert int(masks.max()) == 1
    assert int(graph.test_mask.sum()) == 1000


@pytest.mark.parametrize(
    ("name", "stored", "top"), [("cora", 49216, 1), ("citeseer", 105165, 1), ("pubmed", 988031, 1.263)]
)
def test_planetoid_features_and_split(name, stored, top, real_data):
    graph = datasets.load(name, data_dir=real_data)
    assert graph.x.nnz == stored
    assert graph.x.max() == pytest.approx(top, abs=1e-3)
    assert graph.y[graph.train_mask].bincount().tolist() == [20] * graph.n_classes
    assert int(graph.val_mask.sum()) == 500
    isolated = int((np.diff(graph.adjacency().indptr) == 0).sum())
    empty = int((np.diff(graph.x.indptr) == 0).sum())
    assert (isolated, empty) == ((48, 15) if name == "citeseer" else (0, 0))


@pytest.mark.parametrize("name", PLANETOID)
def test_pickles_and_converted_copies_agree(name, real_data):
    folder = real_data / "planetoid"
    pickles = parse_planetoid({part: (folder / f"ind.{name}.{part}").read_bytes() for part in PARTS}, name)
    copy = parse_planetoid_npz((folder / f"{name}.npz").read_bytes(), name)
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(pickles.x, part), getattr(copy.x, part))
    for part in ("edge_index", "y", "train_mask", "val_mask", "test_mask"):
        assert getattr(pickles, part).equal(getattr(copy, part))
    assert pickles.n_classes == copy.n_classes


@pytest.mark.parametrize(
    ("name", "stored", "top"), [("coauthor_cs", 1092079, 105), ("coauthor_physics", 1137311, 98)]
)
def test_coauthor_features_and_split(name, stored, top, real_data):
    graph = datasets.load(name, data_dir=real_data)
    assert set(graph.x.data) == {1.0}
    assert graph.x.nnz == stored
    assert datasets.load(name, data_dir=real_data, counts=True).x.max() == top
    assert graph.y[graph.train_mask].bincount().tolist() == [100] * graph.n_classes
    papers, drawn, other = (
        datasets.load(name, data_dir=real_data, **which)
        for which in ({"split": "paper"}, {"seed": 0}, {"seed": 1})
    )
    assert graph.test_mask.equal(papers.test_mask)
    assert not graph.test_mask.equal(drawn.test_mask)
    assert not drawn.test_mask.equal(other.test_mask)
    assert (np.diff(graph.adjacency().indptr) > 0).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GRAPHS)
def test_equals_what_pyg_reads(name, real_data, real_pyg):
    ours = datasets.load(name, data_dir=real_data)
    if name in PLANETOID:
        theirs = real_pyg.io.read_planetoid_data(str(real_data / "planetoid"), name)
        for mask in ("train_mask", "val_mask", "test_mask"):
            assert getattr(ours, mask).equal(getattr(theirs, mask))
    else:
        file = DATASETS[name].files[0].name
        theirs = real_pyg.io.read_npz(str(real_data / "coauthor" / file), to_undirected=True)
    order = (theirs.edge_index[0] * ours.n_nodes + theirs.edge_index[1]).argsort()  # theirs go by column
    assert ours.edge_index.equal(theirs.edge_index[:, order])
    assert ours.y.equal(theirs.y)
    their_x = theirs.x.to_dense()
    assert int((their_x != 0).sum()) == ours.x.nnz
    assert ours.x_dense().equal(their_x)


@pytest.mark.parametrize(
    ("which", "digest"),
    [({}, "c8f79cfafa3855cf"), ({"seed": 0}, "96636c15915bcdf0")],
    ids=["paper", "seed 0"],
)
def test_coauthor_splits_never_change(which, digest, real_data):
    graph = datasets.load("coauthor_cs", data_dir=real_data, **which)
    masks = graph.train_mask.numpy().tobytes() + graph.test_mask.numpy().tobytes()
    assert hashlib.sha256(masks).hexdigest()[:16] == digest


def test_verify_finds_every_file_whole(real_data):
    reports = datasets.verify(data_dir=real_data)
    assert {report.state for report in reports} == {"ok"}
    assert len(reports) == 4 + 4 + 3 * 9 + 2


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of one process is read from /proc")
def test_physics_needs_little_memory(real_data):
    """The whole process, torch included, stays far below 1.5 GB."""
    code = """
import sys
from dladmm import datasets
datasets.load("coauthor_physics", data_dir=sys.argv[1])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(real_data)], check=True, timeout=120, capture_output=True, text=True
    )
    assert int(done.stdout) * 1024 < 1.5e9
