"""Conversion to and from PyTorch Geometric's `Data`; PyG is imported only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dladmm.base.errors import DladmmError, InputError
from dladmm.base.scipy_sparse import sparse

if TYPE_CHECKING:
    from dladmm.datasets._types import GraphData


def to_pyg(graph: GraphData, *, sparse_x: bool) -> Any:
    try:
        from torch_geometric.data import Data
    except ModuleNotFoundError as error:
        raise DladmmError(
            f"to_pyg() needs PyTorch Geometric and {error.name} is missing; pip install 'dladmm[graph]'"
        ) from error
    return Data(
        x=graph.x_sparse() if sparse_x else graph.x_dense(),
        edge_index=graph.edge_index,
        y=graph.y,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )


def from_pyg(data: Any, *, name: str) -> GraphData:
    from dladmm.datasets._types import GraphData

    edge_index, y = _tensor(data, "edge_index"), _tensor(data, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    x = _features(getattr(data, "x", None))
    nodes = int(x.shape[0])
    masks = {part: _mask(data, part, nodes) for part in ("train_mask", "val_mask", "test_mask")}
    n_classes = int(y.max()) + 1 if y.numel() else 0
    return GraphData(
        x=x, edge_index=edge_index.long().cpu(), y=y.long().cpu(), n_classes=n_classes, name=name, **masks
    )


def _tensor(data: Any, field: str) -> torch.Tensor:
    value = getattr(data, field, None)
    if not isinstance(value, torch.Tensor):
        raise InputError(f"data.{field} is {type(value).__name__}; a PyG Data with a tensor there is needed")
    return value


def _mask(data: Any, field: str, nodes: int) -> torch.Tensor:
    if getattr(data, field, None) is None:
        return torch.zeros(nodes, dtype=torch.bool)
    mask = _tensor(data, field)
    if mask.ndim == 2:
        raise InputError(f"data.{field} holds {mask.shape[1]} splits; choose one: data.{field}[:, k]")
    return mask.cpu()


def _features(x: Any) -> sparse.csr_array | torch.Tensor:
    """Features (nodes, features): torch sparse and scipy matrices as a csr_array, dense ones as a float32 tensor."""
    if sparse.issparse(x):
        matrix: sparse.csr_array = sparse.csr_array(x).astype(np.float32)
        return matrix
    if not isinstance(x, torch.Tensor):
        raise InputError(f"data.x is {type(x).__name__}; a tensor or a scipy sparse matrix is needed")
    tensor: torch.Tensor = x.detach().cpu().float()
    if tensor.layout == torch.strided:
        return tensor
    coo = tensor.to_sparse(layout=torch.sparse_coo).coalesce()
    row, col = coo.indices().numpy()
    rows, columns = tensor.shape
    return sparse.csr_array((coo.values().numpy(), (row, col)), shape=(rows, columns))
