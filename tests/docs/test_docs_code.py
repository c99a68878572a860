"""Every block of Python on the pages runs: with cells at build time, the others here."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = {"usage.md"}  # run whole by test_examples.py

BEFORE = {
    "any_network.md": """
import torch, dladmm
from torch import nn
generator = torch.Generator().manual_seed(0)
images, labels = torch.randn(60, 1, 8, 8, generator=generator), torch.arange(60) % 10
""",
    "report.md": """
import os, dladmm
from typer.testing import CliRunner
from dladmm.cli.app import app
arguments = ["train", "mlp", "--dataset", "digits", "--hidden", "8", "--max-iter", "2", "--out", "runs/compare/one"]
assert CliRunner().invoke(app, arguments).exit_code == 0
""",
    "datasets.md": "import dladmm\n",
    "graphs.md": """
from dladmm.blocks import Elementwise, GraphConv
from dladmm import Chain
from dladmm.network.graph import normalised_adjacency
n, c, A = 34, 4, None
""",
    "memory.md": """
import numpy
from dladmm import train
numpy.save("x.npy", numpy.random.default_rng(0).normal(size=(300, 250)))
X, y = numpy.zeros((60, 784)), numpy.arange(300) % 3
""",
}
"""What a page takes for granted, on small data."""

SMALL = {
    'load("cora")': 'load("karate")',
    "max_iter=50)": "max_iter=5)",
    "max_iter=200": "max_iter=5",
    'mode="accelerated")': 'mode="accelerated", max_iter=5)',
    'max_memory="500MB")': 'max_memory="500MB", max_iter=5)',
}
"""What stands for data that may not be there, and for long runs."""


def pages() -> list[str]:
    found = sorted((ROOT / "docs").glob("*.md"))
    with_code = [page.name for page in found if BLOCK.search(page.read_text(encoding="utf-8"))]
    return [name for name in with_code if name not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize("name", pages())
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    # Each block after as many empty lines as stand before it on the page, so that a traceback points there
    blocks = ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in BLOCK.finditer(text)]
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code in (BEFORE.get(name, ""), *blocks):
            for said, small in SMALL.items():
                code = code.replace(said, small)
            exec(compile(code, f"docs/{name}", "exec", dont_inherit=True), namespace)
