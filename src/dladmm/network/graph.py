"""Graphs: the normalised adjacency A~, dense or sparse features, and checks of user input.

``A~ = (D + I)^-1/2 (A + I) (D + I)^-1/2`` of the paper's Section 3.3, for an undirected graph, D the sums of its edges'
weights; the paper's edges weigh 1.
"""

from __future__ import annotations

from copy import copy
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.sparse import scipy_matrix

DENSE_ENTRY_COST = 0.25
"""Time per entry of a dense matrix in a product, relative to a stored entry of a CSR matrix (2-core CPU, MKL)."""


def normalised_adjacency(edge_index: Any, n_nodes: int, edge_weight: Any = None) -> sparse.csr_array:
    """``(D + I)^-1/2 (A + I) (D + I)^-1/2`` in float64, from PyG's ``edge_index`` (2, E), as its ``gcn_norm``.

    An edge given in one direction counts in both, one given twice counts once, and self loops are dropped because
    ``+ I`` adds one to every node. A node without edges has the diagonal entry 1. With ``edge_weight`` (E,) the entries
    of A are the weights, and a self loop that is given has its own weight in the place of 1.

    Returns a CSR array of shape (n_nodes, n_nodes).
    """
    return normalised(joined_nodes(edge_index, n_nodes, edge_weight))


def joined_nodes(edge_index: Any, n_nodes: int, edge_weight: Any = None) -> sparse.csr_array:
    """``A + I`` as a CSR array: which nodes a node sees, by ones or by the weights of the edges."""
    row, column = check_edge_index(edge_index, n_nodes)
    weight = check_edge_weight(edge_weight, len(row))
    kept = row != column
    loops = np.ones(n_nodes)
    if weight is not None:
        loops[row[~kept]] = weight[~kept]
        kept &= weight > 0
    row, column = row[kept], column[kept]
    if weight is None:
        ones = np.ones(2 * len(row))
        pairs = (np.concatenate([row, column]), np.concatenate([column, row]))
        adjacency = sparse.csr_array(sparse.coo_array((ones, pairs), shape=(n_nodes, n_nodes)))
        adjacency.data[:] = 1.0
    else:
        low, high, own = _once(row, column, weight[kept], n_nodes)
        pairs = (np.concatenate([low, high]), np.concatenate([high, low]))
        entries = np.concatenate([own, own])
        adjacency = sparse.csr_array(sparse.coo_array((entries, pairs), shape=(n_nodes, n_nodes)))
    return sparse.csr_array(adjacency + sparse.diags_array(loops))


def _once(
    row: np.ndarray[Any, Any], column: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], n_nodes: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Every pair of nodes once, with its weight, which must be the same wherever the pair is given."""
    low, high = np.minimum(row, column), np.maximum(row, column)
    order = np.argsort(low * n_nodes + high, kind="stable")
    low, high, weight = low[order], high[order], weight[order]
    again = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
    differs = again & ~np.isclose(weight[1:], weight[:-1], rtol=1e-5, atol=0.0)
    if differs.any():
        k = int(np.argmax(differs))
        raise InputError(
            f"edge_weight: the edge between nodes {low[k]} and {high[k]} has the weights {weight[k]:g} and "
            f"{weight[k + 1]:g}; a GCN's edges weigh the same in both directions. Make the weights symmetric, for "
            "example by their mean."
        )
    first = np.concatenate([np.ones(len(low[:1]), dtype=bool), ~again])
    return low[first], high[first], weight[first]


def normalised(joined: sparse.csr_array) -> sparse.csr_array:
    """``(D + I)^-1/2 (A + I) (D + I)^-1/2`` of ``A + I``, which is overwritten."""
    adjacency = joined
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    adjacency.data *= scale[adjacency.indices] * np.repeat(scale, np.diff(adjacency.indptr))
    return adjacency


def propagated_features(
    adjacency: sparse.csr_array, x: sparse.csr_array | np.ndarray[Any, Any]
) -> tuple[sparse.csr_array | np.ndarray[Any, Any], bool]:
    """``(A~ X, True)``, dense or sparse, or ``(X, False)``, whichever makes ``A~ X W^T`` cheapest.

    On graphs with many neighbours A~ X has several times the entries of A~ and X together; then two products with the
    factors cost less than one with their product. X has shape (n_nodes, n_features).
    """
    entries = x.shape[0] * x.shape[1] * DENSE_ENTRY_COST
    if isinstance(x, np.ndarray):
        return np.asarray(adjacency @ x), True
    product = sparse.csr_array(adjacency @ x)
    apart, together = adjacency.nnz + x.nnz, min(product.nnz, entries)
    if apart < together:
        return x, False
    return (product, True) if product.nnz <= entries else (product.toarray(), True)


def with_normalised_rows(data: Any) -> Any:
    """A graph object, or features (n_nodes, n_features), with every row divided by its sum; rows of zeros stay.

    A graph object is copied; its other fields are the same.
    """
    if hasattr(data, "edge_index"):
        x = with_normalised_rows(data.x)
        if is_dataclass(data) and not isinstance(data, type):
            return replace(data, x=x)
        copied = copy(data)
        copied.x = x
        return copied
    if isinstance(data, Tensor) and data.layout == torch.strided:
        sums = data.sum(1, keepdim=True)
        return data / torch.where(sums == 0, torch.ones_like(sums), sums)
    if isinstance(data, Tensor) or sparse.issparse(data):
        matrix = sparse.csr_array(scipy_matrix(data) if isinstance(data, Tensor) else data)
        lengths = np.asarray(matrix.sum(1)).ravel()
        scaled = sparse.diags_array(1 / np.where(lengths == 0, 1, lengths)) @ matrix
        return sparse.csr_array(scaled.astype(matrix.dtype if matrix.dtype.kind == "f" else np.float32))
    array = np.asarray(data, dtype=np.float64)
    totals = array.sum(1, keepdims=True)
    return array / np.where(totals == 0, 1, totals)


# Checks ----------------------------------------------------------------------------------------------------------


def check_edge_index(edge_index: Any, n_nodes: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Both rows of ``edge_index`` (2, E) as int64 arrays, with every entry checked to be a node number."""
    array = edge_index.detach().cpu().numpy() if isinstance(edge_index, Tensor) else np.asarray(edge_index)
    if array.ndim != 2 or array.shape[0] != 2:
        raise InputError(
            f"edge_index must have shape (2, edges), got {array.shape}; transpose a list of pairs first."
        )
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputTypeError(f"edge_index must hold whole numbers, got dtype {array.dtype}.")
    if array.size and (array.min() < 0 or array.max() >= n_nodes):
        raise InputError(
            f"edge_index names nodes {array.min()}..{array.max()}, but x has {n_nodes} rows: 0..{n_nodes - 1}."
        )
    row, column = array.astype(np.int64)
    return row, column


