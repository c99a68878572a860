"""An affine block at every position of a sequence: each position is a row of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.regularizers import Regularizer


class Positionwise(Block):
    """``g((W, b), a)_t = a_t W^T + b`` for samples (.., positions, features): as ``nn.Linear`` does.

    Every subproblem is that of :class:`~dladmm.blocks.Affine` on the rows of all positions, so they are views of the
    same memory and the affine block works on them in place.
    """

    linear = True
    counts_rows = True
    sharded = True

    def __init__(self, affine: Affine) -> None:
        self.affine = affine
        self.knows_of_input, self.penalised = affine.knows_of_input, affine.penalised

    def __repr__(self) -> str:
        return f"Positionwise({self.affine!r})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return self.affine.initial_parameters(generator, scale)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.affine.forward(params, v)

    def to_module(self, params: Params) -> nn.Module:
        return self.affine.to_module(params)

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """Lines 7, 10, 12, 15, 17 and 21 of Algorithm 2, summed over positions."""
        return self.affine.update_parameters(params, _rows(v), _term(term), penalty, scope)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """Lines 5 and 19 of Algorithm 2, position by position."""
        inner = Anchor(anchor.weight, _rows(anchor.value))
        return self.affine.update_input(params, v.view(-1, v.shape[-1]), inner, _term(term), scope)

    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        return self.affine.parameter_stationarity(params, _rows(v), _term(term), penalty)

    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        return self.affine.input_gradient(params, _rows(v), _term(term)).reshape(v.shape)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _term(term: Term) -> Term:
    prediction = term.prediction.view(-1, term.prediction.shape[-1])  # a view: it is moved in place
    positions = math.prod(term.prediction.shape[1:-1])
    rows = None if term.rows is None else term.rows.repeat_interleave(positions, 0)
    shards = None if term.shards is None else term.shards.repeated(positions)
    return Term(term.weight, _rows(term.target), prediction, rows, shards=shards)
