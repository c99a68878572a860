"""Files with a right checksum whose contents were changed in structure: a field of another type, size or name.

A mutation changes one place of the JSON document or one tensor; the file is then read and used as people do: a network
predicts, a run is resumed, a certificate is verified. The answer is the library's own error, or a result.
"""

from __future__ import annotations

import copy
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from chaos.ledger import Ledger, require
from dladmm import (
    DladmmError,
    GCNClassifier,
    MLPClassifier,
    MLPRegressor,
    Recurrent,
    datasets,
    load_model,
    mlp,
    train,
    verify,
)
from dladmm.base.container import load, save
from dladmm.callbacks import Checkpoint, EarlyStopping
from dladmm.training.checkpoint import save_model

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4)), np.arange(24) % 3
SECONDS = 20.0
"""A file of a few kilobytes is answered sooner, however busy the machine."""

Use = Callable[[Path], object]
Content = tuple[str, dict[str, torch.Tensor], dict[str, Any], Use]

STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 10**7, 10**18, -(10**18), 10**400, 1.5, -0.5, 1e308,
    "", "x", "nan", "1", "é\x00", [], [[]], [1, 2, 3], [0], [-1], [None], [10**9] * 4, [1] * 2000,
    {}, {"name": "x"}, {"a": {"b": []}},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def mutated(
    tensors: dict[str, torch.Tensor], meta: dict[str, Any], rng: random.Random
) -> tuple[dict[str, torch.Tensor], dict[str, Any], str]:
    """One change of the document or of a tensor, and what it was."""
    tensors, meta = dict(tensors), copy.deepcopy(meta)
    if tensors and rng.random() < 0.2:
        name = rng.choice(sorted(tensors))
        how = rng.choice(
            ["gone", "renamed", "flat", "empty", "whole numbers", "half", "nan", "one more axis"]
        )
        tensor = tensors.pop(name)
        if how != "gone":
            tensors["x" if how == "renamed" else name] = {
                "flat": lambda: tensor.flatten(),
                "empty": lambda: tensor.flatten()[:0],
                "whole numbers": lambda: tensor.long(),
                "half": lambda: tensor.half(),
                "nan": lambda: (
                    torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor + 10**9
                ),
                "one more axis": lambda: tensor[None],
            }.get(how, lambda: tensor)()
        return tensors, meta, f"tensor {name} {how}"
    place = rng.choice(places(meta))
    held = meta
    for key in place[:-1]:
        held = held[key]
    key, how = place[-1], rng.choice(["other", "other", "other", "gone", "twice", "renamed"])
    if how == "gone":
        held.pop(key)
    elif how == "twice":
        if isinstance(held, list):
            held.insert(key, held[key])
        else:
            held[f"{key}2"] = held[key]
    elif how == "renamed" and isinstance(held, dict):
        held[rng.choice(["x", "name", "type"])] = held.pop(key)
    else:
        held[key] = copy.deepcopy(rng.choice(STRANGE))
        how = f"{held[key]!r:.60}"
    return tensors, meta, f"{'.'.join(map(str, place))}: {how}"


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"a": X[:, 0], "kind": np.where(X[:, 1] > 0, "yes", "no"), "gap": np.where(X[:, 2] > 1, np.nan, 1.0)}
    )


def _estimator(cls: Any, rows: Any) -> Use:
    def use(path: Path) -> None:
        found = cls.load(path)
        found.predict(rows)
        if hasattr(found, "predict_proba"):
            found.predict_proba(rows)
        str(found.certificate_), repr(found.history_), repr(found)

    return use


def _network(shape: tuple[int, ...]) -> Use:
    def use(path: Path) -> None:
        found = load_model(path)
        with suppress(RuntimeError):  # torch's: the layers fit inputs of another size
            found.module(torch.zeros(shape))
        if found.loss is not None:
            str(found.loss)

    return use


