"""Affine block: ``m = A W^T + b``, the paper's ``z_l = W_l a_{l-1} + b_l`` with samples as rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.affine_rows import Rows, exact_a, gradient_of_rows, quadratic_a
from dladmm.blocks.base import Block, Support, layer_of
from dladmm.compute.execution import plus_times, times
from dladmm.compute.passes import by_columns, squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.least_squares import update_linear_parameters
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class Affine(Block):
    """``g((W, b), a) = a W^T + b``, quadratic in W, in b and in a.

    With ``E = m - target`` and ``c`` the term's weight, phi is ``(c/2)||E||^2`` plus what does not depend on the
    variable at hand. The cached ``m`` moves with every update, so each update of W or a costs two products.

    Parameters
    ----------
    n_in, n_out : int
        Columns of the input a (N, n_in) and of the output (N, n_out); W is (n_out, n_in).
    bias : bool
        Whether there is a bias b (n_out,).
    """

    kind = "dense"
    support = Support.ALL
    linear = True
    begins_with_residual = True
    joins_updates = True
    penalised = ("W",)

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        if n_in < 1 or n_out < 1:
            raise InputError(
                f"an affine block needs at least one input and one output, got {n_in} -> {n_out}."
            )
        self.n_in: int = n_in
        self.n_out: int = n_out
        self.bias = bias

    def __repr__(self) -> str:
        return f"Affine({self.n_in}, {self.n_out}{'' if self.bias else ', bias=False'})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        deviation = scale * math.sqrt(2.0 / self.n_in)
        W = torch.randn(self.n_out, self.n_in, generator=generator, dtype=torch.float64) * deviation
        b = torch.zeros(self.n_out, dtype=torch.float64)
        return {"W": W, "b": b} if self.bias else {"W": W}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return nn.functional.linear(v, params["W"], params.get("b"))

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        if not self.bias:
            return times(v, params["W"].T, out)
        return plus_times(params["b"], v, params["W"].T, out=out)

    def certified_as(self) -> dict[str, Any] | None:
        return {"type": "affine", "n_in": self.n_in, "n_out": self.n_out, "bias": self.bias}

    def to_module(self, params: Params) -> nn.Module:
        return layer_of(nn.Linear, self.n_in, self.n_out, params=params)

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Algorithm 2: lines 7, 10 and 12 backward (b, then W), lines 15, 17 and 21 forward (W, then b)."""
        return update_linear_parameters(
            parameter_order(params, work), params, Rows(self.n_in, v, term, work), penalty, work
        )

    def fetch_sums(self, v: Tensor, term: Term, work: Work) -> None:
        if work.few_messages:
            Rows(self.n_in, v, term, work).fetch()

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        product, sums = work.sum(gradient_of_rows, term.target, term.prediction, v)
        total = squared_norm(penalty.stationarity(params["W"], term.weight * product))
        if not self.bias:
            return total
        if work.options.penalise_bias:
            return total + squared_norm(penalty.stationarity(params["b"], term.weight * sums))
        return total + squared_norm(term.weight * sums)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """Algorithm 2, lines 5 and 19: ``argmin_a (nu/2)||a - f(z)||^2 + (c/2)||a W^T + b - target||^2``."""
        solve = exact_a if work.options.a_solver == "exact" else quadratic_a
        return [solve(params["W"], v, anchor, term, work)]

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual(), work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return work.how.direction(gradient, by_columns(params["W"], len(gradient)))

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.forward(moves, v)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return move @ params["W"].T

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> Rows:
        return Rows(self.n_in, v, Term(1.0, prediction, prediction), work)


def parameter_order(params: Params, work: Work) -> list[str]:
    """b, then W in a backward update; W, then b in a forward one."""
    wanted = [name for forward in work.order for name in (("W", "b") if forward else ("b", "W"))]
    return [name for name in wanted if name in params]
