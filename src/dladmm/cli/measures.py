"""How good a network is on rows with known targets: what ``dladmm evaluate``, tables and reports say of it.

Scores are those of ``sklearn.metrics``, to which tests hold them: its import would take a command line a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.cli.run_data import TableData
from dladmm.compute.sparse import csr_tensor
from dladmm.datasets import GraphData
from dladmm.losses import Loss
from dladmm.tables.content import printable

Array = NDArray[Any]

BINS = 10
"""Rows of the table of predicted against true numbers."""

MOST_SHOWN = 30
"""Classes whose confusion matrix is stored with a run."""


@torch.no_grad()
def of_test_rows(module: nn.Module, data: TableData | GraphData, loss: Loss) -> dict[str, Any] | None:
    """What a trained network does on the test rows or nodes; None where there are none, or its outputs overflow."""
    if isinstance(data, TableData):
        truth, classes = np.asarray(data.y_test), data.classes
        first = next(module.parameters())
        rows = torch.split(torch.as_tensor(np.asarray(data.x_test)), 8192)
        output = torch.cat([module(part.to(first)) for part in rows])
    else:
        held = np.asarray(data.test_mask)
        truth, classes = np.asarray(data.y)[held], list(range(data.n_classes))
        output = of_nodes(module, data)[data.test_mask]
    output = output.double().cpu()
    if len(truth) == 0 or not bool(output.isfinite().all()):
        return None
    found = (
        of_numbers(output, truth, loss)
        if classes is None
        else of_classes(
            output, truth, loss, [printable(c) if isinstance(c, str) else str(c) for c in classes]
        )
    )
    if classes is not None and len(classes) > MOST_SHOWN:
        del found["confusion"], found["classes"]
    return {"n_rows": len(truth)} | found


@torch.no_grad()
def of_nodes(module: nn.Module, graph: GraphData) -> Tensor:
    """Outputs (n_nodes, n_classes) of a graph network, on the CPU; sparse features stay sparse."""
    first, x = next(module.parameters()), graph.x
    features = x.to(first) if isinstance(x, Tensor) else csr_tensor(x, first.dtype, first.device)
    output: Tensor = module(features, graph.edge_index.to(first.device)).cpu()
    return output


def of_classes(output: Tensor, truth: Array, loss: Loss, classes: Sequence[str]) -> dict[str, Any]:
    """Accuracy, balanced accuracy, log loss, AUC and confusion matrix of outputs (N, n_classes) for classes (N,)."""
    chosen = loss.decision(output).numpy()
    confusion = confusion_matrix(truth, chosen, len(classes))
    found: dict[str, Any] = {
        "task": "classification",
        "accuracy": float(np.mean(chosen == truth)),
        "balanced_accuracy": balanced_accuracy(confusion),
        "most_frequent_class": float(np.bincount(truth.astype(int)).max() / len(truth)),
        "log_loss": None,
        "auc": None,
        "classes": list(classes),
        "confusion": confusion.tolist(),
    }
    try:
        chances = loss.probabilities(output).numpy()
    except InputError:
        return found
    chances = chances / chances.sum(1, keepdims=True)
    found["log_loss"] = log_loss(truth, chances)
    if len(classes) > 1 and len(np.unique(truth)) == len(classes):
        # Of two classes both have the same
        judged = [1] if len(classes) == 2 else range(len(classes))
        found["auc"] = float(np.mean([auc(truth == k, chances[:, k]) for k in judged]))
    return found


def of_numbers(output: Tensor, truth: Array, loss: Loss) -> dict[str, Any]:
    """R^2, MAE, RMSE, and predicted against true in bins, of outputs (N, n_outputs) for targets of that shape."""
    truth = truth.reshape(len(truth), -1)
    predicted = loss.decision(output).numpy().reshape(truth.shape)
    wrong = predicted - truth
    order = np.argsort(predicted.mean(1), kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return {
        "task": "regression",
        "r2": r_squared(truth, predicted) if len(truth) > 1 else None,
        "mae": float(np.abs(wrong).mean()),
        "rmse": float(np.sqrt((wrong**2).mean())),
        "predicted_against_true": [
            {"rows": len(part), "predicted": float(predicted[part].mean()), "true": float(truth[part].mean())}
            for part in parts
        ],
    }


# Scores ----------------------------------------------------------------------------------------------------------


def confusion_matrix(truth: Array, chosen: Array, n_classes: int) -> Array:
    """How many rows of class i (row) were taken for class j (column), (n_classes, n_classes)."""
    pairs = truth.astype(np.int64) * n_classes + chosen.astype(np.int64)
    return np.bincount(pairs, minlength=n_classes**2).reshape(n_classes, n_classes)


def balanced_accuracy(confusion: Array) -> float:
    """The mean, over the classes that occur, of the share of their rows that is told rightly."""
    rows = confusion.sum(1)
    return float((confusion.diagonal()[rows > 0] / rows[rows > 0]).mean())


def log_loss(truth: Array, chances: Array) -> float:
    """The mean of ``-log p`` of the true classes (N,); chances (N, n_classes) are at least the rounding of a 1."""
    least = np.finfo(chances.dtype).eps
    own = chances[np.arange(len(truth)), truth.astype(np.int64)]
    return float(-np.log(np.clip(own, least, 1 - least)).mean())


def auc(positive: Array, scores: Array) -> float:
    """How often a row of the class has the higher score than one of the others; equal scores count half."""
    _, place, rows = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(rows) - (rows - 1) / 2)[place]  # equal scores share the mean of their ranks
    ones = int(positive.sum())
    others = len(positive) - ones
    return float((rank[positive].sum() - ones * (ones + 1) / 2) / (ones * others))


def r_squared(truth: Array, predicted: Array) -> float:
    """The mean over outputs (N, n_outputs) of the share of the variance that is explained.

    Of an output that is constant it is 1 where the predictions are right and 0 where not.
    """
    errors = ((truth - predicted) ** 2).sum(0)
    spread = ((truth - truth.mean(0)) ** 2).sum(0)
    varies = spread > 0
    explained = np.where(errors == 0, 1.0, 0.0)
    explained[varies] = 1 - errors[varies] / spread[varies]
    return float(explained.mean())
