"""The examples run as they stand, on small data."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import runpy
import sys
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

import dladmm

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = {"cora_pyg.py": ["--dataset", "karate", "--max-iter", "60"]}
LOWEST = {"digits.py": 0.9, "own_sequential.py": 0.9, "pipeline_grid_search.py": 0.9}


LONG = {"cnn.py", "rnn.py", "sign_network.py"}
"""Half a minute each: the site's gallery runs them as they stand (``make docs``), and an error there ends the build."""


def shown(run, folder, *words):
    """What ``run()`` prints as a program of its own, in this process: importing torch again would take longer."""
    out = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        mock.patch.object(sys, "argv", list(map(str, words))),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # said to whoever runs it, no errors
        run()
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({path.name for path in EXAMPLES.glob("*.py")} - LONG))
def test_example_runs(name, tmp_path):
    if name == "cora_pyg.py" and importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    run = partial(runpy.run_path, str(EXAMPLES / name), run_name="__main__")
    printed = shown(run, tmp_path, EXAMPLES / name, *ARGUMENTS.get(name, []))
    accuracies = [float(found) for found in re.findall(r"accuracy (\d\.\d+)", printed)]
    assert accuracies, printed
    assert max(accuracies) >= LOWEST.get(name, 0.5)


class LaterLoss:
    """A loss whose forward pass is made when its gradients are asked for: after the optimizer was."""

    def __init__(self, module):
        self.module = module

    def backward(self):
        self.module(torch.ones(2, 3)).square().sum().backward()


def test_readme_shows_code_that_runs(tmp_path):
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    code, loop = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    quick = code.replace("random_state=0", "max_iter=5, random_state=0")
    assert quick != code
    assert "monitor sample" in shown(partial(exec, quick, {"__name__": "__main__"}), tmp_path)
    assert (tmp_path / "digits.dladmm").exists()
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    before = module[0].weight.detach().clone()
    loss = LaterLoss(module)
    exec(loop, {"dladmm": dladmm, "module": module, "steps": 10, "loss": loss})
    assert not torch.equal(module[0].weight, before)


def test_usage_page_shows_code_that_runs(tmp_path):
    page = (EXAMPLES.parent / "docs" / "usage.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 6
    shown(partial(exec, "\n".join(blocks), {"__name__": "__main__"}), tmp_path)
