"""The benchmarks of a GPU, on a CPU and tiny: that they run, and what they say."""

from __future__ import annotations

import argparse
import json
import time

import kernel_times
import large_graph
import numpy as np
import pytest
import split_products
import torch
import whole_run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "images.npz"
    rng = np.random.default_rng(0)
    np.savez(path, X=rng.integers(0, 256, (12, 28, 28), dtype=np.uint8), y=np.arange(12) % 10)
    return str(path)


def test_a_drawn_graph_is_normalised_and_iterated_on(capsys):
    adjacency, labels = large_graph.drawn_graph(60, 6.0, 3, torch.device("cpu"))
    A = adjacency.csr.to_dense().double()
    assert torch.equal(A, A.T)
    degrees = (A > 0).sum(1).double()
    torch.testing.assert_close(A.diagonal(), 1 / degrees, rtol=1e-6, atol=0)
    assert labels.bincount().tolist() == [20, 20, 20]
    tiny = [
        "--nodes",
        "60",
        "--degree",
        "6",
        "--hidden",
        "4",
        "--classes",
        "3",
        "--iterations",
        "1",
        "--warmup",
        "1",
    ]
    large_graph.main([*tiny, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["entries"] == int((A > 0).sum())
    assert set(found["modes"]) == {"certified", "accelerated"}


def test_kernel_times_says_how_many_adam_epochs_an_iteration_takes(images, capsys):
    given = ["cnn", "--images", images, "--samples", "12", "--repeats", "1", "--warmup", "1", "--no-table"]
    kernel_times.main(given)
    assert "epochs;" in capsys.readouterr().out


@pytest.mark.parametrize("cell", ["cnn-float32", "cnn-adam"])
def test_a_cell_of_whole_runs(cell, images):
    began = time.time()
    settings = argparse.Namespace(
        device="cpu", samples=12, images=images, iterations=2, tf32=False, began=began
    )
    found = whole_run.child(cell, settings)
    assert found["iterations"] == 2
    assert found["iteration_seconds"] > 0
    assert sum(found["stages"].values()) <= time.time() - began  # all but the end of the process


def test_torch_alone_makes_no_iteration(images):
    settings = argparse.Namespace(
        device="cpu", samples=12, images=images, iterations=None, tf32=False, began=time.time()
    )
    found = whole_run.child("torch-alone", settings)
    assert found["iterations"] == 0
    assert set(found["stages"]) == {"start", "imports", "data and device"}
    assert " 0 iterations" in whole_run.line("torch-alone", found | {"process_seconds": 1.0})


@pytest.mark.parametrize("name", list(split_products.WAYS))
def test_products_by_parts_are_products(name):
    generator = torch.Generator().manual_seed(0)
    a, w, e = (torch.randn(*shape, generator=generator) for shape in ((3000, 7), (7, 5), (3000, 5)))
    along, over_rows = split_products.WAYS[name]
    assert split_products.errors(along(a, w), a, w)[0] < 1e-6
    if over_rows is not None:
        assert split_products.errors(over_rows(a, e), a.T, e)[0] < 1e-6


def test_factors_are_sums_of_their_parts():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    parts = split_products.split(x)
    assert parts.dtype == torch.bfloat16
    assert torch.equal(sum(part.double() for part in parts.chunk(3, 1)), x.double())
