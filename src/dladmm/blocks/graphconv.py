"""Graph convolution: ``g(W, V) = f(A~ V W^T)``, the paper's ``f_l(A~ Z_{l-1} W_l)`` with W transposed as in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.activations import Activation, get_activation
from dladmm.activations.piecewise import PiecewiseLinear
from dladmm.base.errors import InputError
from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.blocks.propagation import Matrix, Propagation
from dladmm.blocks.ray import Ray, move_along
from dladmm.blocks.scratch import Scratch
from dladmm.compute.halo import HaloMatrix
from dladmm.compute.norms import squared_norm
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.graph_module import GraphLayer
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import SubproblemOptions, Trial, searched


class GraphConv(Block):
    """``g(W, V) = f(A~ V W^T)`` for one graph: no bias, W penalised, linear when f is the identity.

    ``adjacency=None`` says that V holds ``A~ V`` already, as the features of the first layer may. The pre-activation
    ``H = A~ V W^T`` is kept in the block's memory; along a direction it is linear, ``H - s A~ V d^T`` or
    ``H - s A~ d W^T``, so an update needs one gradient and one such product, and the search over s only evaluates f.

    ``rows`` (indices of nodes) leaves only those rows of V_l as variables: the term counts those rows alone, and the
    others follow the forward pass. The theory speaks of ``rows=None``, all rows.
    """

    penalised = ("W",)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        activation: str | dict[str, Any] | Activation = "relu",
        adjacency: SparseMatrix | None = None,
        rows: Tensor | None = None,
    ) -> None:
        if n_in < 1 or n_out < 1:
            raise InputError(f"a graph block needs at least one input and one output, got {n_in} -> {n_out}.")
        self.n_in, self.n_out = n_in, n_out
        self.activation = get_activation(activation)
        self.linear = self.activation.name == "identity"
        self.remembers = (
            () if self.linear else ("H",)
        )  # H is the cached prediction itself where f is the identity
        self.continuous = self.activation.continuous
        self.follows_forward = rows is not None
        # A~ has its rows on the ranks as V has, or does not appear
        self.sharded = adjacency is None or isinstance(adjacency, HaloMatrix)
        self.graph = Propagation(n_in, n_out, adjacency, rows)
        self._affine = Affine(n_in, n_out, bias=False)

    def __repr__(self) -> str:
        return f"GraphConv({self.n_in}, {self.n_out}, {self.activation.name})"

    def recordable(self, options: SubproblemOptions) -> bool:
        return isinstance(self.activation, PiecewiseLinear)

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        deviation = scale * math.sqrt(2.0 / self.n_in)
        return {"W": torch.randn(self.n_out, self.n_in, generator=generator, dtype=torch.float64) * deviation}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.activation(self.graph.output(self.graph.operand(v), params["W"]))

    def to_module(self, params: Params) -> nn.Module:
        return GraphLayer(params["W"], self.activation.module())

    def _ray(self, params: Params, V: Matrix, term: Term, memory: dict[str, Any]) -> Ray:
        """Where the block stands: H, its prediction and residual, on the rows that are variables."""
        H: Tensor | None = term.prediction if self.linear else memory.get("H")
        if H is None:
            H = memory["H"] = self.graph.output(V, params["W"])
        return Ray(self.activation, term, H, self.graph.rows, Scratch.of(memory))

    # Parameters ----------------------------------------------------------------------------------------------------

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """Algorithm 5, lines 9 and 12."""
        V = self.graph.operand(v)
        if self.linear and scope.options.w_solver == "exact":
            A = self.graph.input_rows(V, scope.memory)
            if isinstance(A, Tensor):
                return self._exact_W(params, V, A, term, penalty, scope)
        if penalty.quadratic is None:
            return [self._proximal_W(params, V, term, penalty, scope)]
        return [self._majorised_W(params, V, term, float(penalty.quadratic), scope)]

    def _exact_W(
        self, params: Params, V: Matrix, A: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """``argmin_W (c/2)||A~ V W^T - target||^2 + Omega(W) + (delta/2)||W - W_k||^2``: Equations 19, 20 solved.

        That is the affine block's solve with ``A = A~ V`` and no bias, possible where f is the identity.
        """
        rows = self.graph.rows
        if rows is None:
            return self._affine.update_parameters(params, A, term, penalty, scope)
        before = params["W"].clone()
        part = Term(term.weight, term.target[rows], term.prediction[rows], shards=term.shards)
        steps = self._affine.update_parameters(params, A, part, penalty, scope)
        term.prediction.add_(self.graph.output(V, params["W"] - before))
        return steps

    def _majorised_W(self, params: Params, V: Matrix, term: Term, strength: float, scope: Scope) -> Step:
        """``argmin_W P(W; sigma) + (strength/2)||W||^2``, Equations 19 and 20: ``W - gradient/sigma`` at strength 0.

        sigma by backtracking from alpha0: in closed form where f is the identity, else on true values.
        """
        W = params["W"]
        ray = self._ray(params, V, term, scope.memory)
        (g,) = term.total(self.graph.weight_gradient(V, ray.gradient(), scope.memory))
        d = g.add(W, alpha=strength) if strength > 0 else g
        ray.aim(self.graph.output(V, d, ray.scratch), d, g, strength)
        sigma = ray.curvature(scope.options.alpha0, scope.options)
        step = ray.advance(sigma)
        move_along(W, d, step)
        scope.memory["H"] = ray.H_all
        return Step("W", ray.d_squared * step.square(), (sigma + strength) / 2)

    def _proximal_W(self, params: Params, V: Matrix, term: Term, penalty: Regularizer, scope: Scope) -> Step:
        """``argmin_W P(W; sigma) + Omega(W)``, Equations 19 and 20, for a penalty with kinks.

        The move depends on sigma in more than its length, so every trial needs a product of its own.
        """
        W = params["W"]
        ray = self._ray(params, V, term, scope.memory)
        (g,) = term.total(self.graph.weight_gradient(V, ray.gradient(), scope.memory))
        start = scope.options.alpha0
        if start is None:
            ray.aim(self.graph.output(V, g, ray.scratch), g, g)
            start = float(ray.first_curvature())
        move = torch.zeros_like(W)

        def trial(sigma: float) -> Trial:
            nonlocal move
            move = W - penalty.prox(W - g / sigma, 1.0 / sigma)
            ray.aim(self.graph.output(V, move, ray.scratch), move, g)
            return Trial(ray.rise(1.0), -float(ray.along), float(ray.d_squared))

        sigma = searched(trial, start, lambda: float(ray.slack()), scope.options)
        length = 1.0 if sigma is not None else 0.0
        move_along(W, move, length)
        ray.move(length)
        scope.memory["H"] = ray.H_all
        return Step("W", ray.d_squared * length, torch.full_like(ray.d_squared, (sigma or 0.0) / 2))

    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        V = self.graph.operand(v)
        own = self.graph.weight_gradient(V, self._ray(params, V, term, {}).gradient(), {})
        (gradient,) = term.total(own)
        return squared_norm(penalty.stationarity(params["W"], gradient))

    # Input ---------------------------------------------------------------------------------------------------------

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """``argmin_Z Q(Z; delta)``, Equations 17 and 22: ``Z - gradient/delta``, lines 5 and 14 of Algorithm 5.

        The paper's formula for the backward step prints psi where it means its gradient. delta by backtracking from
        t0: in closed form where f is the identity, else on true values. An exact solve is not offered: it would be a
        Kronecker system of A~ and W.
        """
        for name in ("AV", "gram", "factor_key"):
            scope.memory.pop(name, None)
        W = params["W"]
        if self.graph.rows is not None:
            self._follow_forward(W, v, anchor, term, scope.memory)
        ray = self._ray(params, v, term, scope.memory)
        own = self.graph.pick(torch.sub(v, anchor.value, out=ray.scratch.take("offset", v)))
        d = self.graph.input_gradient(W, ray.gradient(), ray.scratch).add_(own, alpha=anchor.weight)
        ray.aim(self.graph.change_by(d, W, ray.scratch), d, d, own=anchor.weight, offset=own)
        delta = ray.curvature(scope.options.t0, scope.options)
        step = ray.advance(delta)
        scope.memory["H"] = ray.H_all
        if self.graph.rows is None:
            move_along(v, d, step)
        else:
            v.index_add_(0, self.graph.rows, d.mul_(-step))
        return [Step("Z", ray.d_squared * step.square(), delta / 2)]

    def _follow_forward(
        self, W: Tensor, v: Tensor, anchor: Anchor, term: Term, memory: dict[str, Any]
    ) -> None:
        """Rows that are no variables take the value of the forward pass, and H moves with them."""
        assert self.graph.rows is not None
        change = (anchor.value - v).index_fill_(0, self.graph.rows, 0.0)
        v.add_(change)
        moved = self.graph.output(change, W)
        if self.linear:
            term.prediction.add_(moved)
        else:
            H = memory.get("H")
            memory["H"] = self.graph.output(v, W) if H is None else H.add_(moved)
            term.prediction.copy_(self.activation(memory["H"]))

    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        """Of the rows that are variables; zero on the others."""
        ray = self._ray(params, v, term, {})
        gradient = self.graph.input_gradient(params["W"], ray.gradient(), Scratch())
        if self.graph.rows is None:
            return gradient
        return torch.zeros_like(v).index_copy_(0, self.graph.rows, gradient)

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term) -> Tensor:
        gradient = self.input_gradient(params, v, term).add_(v - anchor.value, alpha=anchor.weight)
        return squared_norm(self.graph.pick(gradient))
