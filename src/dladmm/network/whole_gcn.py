"""The paper's GCN as one block: streaming mode follows its layers by autograd, as it does those of any network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from dladmm.blocks import GraphConv, Params, WholeGraph
from dladmm.blocks.propagation import Propagated
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.chain import Chain
from dladmm.network.scaling import Scaling


class WholeGCN(WholeGraph):
    """``g(B, v)`` of a chain of :class:`~dladmm.blocks.GraphConv` blocks, whose weights are B.

    ``scaling`` is that of the features v; the trained network, :meth:`to_module`, takes them unscaled.
    """

    def __init__(self, chain: Chain, scaling: Scaling | None = None) -> None:
        super().__init__(GCN(chain), (chain,))
        self.scaling = scaling

    @staticmethod
    def of_layers(params: Sequence[Params]) -> Params:
        """B, from the parameters of every layer."""
        return {f"weights.{l}": layer["W"] for l, layer in enumerate(params)}

    @staticmethod
    def layers(params: Params) -> list[Params]:
        """The parameters of every layer, from B."""
        return [{"W": params[f"weights.{l}"]} for l in range(len(params))]

    def to_module(self, params: Params) -> nn.Module:
        layers = self.layers(params)
        chain: Chain = self.edges[0]
        return chain.to_module(layers if self.scaling is None else self.scaling.fold(layers))


class GCN(nn.Module):
    """The layers of a chain, for features v (n_nodes, n_in) and any chain with the same widths."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        blocks = [cast(GraphConv, block) for block in chain]
        self.weights = nn.ParameterList(torch.zeros(block.n_out, block.n_in) for block in blocks)
        self.activations = nn.ModuleList(block.activation.module() for block in blocks)

    def forward(self, v: Tensor, chain: Chain) -> Tensor:
        spread: Any = Spread.apply
        propagated: Any = Propagated.apply
        for W, activation, block in zip(self.weights, self.activations, chain, strict=True):
            graph = cast(GraphConv, block).graph
            if v.layout == torch.strided:  # a plain product, in which the method sees the inputs of W
                v = v @ W.T
                v = v if graph.adjacency is None else spread(v, graph.adjacency)
            else:
                v = propagated(W, graph.operand(v), graph)
            v = activation(v)
        return v


class Spread(torch.autograd.Function):
    """``A~ h`` by products that are the same in every run."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, adjacency: SparseMatrix) -> Tensor:
        ctx.adjacency = adjacency
        return adjacency @ h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.adjacency.T @ gradients[0].contiguous(), None
