"""A block whose parameters are not trained: layers with ``requires_grad=False``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dladmm.blocks.base import Block, Draw
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class Frozen(Block):
    """``g(v) = h(B, v)`` with B held: the chain has no parameters of it, so no mode can move them.

    Its input is solved by h as ever.

    Parameters
    ----------
    block : Block
        h.
    held : dict of tensors
        Its parameters B, by their names in ``block``.
    """

    def __init__(self, block: Block, held: Params) -> None:
        self.block, self._held = block, {name: p.detach().cpu().clone() for name, p in held.items()}
        self._placed: dict[tuple[torch.dtype, torch.device], Params] = {}
        self.support, self.linear, self.continuous = block.support, block.linear, block.continuous
        self.draws = block.draws
        self.begins_with_residual = block.begins_with_residual
        self.keeps_positions = block.keeps_positions
        self.positions_share_weights = block.positions_share_weights
        self.n_in, self.n_out = block.n_in, block.n_out

    def __repr__(self) -> str:
        return f"Frozen({self.block!r})"

    def held(self, like: Tensor) -> Params:
        """The parameters where ``like`` lies; the same tensors at every call, so that factors of them are kept."""
        place = like.dtype, like.device
        if place not in self._placed:
            moved = {name: p.to(device=place[1], dtype=place[0]) for name, p in self._held.items()}
            self._placed[place] = moved
        return self._placed[place]

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return {}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.block.forward(self.held(v), v)

    def draw(self, draw: Draw | None) -> None:
        self.block.draw(draw)

    def module_input(self, v: Tensor) -> Tensor:
        return self.block.module_input(v)

    def check_input(self, v: Tensor, name: str) -> None:
        self.block.check_input(v, name)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        return self.block.update_input(self.held(v), v, anchor, term, work)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.block.input_gradient(self.held(v), v, term, work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return self.block.pull_back(self.held(v), v, prediction, gradient, work)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self.block.push_input(self.held(v), v, move, prediction)

    def to_module(self, params: Params) -> nn.Module:
        return self.block.to_module(self._held).requires_grad_(False)
