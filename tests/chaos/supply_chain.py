"""What the library stands on, and that no file is ever read by pickle."""

from __future__ import annotations

import ast
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from chaos.bad_estimators import classified, graph, regressed
from chaos.commands import run as dladmm
from chaos.ledger import Ledger, require
from chaos.table import X, Y
from convergent import train
from dladmm import GCNClassifier, MLPClassifier, MLPRegressor, datasets, mlp
from dladmm.callbacks import Checkpoint, CSVLogger, JSONLinesLogger
from dladmm.report import read_report, write_page
from dladmm.training.checkpoint import load_model, load_training, save_model

ROOT = Path(__file__).parents[2]

BANNED = {
    "pickle": {"load", "loads", "Unpickler", "_load", "_loads", "_Unpickler"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "joblib": {"load"},
    "torch": {"load"},
}
"""What runs code that a file brings along."""


def forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("a file was read by pickle")


class ForbiddenUnpickler:
    def __init__(self, *args: object, **kwargs: object) -> None:
        forbidden()


def without_pickle() -> list[mock._patch]:
    """Patches under which every way to unpickle raises, wherever it is reached from."""
    import _pickle

    patches = [mock.patch.object(torch, "load", forbidden)]
    for module in (pickle, _pickle):
        patches += [mock.patch.object(module, name, forbidden) for name in ("load", "loads")]
        patches.append(mock.patch.object(module, "Unpickler", ForbiddenUnpickler))
    patches += [mock.patch.object(pickle, name, forbidden) for name in ("_load", "_loads")]
    patches.append(mock.patch.object(pickle, "_Unpickler", ForbiddenUnpickler))
    return patches


def checkpointed(folder: Path) -> None:
    options = {"callbacks": [Checkpoint(folder / "run", every=1), CSVLogger(folder / "l.csv")]}
    train(mlp([4, 3]), X, Y, max_iter=3, **options)
    train(mlp([4, 3]), X, Y, max_iter=5, callbacks=[
        Checkpoint(folder / "run", resume=True), JSONLinesLogger(folder / "l.jsonl"),
    ])  # fmt: skip
    load_training(next((folder / "run").glob("*.dladmm")))


def estimators(folder: Path) -> None:
    for fit, kind in ((classified, MLPClassifier), (regressed, MLPRegressor), (graph, GCNClassifier)):
        fit().save(folder / "fit")
        kind.load(folder / "fit")
    save_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), folder / "net")
    load_model(folder / "net")


def commands(folder: Path) -> None:
    np.savez(folder / "own.npz", x=X, y=Y)
    (folder / "own.csv").write_text("a,b\n" + "\n".join(f"{i},{i % 2}" for i in range(40)), encoding="utf-8")
    for arguments in (
        (
            "train",
            "mlp",
            "--npz",
            "own.npz",
            "--mode",
            "convergent",
            "--max-iter",
            "2",
            "--hidden",
            "3",
            "--out",
            "one",
            "--json",
        ),
        ("train", "mlp", "--resume", "one", "--max-iter", "3", "--json"),
        (
            "train",
            "mlp",
            "--csv",
            "own.csv",
            "--target",
            "b",
            "--max-iter",
            "2",
            "--hidden",
            "3",
            "--out",
            "two",
        ),
        ("predict", "two", "--csv", "own.csv"),
        ("report", ".", "--figures"),
        ("datasets", "list"),
    ):
        done = dladmm(*arguments, cwd=folder)
        require(done.code == 0, f"dladmm {' '.join(arguments)}: {done.err[-300:]}")


def data_sets(folder: Path) -> None:
    for name in ("digits", "karate", "moons", "spirals", "sbm"):
        datasets.load(name)


def made_data_sets(folder: Path) -> None:
    """The published formats, from small files made here."""
    from dataset_files import coauthor_arrays, image_files, npz, planetoid_arrays, planetoid_files
    from test_data_fuzz import _coauthor

    from dladmm.datasets.idx import parse_images
    from dladmm.datasets.planetoid import parse_planetoid, parse_planetoid_npz

    parse_images(image_files(), "tiny", full=True)
    parse_planetoid(planetoid_files(), "tiny")
    parse_planetoid_npz(npz(planetoid_arrays()), "tiny")
    _coauthor(npz(coauthor_arrays()))


def reports(folder: Path) -> None:
    from report_runs import make_comparison

    write_page(read_report(make_comparison(folder / "c")), folder / "page.html")


IO: dict[str, Callable[[Path], None]] = {
    "checkpoints and logs": checkpointed,
    "estimators and models": estimators,
    "command line": commands,
    "embedded data sets": data_sets,
    "published formats": made_data_sets,
    "reports": reports,
}


def run_no_pickle(ledger: Ledger, count: int, seed: int) -> None:
    """Every way the library reads a file, while every way to unpickle raises."""
    with tempfile.TemporaryDirectory() as first:
        for part in IO.values():  # imports of other libraries may unpickle tables of their own; ours must not
            own = Path(first) / part.__name__
            own.mkdir()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                part(own)
    for name, part in IO.items():
        with ledger.attempt(f"no pickle: {name}"), tempfile.TemporaryDirectory() as folder:
            patches = without_pickle()
            for patch in patches:
                patch.start()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    part(Path(folder))
            finally:
                for patch in patches:
                    patch.stop()
    with ledger.attempt("the ban bites"):
        patches = without_pickle()
        for patch in patches:
            patch.start()
        try:
            pickle.loads(b"N.")
            require(False, "pickle.loads still works")
        except AssertionError:
            pass
        finally:
            for patch in patches:
                patch.stop()


def run_source(ledger: Ledger, count: int, seed: int) -> None:
    """No module of the library names an unpickler, evaluates text, or starts a shell."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        with ledger.attempt(f"source of {path.relative_to(ROOT)}"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                judge_node(node)
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    normal = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    with ledger.attempt("every requirement is pinned"):
        for requirement in metadata.requires("dladmm") or []:
            name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()
            require(name in normal or name == "dladmm", f"{name} is not in constraints.txt")


def judge_node(node: ast.AST) -> None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None)
        names = [module] if module else [alias.name for alias in node.names]
        require(not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & {n.split(".")[0] for n in names},
                f"line {node.lineno} imports {names}")  # fmt: skip
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        module, _, name = called.rpartition(".")
        require(name not in BANNED.get(module, set()), f"line {node.lineno} calls {called}")
        require(called not in ("eval", "exec", "os.system", "os.popen"), f"line {node.lineno} calls {called}")
        for keyword in node.keywords:
            literal = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            require(not (keyword.arg in ("shell", "allow_pickle") and literal is not False),
                    f"line {node.lineno} passes {keyword.arg}={literal}")  # fmt: skip
