"""A trained GCN as an ordinary torch module with PyG's calling convention: ``network(x, edge_index)``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dladmm.compute.sparse import csr_tensor
from dladmm.network.graph import normalised_adjacency


class GraphLayer(nn.Module):
    """``f(A~ x W^T)`` for a given A~: a GCN layer without bias."""

    def __init__(self, weight: Tensor, activation: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.activation = activation

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        hidden: Tensor = self.activation(adjacency @ (x @ self.weight.T))
        return hidden

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"


class GraphNetwork(nn.Module):
    """A stack of GCN layers: logits of every node from features (dense or sparse) and PyG's ``edge_index``."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        weight = next(self.parameters())
        with torch.no_grad():
            adjacency = csr_tensor(normalised_adjacency(edge_index, len(x)), weight.dtype, weight.device)
        x = x.to(weight.dtype)
        for layer in self.layers:
            x = layer(x, adjacency) if isinstance(layer, GraphLayer) else layer(x)
        return x
