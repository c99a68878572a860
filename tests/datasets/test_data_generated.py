from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from dladmm import datasets
from dladmm.base.errors import InputError
from dladmm.datasets._types import stable_order
from dladmm.datasets.generated import _triangle


@pytest.mark.parametrize("name", ["moons", "spirals", "sbm", "digits"])
def test_a_seed_gives_the_same_data_and_no_global_state_moves(name):
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    expected = np.random.random(), torch.rand(1)  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    one, same, other = (datasets.load(name, seed=seed) for seed in (3, 3, 4))
    assert (np.random.random(), torch.rand(1)) == expected  # noqa: NPY002
    for field in ("x_train", "y_test") if hasattr(one, "x_train") else ("edge_index", "y", "test_mask"):
        assert getattr(one, field).equal(getattr(same, field))
        assert not getattr(one, field).equal(getattr(other, field))


def test_moons_and_spirals_have_their_shape():
    moons = datasets.moons(n_samples=400, n_test=100, noise=0.0)
    upper, lower = (moons.x_train[moons.y_train == label] for label in (0, 1))
    assert torch.allclose(upper.norm(dim=1), torch.ones(len(upper)), atol=1e-6)
    assert torch.allclose((lower - torch.tensor([1.0, 0.5])).norm(dim=1), torch.ones(len(lower)), atol=1e-6)
    arms = datasets.spirals(n_samples=300, n_test=30, n_classes=3, turns=1.0, noise=0.0)
    radius = arms.x_train.norm(dim=1)
    angle = torch.atan2(arms.x_train[:, 1], arms.x_train[:, 0]) / (2 * torch.pi) - radius
    assert torch.allclose(torch.cos(2 * torch.pi * (angle - arms.y_train / 3)), torch.ones(270), atol=1e-5)
    assert torch.cat([arms.y_train, arms.y_test]).bincount().tolist() == [100, 100, 100]


def test_sbm_has_the_structure_asked_for():
    graph = datasets.sbm(n_nodes=20_000, n_classes=5, degree=12, homophily=0.7, n_features=100, signal=0.6)
    row, col = graph.edge_index
    keys = row * graph.n_nodes + col
    assert bool((keys[1:] > keys[:-1]).all()), "sorted, without duplicates"
    assert not (row == col).any()
    assert (graph.adjacency() - graph.adjacency().T).nnz == 0
    assert graph.n_edges / graph.n_nodes == pytest.approx(12, rel=0.02)
    assert float((graph.y[row] == graph.y[col]).double().mean()) == pytest.approx(0.7, abs=0.01)
    assert graph.y.bincount().tolist() == [4000] * 5
    words = graph.x.tocoo()
    own = np.mean(words.col // 20 == graph.y.numpy()[words.row])
    assert own == pytest.approx(0.6 + 0.4 / 5, abs=0.05)
    assert set(graph.x.data) == {1.0}
    assert graph.x.has_canonical_format


def test_sbm_edges_are_uniform_over_pairs():
    """Every pair of a small graph is drawn about equally often."""
    counts = sum(
        datasets.sbm(
            n_nodes=8, n_classes=2, degree=3, homophily=3 / 7, n_features=2, labels_per_class=1, seed=s
        )
        .adjacency()
        .toarray()
        for s in range(700)
    )
    pairs = counts[np.triu_indices(8, 1)]
    assert pairs.mean() == pytest.approx(300, rel=0.05)
    assert abs(pairs - 300).max() < 5 * np.sqrt(300 * 4 / 7)


def test_sbm_can_be_complete():
    graph = datasets.sbm(
        n_nodes=10, n_classes=2, degree=9, homophily=20 / 45, n_features=2, labels_per_class=1
    )
    assert graph.n_edges == 90


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of one process is read from /proc")
def test_sbm_of_a_million_nodes_fits_into_a_laptop():
    code = """
from dladmm import datasets
graph = datasets.sbm(n_nodes=1_000_000, n_classes=10, degree=10, n_test=10_000)
assert 9.9e6 < graph.n_edges < 10.1e6, graph
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True
    )
    assert int(done.stdout) * 1024 < 2e9


def test_triangle_numbering_is_exact_far_out():
    assert list(zip(*_triangle(np.arange(6)), strict=True)) == [
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
        (3, 2),
    ]
    for n in (2, 3, 1_000, 999_999, 40_000_000):
        last = n * (n - 1) // 2 - 1
        i, j = _triangle(np.array([last, last + 1]))
        assert (i.tolist(), j.tolist()) == ([n - 1, n], [n - 2, 0])


def test_the_named_split_never_changes():
    """Benchmarks are quoted by seed: this digest may not change between versions."""
    digest = hashlib.sha256(stable_order(10_000, 0).astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "0d56e5a45cb289c9"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sbm", {"n_nodes": 1}, "n_nodes is 1"),
        ("sbm", {"n_classes": 1}, "n_classes is 1"),
        ("sbm", {"n_features": 3}, "n_features is 3"),
        ("sbm", {"homophily": 1.5}, "homophily is 1.5; it must be a number from 0 to 1"),
        ("sbm", {"signal": float("nan")}, "signal is nan"),
        ("sbm", {"degree": 1000}, "degree is 1000"),
        ("sbm", {"degree": 900}, "more edges than 1000 nodes"),
        ("sbm", {"labels_per_class": 251}, "class 0 has 250 nodes"),
        ("spirals", {"n_classes": 1}, "n_classes is 1"),
        ("spirals", {"turns": "two"}, "turns is 'two'"),
        ("moons", {"n_samples": 1}, "n_samples is 1"),
        ("moons", {"noise": -1}, "noise is -1"),
        ("moons", {"seed": -1}, "seed is -1"),
        ("moons", {"n_test": 1000}, "n_test is 1000"),
    ],
)
def test_wrong_arguments_are_named(name, options, message):
    with pytest.raises(InputError, match=message):
        datasets.load(name, **options)
