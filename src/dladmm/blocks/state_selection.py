"""The part of a recurrent layer's states that the rest of the network takes."""

from __future__ import annotations

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
