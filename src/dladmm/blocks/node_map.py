"""A fixed linear map over the nodes of a graph: what graph convolutions do before their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.base import Block
from dladmm.compute.sparse import SparseMatrix
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class NodeMap(Block):
    """``g(V) = S V``, or ``(S V, V)`` side by side, for V (n_nodes, n_features) and a sparse S (n_nodes, n_nodes).

    Streaming mode needs its products alone; its subproblem, which ties all nodes to each other, is not solved.

    Parameters
    ----------
    matrix : SparseMatrix
        S: the normalised adjacency of a ``GCNConv``, the means over neighbours of a ``SAGEConv``.
    beside : bool, default False
        Whether the nodes' own features stand beside those of their neighbours.
    """

    linear = True

    def __init__(self, matrix: SparseMatrix, *, beside: bool = False) -> None:
        self.matrix, self.beside = matrix, beside

    def __repr__(self) -> str:
        return "NodeMap(neighbours beside own)" if self.beside else "NodeMap(neighbours)"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return {}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        around = self.matrix @ v
        return torch.cat([around, v], dim=1) if self.beside else around

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual(), work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        if not self.beside:
            return self.matrix.T @ gradient
        n = v.shape[1]
        return self.matrix.T @ gradient[:, :n].contiguous() + gradient[:, n:]

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self.forward(params, move)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        raise InputError("graph convolutions of a module are trained by mode='streaming' alone.")

    def to_module(self, params: Params) -> nn.Module:
        return _Mapped(self)


class _Mapped(nn.Module):
    """The map as a module, for the one graph that it is of."""

    def __init__(self, block: NodeMap) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return self.block.forward({}, x)
