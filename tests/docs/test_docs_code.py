"""Every block of Python on the pages runs: with cells at build time, the others here."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import warnings
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CELL = re.compile(
    r"^```\{code-cell\}[^\n]*\n(?:---\n.*?^---\n|(?::[^\n]*\n)+)?(.*?)^```", re.DOTALL | re.MULTILINE
)
EXTRA = re.compile(r"dladmm\[([\w,]+)\]")
ELSEWHERE = {"usage.md"}  # run whole by test_examples.py

BEFORE = {
    "any_network.md": """
import torch, dladmm
from torch import nn
from torch.nn import functional as F
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


def run_when_the_site_is_built() -> dict[str, str]:
    """The code of pages with cells and of the gallery's examples, by file."""
    pages = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    cells = {path: "\n".join(CELL.findall(path.read_text(encoding="utf-8"))) for path in pages}
    found = cells | {
        path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))
    }
    return {str(path.relative_to(ROOT)): code for path, code in found.items() if code}


def packages_of(imports: set[str]) -> set[str]:
    """What to install for modules, by their names on PyPI."""
    places = packages_distributions()
    return {
        package.lower().replace("_", "-") for name in imports for package in places.get(name, [f"?{name}"])
    }


def test_what_the_site_runs_is_installed_by_its_extra():
    """A module that the library itself imports is named on the page, by the extra that brings it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    own = set(",".join(EXTRA.findall(" ".join(extras["docs"]))).split(","))
    wanted = [*project["dependencies"], *extras["docs"], *(each for name in own for each in extras[name])]
    installed = {re.split(r"[^\w-]", each)[0].lower() for each in wanted}
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    found = run_when_the_site_is_built()
    assert {"docs/tutorials/packed.md", "docs/start.md", "examples/cnn.py"} <= set(found)
    for name, code in found.items():
        imports: set[str] = set()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                imports |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imports.add(str(node.module).partition(".")[0])
        needed = packages_of(imports - sys.stdlib_module_names - {"dladmm"})
        assert needed <= installed & pinned, (
            f"{name}: {needed - (installed & pinned)} is not in the extra docs"
        )
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        named = {
            extra for each in EXTRA.findall(page.read_text(encoding="utf-8")) for extra in each.split(",")
        }
        assert named <= own, f"{page.name} names the extras {named - own}, which the extra docs has not"
