"""How many files of the library a run passes through: those in which a function is called.

    python benchmarks/path_of_a_run.py            # an estimator's fit, a run of the command line, one iteration

docs/architecture.md quotes the numbers; tests/package/test_architecture.py compares them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not


def files_of(run: Callable[[], Any]) -> list[str]:
    """The files of the package in which functions are called while ``run`` runs, module bodies not counted."""
    import dladmm

    root, called = Path(dladmm.__file__).parent, set()

    def seen(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    run()  # what is imported on the way has class bodies, which are no part of the path
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    files = {Path(code.co_filename) for code in called if code.co_name != "<module>"}
    return sorted(str(path.relative_to(root)) for path in files if path.is_relative_to(root))


def estimator() -> None:
    """A default fit."""
    from sklearn.datasets import load_digits

    from dladmm import MLPClassifier

    X, y = load_digits(return_X_y=True)
    MLPClassifier((20,), mode="accelerated", max_iter=3).fit(X[:200], y[:200])


def command_line() -> None:
    """``dladmm train mlp`` on embedded data."""
    from dladmm.cli.app import app

    with tempfile.TemporaryDirectory() as folder:
        words = [
            "train",
            "mlp",
            "--dataset",
            "digits",
            "--hidden",
            "20",
            "--mode",
            "accelerated",
            "--max-iter",
            "3",
        ]
        app([*words, "--out", f"{folder}/run", "--json"], standalone_mode=False)


def iteration() -> Callable[[], Any]:
    """One accelerated iteration, nothing before and after it."""
    from functools import partial

    import torch

    from dladmm import mlp
    from dladmm.engine.accelerated import Accelerated
    from dladmm.engine.options import ACCELERATED
    from dladmm.engine.sweep import Engine
    from dladmm.losses import Risk, get_loss
    from dladmm.regularizers import L2
    from dladmm.training.diagnostics import vital_signs

    torch.manual_seed(0)
    chain, loss = mlp([8, 6, 3]), get_loss("cross_entropy")
    x, target = torch.rand(40, 8), loss.encode(torch.arange(40) % 3, 3, torch.float32)
    engine = Engine(chain, x, Risk(loss, target), L2(0.3), ACCELERATED.subproblems)
    cpu = torch.device("cpu")
    params = chain.initial_parameters(torch.Generator().manual_seed(0), 0.4, dtype=torch.float32, device=cpu)
    state = engine.feasible_state(params, 0.1, 0.01)
    method = Accelerated(engine, state, dropout=0.2)
    return lambda: method.iterate(state, partial(vital_signs, engine))


RUNS: dict[str, Callable[[], Callable[[], Any]]] = {
    "estimator": lambda: estimator,
    "command line": lambda: command_line,
    "one accelerated iteration": iteration,
}

if __name__ == "__main__":
    for name, prepare in RUNS.items():
        files = files_of(prepare())
        print(f"{name}: {len(files)} files", file=sys.stderr)
        print("   ", ", ".join(files), file=sys.stderr)