def _run(**settings: Any) -> Use:
    def use(path: Path) -> None:
        folder = path.with_name(f"{path.name}-run")
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / "checkpoint-000002.dladmm").write_bytes(path.read_bytes())
        callbacks = [Checkpoint(folder, resume=True), EarlyStopping("loss", patience=3)]
        train(mlp([4, 3, 3]), X, Y, max_iter=4, callbacks=callbacks, **settings)

    return use


def _certificate(path: Path) -> None:
    verify.verify(*verify.read(str(path)), {"X": X, "y": Y})


def documents(folder: Path) -> dict[str, Content]:
    """Valid files of every kind, by name, as tensors, document and how they are used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _documents(folder)


def _documents(folder: Path) -> dict[str, Content]:
    found: dict[str, Content] = {}

    def keep(name: str, kind: str, path: Path, use: Use) -> None:
        found[name] = (kind, *load(path, kind), use)

    path = folder / "file"
    MLPClassifier((4,), max_iter=2).fit(frame(), np.array(["a", "b", "c"])[Y]).save(path)
    keep("classifier", "model", path, _estimator(MLPClassifier, frame()))
    MLPRegressor((4,), mode="accelerated", max_iter=2, loss="huber").fit(X, X[:, 0]).save(path)
    keep("regressor", "model", path, _estimator(MLPRegressor, X))
    graph = datasets.load("karate")
    GCNClassifier(4, max_iter=2).fit(graph).save(path)
    keep("graph", "model", path, _estimator(GCNClassifier, graph))
    steps = mlp([4, 3, 3], {"name": "quantised", "levels": 4})
    train(steps, X, Y, mode="convergent", max_iter=2).save(path, state=True)
    keep("steps", "model", path, _network((2, 4)))
    pictures = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2),
        nn.Upsample(size=2), nn.Flatten(), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 3),
    )  # fmt: skip
    save_model(pictures.eval(), path, loss="cross_entropy")
    keep("pictures", "model", path, _network((2, 1, 4, 4)))
    save_model(nn.Sequential(Recurrent(nn.LSTM(3, 4, batch_first=True)), nn.Linear(4, 2)), path)
    keep("sequence", "model", path, _network((2, 5, 3)))
    for mode in ("convergent", "accelerated", "streaming"):
        callbacks = [Checkpoint(folder / mode), EarlyStopping("loss", patience=3)]
        result = train(mlp([4, 3, 3]), X, Y, mode=mode, max_iter=2, callbacks=callbacks)
        keep(f"{mode} run", "training", folder / mode / "checkpoint-000002.dladmm", _run(mode=mode))
        if mode == "convergent":
            result.certificate.save(path)
            keep("certificate", "certificate", path, _certificate)
    return found


def answer(content: Content, rng: random.Random, path: Path) -> tuple[str, BaseException | None, float, str]:
    """What one mutation is answered with: refused or used, an error that is not the library's, and seconds."""
    kind, tensors, meta, use = content
    tensors, meta, what = mutated(tensors, meta, rng)
    save(path, kind, tensors, meta)
    began = time.perf_counter()
    known: tuple[type[Exception], ...] = (DladmmError, verify.Unreadable)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            use(path)
        except known:
            return "refused", None, time.perf_counter() - began, what
        except Exception as error:
            return "failed", error, time.perf_counter() - began, what
    return "used", None, time.perf_counter() - began, what


def run(ledger: Ledger, size: int, seed: int) -> None:
    """``size`` mutations, the files taking turns."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contents = documents(folder)
        for number in range(size):
            kind = list(contents)[number % len(contents)]
            outcome, error, seconds, what = answer(contents[kind], rng, folder / "mutated")
            with ledger.attempt(f"{kind}, mutation {number} of seed {seed}: {what}"):
                require(error is None, f"ended in {error!r:.300}")
                require(seconds < SECONDS, f"took {seconds:.1f} s")
            ledger.count(outcome)
    require(ledger.notes.get("refused", 0) > size / 4, "hardly a mutation was noticed: nothing was tested")
