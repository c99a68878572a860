"""What a silo does: reads its own rows, trains, and keeps the network. Put your own data and network here."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dladmm import mlp
from dladmm.silos import Silo, train_silo


def rows(which: int):
    """Training and test rows of one class, as if this silo had no others."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / 16, y, test_size=0.25, random_state=0, stratify=y)
    return X[y == which], y[y == which], X_test[y_test == which], y_test[y_test == which]


def train_here(silo: Silo) -> None:
    which = int(silo.node["partition-id"])
    X, y, X_test, y_test = rows(which)
    result = train_silo(
        silo,
        mlp([64, 30, 10]),
        X,
        y,
        validation=(X_test, y_test),
        mode="accelerated",
        sweep="backward",  # fewer messages (docs/silos.md)
        diagnostics_every=10,
        dropout=0.0,
        dtype="float64",
        max_iter=int(silo.config["max-iter"]),
    )
    out = Path(str(silo.config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    result.save(out / f"silo-{which}.npz")
    if which == 0:
        accuracy = result.history.last("val_accuracy")
        (out / "accuracy.txt").write_text(f"{accuracy:.4f}\n", encoding="utf-8")
    torch.save(result.module.state_dict(), out / f"silo-{which}.pt")
