"""Of a recurrent layer: its parameters as two matrices, and the states that the rest of the network takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dladmm.blocks.linear_map import LinearMap
from dladmm.solvers.subproblems import Params


class StateSelection(LinearMap):
    """What of the states the rest of the network sees: the hidden ones, of the last time step or of all."""

    def __init__(self, n_hidden: int, last: bool) -> None:
        super().__init__(_Selected(n_hidden, last))

    def to_module(self, params: Params) -> nn.Module:
        return nn.Sequential()  # the recurrent layer itself returns no more than that


class _Selected(nn.Module):
    def __init__(self, n_hidden: int, last: bool) -> None:
        super().__init__()
        self.n_hidden, self.last = n_hidden, last

    def forward(self, s: Tensor) -> Tensor:
        hidden = s[..., : self.n_hidden]
        return hidden[:, -1] if self.last else hidden


def joined_parameters(params: Params, bias: bool) -> list[Tensor]:
    """(W, b) of the inputs and of the states, each as one matrix."""
    names = ("ih", "hh")
    if not bias:
        return [params[f"weight_{n}_l0"] for n in names]
    return [torch.cat([params[f"weight_{n}_l0"], params[f"bias_{n}_l0"][:, None]], 1) for n in names]


def parted_parameters(matrices: list[Tensor], bias: bool) -> Params:
    """What :func:`joined_parameters` joined."""
    params: Params = {}
    for name, matrix in zip(("ih", "hh"), matrices, strict=True):
        params[f"weight_{name}_l0"] = matrix[:, :-1] if bias else matrix
        if bias:
            params[f"bias_{name}_l0"] = matrix[:, -1]
    return params
