"""Certificates of honest runs of all kinds, which the verifier accepts, and tampered ones, which it rejects.

Whoever tampers computes every checksum of the file again: only its contents can tell.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dladmm
from chaos.ledger import Ledger, require
from dladmm.base import container
from dladmm.training.certificate_file import digest_of
from dladmm.verify import Report, Unreadable, hash_of, read, verify

LOSSES = (
    "cross_entropy", {"name": "cross_entropy", "class_weight": [1.0, 2.0, 0.5], "label_smoothing": 0.1},
    "binary_logistic", {"name": "binary_logistic", "pos_weight": [2.0, 1.0, 3.0]}, "squared_hinge", "multilabel",
    "squared", {"name": "huber", "delta": 0.5}, "absolute", {"name": "quantile", "q": 0.8, "width": 0.2},
    {"name": "poisson", "cap": 3.0},
)  # fmt: skip
ACTIVATIONS = (
    "relu", {"name": "leaky_relu", "slope": 0.1}, "identity", "hard_tanh", "sigmoid", "tanh", "softplus", "gelu",
    {"name": "elu", "alpha": 0.7}, "sign", "step", "quantised",
)  # fmt: skip
PENALTIES = (
    None, "l2", {"name": "l1", "strength": 0.05}, {"name": "elastic_net", "l1": 0.03, "l2": 0.02}, "non_negative",
)  # fmt: skip
Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def honest(seed: int) -> Case:
    """Tensors, claims and data of one small run; the seed decides its kind."""
    rng = np.random.default_rng(seed)
    loss, penalty = LOSSES[seed % len(LOSSES)], PENALTIES[int(rng.integers(len(PENALTIES)))]
    name = loss if isinstance(loss, str) else loss["name"]
    n = int(rng.integers(12, 40))
    rows = rng.normal(size=(n, 4)) * 10 ** rng.uniform(-1, 0.5)
    labels = rng.permutation(np.arange(n) % 3)
    y = labels
    if name == "multilabel":
        y = rng.integers(0, 2, (n, 3))
    elif name == "poisson":
        y = rng.poisson(2.0, (n, 3)).astype(float)
    elif name in ("squared", "huber", "absolute", "quantile"):
        y = rng.normal(size=(n, 3))
    activation = ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))]
    options = {
        "loss": loss, "regularizer": penalty, "mode": "convergent", "max_iter": int(rng.integers(1, 15)),
        "dtype": ("float32", "float64")[int(rng.integers(2))], "random_state": seed,
        "nu": float(rng.choice([0.1, 1.0, 3.0])),
    }  # fmt: skip
    data: dict[str, Any] = {"X": rows, "y": y}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if seed % 4 == 3:
            smooth = activation if activation not in ("sign", "step", "quantised") else "relu"
            data |= {"edge_index": rng.integers(0, n, (2, 2 * n)), "train_mask": rng.random(n) < 0.6}
            data["train_mask"][np.unique(labels, return_index=True)[1]] = True
            arrays = data["X"], data["edge_index"], y, data["train_mask"]
            result = dladmm.train_graph(*arrays, hidden=[5], n_classes=3, activation=smooth, **options)
        else:
            if seed % 3 == 1:
                data["sample_weight"] = rng.uniform(0.5, 3.0, n)
            widths = [4, *rng.integers(2, 7, int(rng.integers(0, 3))).tolist(), 3]
            result = dladmm.train(
                dladmm.mlp(widths, dladmm.activations.get_activation(activation)), rows, y,
                sample_weight=data.get("sample_weight"), **options,
            )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.certificate"
        result.certificate.save(path)
        tensors, claims = read(str(path))
    return tensors, claims, data


def judged(case: Case, folder: str) -> Report:
    """What the verifier says of a file made of these tensors and claims, with every checksum computed again."""
    tensors, claims, data = case
    path = Path(folder) / "other.certificate"
    if "hashes" in claims and isinstance(claims["hashes"], dict):
        claims["hashes"]["tensors"] = {name: hash_of(name, t.dtype.str, t) for name, t in tensors.items()}
    claims["digest"] = digest_of(claims)
    container.save(
        path, "certificate", {n: torch.from_numpy(t.copy()) for n, t in tensors.items()}, {"claims": claims}
    )
    with np.errstate(all="ignore"):
        return verify(*read(str(path)), data)


def changed(value: float, rng: np.random.Generator) -> float:
    """Another number, by a thousandth or by much."""
    factor = 1 + float(rng.choice([1e-3, -1e-3, 0.01, 0.3, -0.5, 4.0]))
    return value * factor if value else float(rng.choice([1e-2, -1e-2, 1.0]))


def tampered(case: Case, rng: np.random.Generator) -> tuple[str, Case]:
    """One tampering, its name first."""
    tensors, claims, data = copy.deepcopy(case)
    tensors, data = dict(tensors), dict(data)
    kinds = ["end", "history", "parameter", "variable", "data", "permuted", "loss", "rho", "nu", "H", "rise", "reused",
             "penalty", "activation", "exempt", "shortened", "steps"]  # fmt: skip
    kind = str(rng.choice(kinds))
    h, n = claims["history"], len(claims["history"]["iteration"])
    k = int(rng.integers(n))
    if kind == "end":
        name = str(rng.choice([each for each, value in claims["end"].items() if (value or 0.0) > 1e-6]))
        claims["end"][name] = changed(claims["end"][name], rng)
    elif kind == "history":
        bound = [name for name in h if name not in ("stationarity", "loss", "dual_optimality")]
        column = str(rng.choice(bound))
        h[column][k] = changed(h[column][k], rng)
    elif kind in ("parameter", "variable"):
        start = "params" if kind == "parameter" else ("outputs", "u")
        name = str(rng.choice([each for each in tensors if each.startswith(start)]))
        entries = tensors[name].copy().reshape(-1)
        i = int(rng.integers(entries.size))
        # by a share of the typical entry: smaller changes may leave all that is claimed true
        entries[i] += (1e-2 + float(np.sqrt((entries**2).mean()))) * float(rng.choice([0.03, -0.1, 1.0]))
        tensors[name] = entries.reshape(tensors[name].shape)
    elif kind == "data":
        X = data["X"].copy()
        i = tuple(int(rng.integers(size)) for size in X.shape)
        X[i] = changed(float(X[i]), rng)
        data["X"] = X
    elif kind == "permuted":
        order = np.roll(np.arange(len(data["y"])), 1)
        name = str(rng.choice(["X", "y"]))
        data[name] = data[name][order]
    elif kind == "loss":
        same = str(claims["loss"]["name"])
        others = [each for each in ("squared", "huber", "squared_hinge", "binary_logistic") if each != same]
        claims["loss"] = {"name": str(rng.choice(others)), "delta": 1.0}
    elif kind in ("rho", "nu"):
        kind = kind if len(claims["network"]) > 1 else "rho"  # without hidden layers nu weighs nothing
        claims[kind] = changed(claims[kind], rng)
        h[kind] = [claims[kind]] * n
        claims["verdict"][kind] = claims[kind]
    elif kind == "H":
        claims["H"] = claims["verdict"]["H"] = claims["H"] * float(rng.choice([0.5, 0.9, 2.0]))
        claims["C1"] = claims["rho"] / 2 - 2 * claims["H"] ** 2 / claims["rho"]
    elif kind == "rise":  # a Lagrangian moved, and the falls beside it made to fit
        h["lagrangian"][k] = changed(h["lagrangian"][k], rng)
        L = [claims["start"], *h["lagrangian"]]
        h["descent"] = [a - b for a, b in pairwise(L)]
    elif kind == "reused":
        i = next(name for name in tensors if name.endswith("W"))
        tensors[i] = tensors[i] + np.float32(rng.normal())
    elif kind == "penalty":
        claims["penalty"] = (
            {"name": "l2", "strength": 0.7} if claims["penalty"]["name"] != "l2" else {"name": "none"}
        )
    elif kind == "activation":
        blocks = [
            block for block in claims["network"] if block.get("f", {}).get("name", "identity") != "identity"
        ]
        if not blocks:
            claims["network"].append(claims["network"][0])
        for block in blocks:
            block["f"] = {"name": "softplus" if block["f"]["name"] != "softplus" else "tanh"}
    elif kind == "exempt":
        claims["exempt"] = claims["verdict"]["exempt"] = [*claims["exempt"], n]
    elif kind == "shortened":
        for column in h.values():
            del column[k]
    elif rng.random() < 0.3:
        row = claims["moves"][k]
        i = int(np.argmax(row[: len(row) // 2]))
        row[i] = changed(row[i], rng)
    else:
        name = str(rng.choice(["squared_steps", "c2"]))
        h[name][k] = changed(h[name][k], rng) if h[name][k] else 1.0
    return kind, (tensors, claims, data)


def run_honest(ledger: Ledger, size: int, seed: int) -> None:
    """``size`` honest runs; each certificate is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(size):
            with ledger.attempt(f"honest run {1000 * seed + i}"):
                report = judged(honest(1000 * seed + i), folder)
                require(report.accepted, "; ".join(report.failures[:3]))


def run_tampered(ledger: Ledger, size: int, seed: int) -> None:
    """``size`` tampered certificates; each is rejected."""
    rng = np.random.default_rng(seed)
    cases = [honest(1000 * seed + 500 + i) for i in range(max(4, size // 10))]
    with tempfile.TemporaryDirectory() as folder:
        for i in range(size):
            kind, case = tampered(cases[i % len(cases)], rng)
            with ledger.attempt(f"{kind} of case {1000 * seed + 500 + i % len(cases)}"):
                try:
                    accepted = judged(case, folder).accepted
                except Unreadable:
                    accepted = False
                require(not accepted, "accepted")
            ledger.count(kind)
