"""An affine block at every position of a sequence: each position is a row of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dladmm.blocks.affine import Affine
from dladmm.blocks.affine_rows import Rows
from dladmm.blocks.base import Block, Support
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import Anchor, Params, Step, Term
from dladmm.solvers.weight_step import Operator


class Positionwise(Block):
    """``g((W, b), a)_t = a_t W^T + b`` for samples (.., positions, features): as ``nn.Linear`` does.

    Every subproblem is that of :class:`~dladmm.blocks.Affine` on the rows of all positions, which are views of the same
    memory: what the work does to the rows, it does to the sequences.

    Parameters
    ----------
    affine : Affine
        The block that acts at every position.
    """

    kind = "positions"
    support = Support.COUNTS | Support.RANKS
    linear = True
    joins_updates = True

    def __init__(self, affine: Affine) -> None:
        self.affine = affine
        self.penalised = affine.penalised
        self.n_in, self.n_out, self.bias = affine.n_in, affine.n_out, affine.bias

    def __repr__(self) -> str:
        return f"Positionwise({self.affine!r})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return self.affine.initial_parameters(generator, scale)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.affine.forward(params, v)

    def to_module(self, params: Params) -> nn.Module:
        return self.affine.to_module(params)

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Lines 7, 10, 12, 15, 17 and 21 of Algorithm 2, summed over positions."""
        return self.affine.update_parameters(params, _rows(v), _term(term), penalty, _work(term, work))

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """Lines 5 and 19 of Algorithm 2, position by position."""
        inner = Anchor(anchor.weight, _rows(anchor.value))
        own = v.view(-1, v.shape[-1])
        return self.affine.update_input(params, own, inner, _term(term), _work(term, work))

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        rows = _rows(v)
        return self.affine.parameter_stationarity(params, rows, _term(term), penalty, _work(term, work))

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        inner = _work(term, work)
        return self.affine.input_gradient(params, _rows(v), _term(term), inner).reshape(v.shape)

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.forward(moves, v)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return move @ params["W"].T

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> Operator:
        inner = work.repeated(math.prod(prediction.shape[1:-1]))
        return PositionRows(
            self.affine.n_in, _rows(v), Term(1.0, _rows(prediction), _rows(prediction)), inner
        )


class PositionRows(Rows):
    """The rows of all positions; E has them by sample and position."""

    def as_rows(self, E: Tensor) -> Tensor:
        return _rows(E)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _term(term: Term) -> Term:
    # A view and never a copy: the work moves the prediction through it
    prediction = term.prediction.view(-1, term.prediction.shape[-1])
    return Term(term.weight, _rows(term.target), prediction)


def _work(term: Term, work: Work) -> Work:
    """Every position is a row of its own."""
    return work.repeated(math.prod(term.prediction.shape[1:-1]))
