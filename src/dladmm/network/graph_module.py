"""A trained GCN as a torch module with PyG's calling convention, ``network(x, edge_index)``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dladmm.compute.sparse import csr_tensor
from dladmm.network.graph import normalised_adjacency


class GraphLayer(nn.Module):
    """``f(A~ x W^T)``, a GCN layer without bias: x is (n_nodes, n_in), A~ (n_nodes, n_nodes), W (n_out, n_in)."""

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
    """A stack of GCN layers: logits (n_nodes, n_classes) from x (n_nodes, n_features) and ``edge_index`` (2, E).

    ``edge_weight`` (E,) goes with a network that was trained with weights.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        weight = next(self.parameters())
        with torch.no_grad():
            matrix = normalised_adjacency(edge_index, len(x), edge_weight)
            adjacency = csr_tensor(matrix, weight.dtype, weight.device)
        x = x.to(weight.dtype)
        for layer in self.layers:
            x = layer(x, adjacency) if isinstance(layer, GraphLayer) else layer(x)
        return x
