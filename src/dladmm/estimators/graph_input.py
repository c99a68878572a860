"""What people give for a graph: an object or arrays, masks of one split or of several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import InputError, InputTypeError
from dladmm.network.given_graph import graph_fields, is_graph, refuse_several_graphs

Array = NDArray[Any]


def graph_input(
    X: Any,
    y: Any,
    edge_index: Any,
    train_mask: Any,
    val_mask: Any,
    split: int | None = None,
    needs_val: bool = False,
) -> tuple[Any, Any, Array, Any, Any]:
    """Features, edges, labels and masks of a graph object or of arrays; ``needs_val``: also its validation mask."""
    refuse_several_graphs(X)
    if is_graph(X):
        if edge_index is not None or y is not None:
            raise InputError(
                "edge_index and y are part of the graph already; give a graph or arrays, not both."
            )
        train_mask = getattr(X, "train_mask", None) if train_mask is None else train_mask
        val_mask = getattr(X, "val_mask", None) if val_mask is None and needs_val else val_mask
        found = graph_fields(X)
        X, edge_index, y = found.x, found.edge_index, found.y
    if edge_index is None or y is None:
        raise InputError("fit needs a graph object, or X with y, edge_index and train_mask.")
    if train_mask is None:
        raise InputError("train_mask is missing: it says which nodes are labelled.")
    if needs_val and val_mask is None:
        raise InputError("early_stopping looks at the nodes of val_mask; give one.")
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise InputTypeError(f"y must hold one label per node, got shape {labels.shape}.")
    shape = getattr(X, "shape", None) or np.shape(X)
    if len(shape) == 2 and 0 < shape[0] != len(labels):
        raise InputError(f"y must hold one label per node, {shape[0]}; got {len(labels)}.")
    masks = of_split(train_mask, split, "train_mask"), of_split(val_mask, split, "val_mask")
    return X, edge_index, labels, *masks


def of_split(mask: Any, split: int | None, name: str) -> Any:
    """One column of a mask (n_nodes, n_splits), as PyG keeps several splits; a mask of one split as it is."""
    shape = np.shape(mask)
    if len(shape) != 2:
        return mask
    if split is None:
        if shape[1] == 1:
            return np.asarray(mask)[:, 0]
        raise InputError(f"{name} holds {shape[1]} splits: say which with split=0 to {shape[1] - 1}.")
    if isinstance(split, bool) or not isinstance(split, (int, np.integer)) or not 0 <= split < shape[1]:
        raise InputError(f"split must be a whole number from 0 to {shape[1] - 1}, got {split!r}.")
    return np.asarray(mask)[:, int(split)]
