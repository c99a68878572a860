"""The package as a newcomer meets it: imports, version, command line, documents that keep their promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dladmm
from dladmm.cli import demo
from dladmm.cli.app import app

ROOT = Path(__file__).parents[2]

BLOCKED = ("typer", "rich", "pooch", "safetensors", "matplotlib", "plotly", "torch_geometric", "pandas")
MINIMAL = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import numpy as np, dladmm
assert "sklearn" not in sys.modules  # it takes longer to import than all the rest
X = np.random.default_rng(0).normal(size=(20, 3)); y = (X[:, 0] > 0).astype(int)
print(dladmm.train(dladmm.mlp([3, 4, 2]), X, y, max_iter=2).status.name)
assert "sympy" not in sys.modules  # torch imports it for meta tensors, which takes a second
assert "scipy.sparse" not in sys.modules  # as long as this library's own imports, and nothing is sparse here
import gc; assert gc.isenabled()  # imports of the library pause it
dladmm.datasets.load("digits")
"""


def test_training_needs_only_torch_numpy_scipy_and_scikit_learn():
    command = [sys.executable, "-W", "error", "-c", MINIMAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "PASSES_MADE"


def test_help_waits_for_nothing_heavy():
    """``dladmm train --help`` answers in a second: torch alone takes two to import."""
    program = "import sys, dladmm, dladmm.cli.app; print({'torch', 'sklearn', 'scipy'} & set(sys.modules) or 'light')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "light", done.stdout + done.stderr


def test_names_are_found_when_they_are_asked_for():
    assert all(getattr(dladmm, name) is not None for name in dladmm.__all__)
    assert dladmm.callbacks.Checkpoint is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dladmm.nonsense  # noqa: B018


def test_version_is_written_once_and_cited():
    assert f"version: {dladmm.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.strip() == dladmm.__version__


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["train"],
        ["train", "mlp"],
        ["train", "gcn"],
        ["predict"],
        ["evaluate"],
        ["export"],
        ["compare"],
        ["report"],
        ["verify"],
        ["reproduce"],
        ["datasets"],
        ["datasets", "list"],
    ],
)
def test_every_command_has_help(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    if command and command != ["train"] and command != ["datasets"]:
        assert "Example" in result.output


@pytest.mark.usefixtures("short_teachers")
def test_demo_prints_table_certificate_and_folder_and_writes_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(demo.DIGITS, "max_iter", 6)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    for words in ("iteration", "Lagrangian", "test accuracy", "Property 2", "Wrote both runs", "karate"):
        assert words in result.output
    assert "karate" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for name in ("history.csv", "metrics.json", "certificate.txt", "curves.png"):
        for data in ("digits", "karate"):
            assert (tmp_path / "run" / data / name).stat().st_size > 0
    assert len((tmp_path / "run" / "digits" / "history.csv").read_text(encoding="utf-8").splitlines()) == 7


def test_an_interrupt_while_modules_are_imported_leaves_no_traceback(monkeypatch):
    from dladmm import __main__

    class Interrupts:
        def find_spec(self, name, path=None, target=None):
            if name == "dladmm.cli.app":
                raise KeyboardInterrupt
            return

    monkeypatch.delitem(sys.modules, "dladmm.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