def check_edge_weight(edge_weight: Any, n_edges: int) -> np.ndarray[Any, Any] | None:
    """Edge weights as a float64 array of shape (n_edges,), finite and not negative; None where all are 1."""
    if edge_weight is None:
        return None
    is_tensor = isinstance(edge_weight, Tensor)
    values = edge_weight.detach().cpu().numpy() if is_tensor else np.asarray(edge_weight)
    if values.shape not in ((n_edges,), (n_edges, 1)) or values.dtype.kind not in "biuf":
        raise InputError(
            f"edge_weight must hold one number per edge, shape ({n_edges},); got shape {values.shape} of dtype "
            f"{values.dtype}. Features of edges are not used."
        )
    values = values.reshape(-1).astype(np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(
            "edge_weight must be finite and not negative: a node's edges are divided by their sum."
        )
    return None if (values == 1).all() else values


def check_node_mask(mask: Any, n_nodes: int, name: str) -> Tensor:
    """A boolean mask over the nodes as a CPU tensor of shape (n_nodes,) with at least one True."""
    if isinstance(mask, Tensor):
        chosen = mask.detach().cpu()
    else:
        array = np.asarray(mask)
        if array.dtype.kind not in "biuf":
            raise InputTypeError(f"{name} must be a boolean mask, got dtype {array.dtype}.")
        chosen = torch.from_numpy(np.array(array))
    if chosen.dtype != torch.bool:
        raise InputTypeError(
            f"{name} must be a boolean mask, got dtype {str(chosen.dtype).removeprefix('torch.')}; from node "
            f"indices make one with mask = torch.zeros(n_nodes, dtype=torch.bool); mask[indices] = True."
        )
    if chosen.shape != (n_nodes,):
        raise InputError(
            f"{name} must have shape ({n_nodes},), one entry per node, got {tuple(chosen.shape)}."
        )
    if not bool(chosen.any()):
        raise InputError(f"{name} selects no node; at least one is needed.")
    return chosen


def check_node_features(x: Any, dtype: torch.dtype) -> sparse.csr_array | np.ndarray[Any, Any]:
    """Finite float64 features (n_nodes, n_features): a scipy CSR array if ``x`` is sparse, else a numpy array."""
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy() if x.layout == torch.strided else scipy_matrix(x)
    values = x.data if sparse.issparse(x) else np.asarray(x)
    if values.dtype.kind not in "biuf":
        kind = "complex; only real numbers are supported" if values.dtype.kind == "c" else "not numeric"
        raise InputTypeError(f"x is {kind} (dtype {values.dtype}).")
    shape = x.shape if sparse.issparse(x) else values.shape
    if len(shape) != 2:
        raise InputError(f"x must have shape (nodes, features), got {tuple(shape)}.")
    if 0 in shape:
        raise InputError(f"x is empty (shape {tuple(shape)}); at least one node and one feature are needed.")
    if not np.isfinite(values).all():
        raise InputError("x contains NaN or infinite values; impute or remove them first.")
    largest = float(np.abs(values).max(initial=0.0))
    if largest > torch.finfo(dtype).max:
        raise InputError(f"x has values too large for {dtype}; scale the features or use dtype='float64'.")
    if sparse.issparse(x):
        return sparse.csr_array(x).astype(np.float64)
    return values.astype(np.float64)
