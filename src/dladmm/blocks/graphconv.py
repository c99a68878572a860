"""Graph convolution: ``g(W, V) = f(A~ V W^T)``, the paper's ``f_l(A~ Z_{l-1} W_l)`` with W transposed as in torch."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from dladmm.activations import Activation, get_activation
from dladmm.base.errors import InputError
from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Block, Support
from dladmm.blocks.propagation import Matrix, Propagated, PropagatedRows, Propagation
from dladmm.compute.halo import HaloMatrix
from dladmm.compute.passes import squared_norm
from dladmm.compute.sparse import SparseMatrix
from dladmm.compute.work import Work
from dladmm.network.graph_module import GraphLayer
from dladmm.regularizers import Regularizer
from dladmm.solvers.step_along import StepAlong, with_decay
from dladmm.solvers.subproblems import Anchor, Params, Step, Term, Trial, searched
from dladmm.solvers.weight_step import Operator


class GraphConv(Block):
    """``g(W, V) = f(A~ V W^T)`` for one graph: no bias, W penalised, linear when f is the identity.

    ``adjacency=None`` says that V holds ``A~ V`` already, as the features of the first layer may. The pre-activation
    ``H = A~ V W^T`` is kept in the block's memory; along a direction it is linear, ``H - s A~ V d^T`` or
    ``H - s A~ d W^T``, so an update needs one gradient and one such product, and the search over s only evaluates f.

    ``rows`` (indices of nodes) leaves only those rows of V_l as variables: the term counts those rows alone, and the
    others follow the forward pass, or with ``held`` stay as they were at the start. The theory is about ``rows=None``,
    all rows. Shapes: V is (nodes, n_in), W (n_out, n_in), the output (nodes, n_out).
    """

    penalised = ("W",)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        activation: str | dict[str, Any] | Activation = "relu",
        adjacency: SparseMatrix | None = None,
        rows: Tensor | None = None,
        held: bool = False,
    ) -> None:
        if n_in < 1 or n_out < 1:
            raise InputError(f"a graph block needs at least one input and one output, got {n_in} -> {n_out}.")
        self.n_in: int = n_in
        self.n_out: int = n_out
        self.activation = get_activation(activation)
        self.linear = self.activation.name == "identity"
        # H is the cached prediction itself where f is the identity
        self.carried = () if self.linear else ("H",)
        self.continuous = self.activation.continuous
        self.follows_forward = rows is not None
        self.counted_rows = rows if held else None
        self.support = Support.RECORDING if self.activation.closed_form else Support.NONE
        if adjacency is None or isinstance(adjacency, HaloMatrix):
            self.support |= Support.RANKS  # A~ has its rows on the ranks as V has, or does not appear
        self.graph = Propagation(n_in, n_out, adjacency, rows)
        self._affine = Affine(n_in, n_out, bias=False)

    def __repr__(self) -> str:
        return f"GraphConv({self.n_in}, {self.n_out}, {self.activation.name})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        deviation = scale * math.sqrt(2.0 / self.n_in)
        return {"W": torch.randn(self.n_out, self.n_in, generator=generator, dtype=torch.float64) * deviation}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.activation(self.graph.output(self.graph.operand(v), params["W"]))

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        H = self.graph.output(self.graph.operand(v), params["W"], out=out)
        return self.activation.write(H, out)

    def certified_as(self) -> dict[str, Any] | None:
        sizes = {"n_in": self.n_in, "n_out": self.n_out}
        propagated = self.graph.adjacency is None
        return {"type": "graph", **sizes, "f": self.activation.to_spec(), "propagated": propagated}

    def to_module(self, params: Params) -> nn.Module:
        return GraphLayer(params["W"], self.activation.module())

    def differentiable_forward(self, params: Params, v: Tensor) -> Tensor:
        propagated: Any = Propagated.apply
        product = propagated(params["W"], self.graph.operand(v), self.graph)
        return cast(Tensor, self.activation.module()(product))

    def _step(self, params: Params, v: Tensor, term: Term, work: Work) -> StepAlong:
        """Where the block stands: H, its prediction and residual, on the rows that are variables."""
        W = params["W"]
        H: Tensor | None = term.prediction if self.linear else work.find("H", (v, W))
        if H is None:
            memory = work.memory("H", (v, W), (v.shape[0], self.n_out), W)
            H = self.graph.output(self.graph.operand(v), W, work, out=memory)
        return StepAlong(self.activation, term, H, self.graph.rows, work)

    def _keep_H(self, step: StepAlong, params: Params, v: Tensor, work: Work) -> None:
        """H has moved along with V or W."""
        if not self.linear:
            work.keep("H", step.H_all, (v, params["W"]))

    def _change(self, V: Matrix, d: Tensor, work: Work) -> Tensor:
        """``A~ V d^T``; of a hidden layer whose other rows are held on the rows that count alone, the rest zero."""
        if self.counted_rows is None or self.linear:
            return self.graph.output(V, d, work)
        return self.graph.output_rows(V, d, work)

    # Parameters ----------------------------------------------------------------------------------------------------

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Algorithm 5, lines 9 and 12."""
        V = self.graph.operand(v)
        if self.linear and work.options.w_solver == "exact":
            A = self.graph.input_rows(V, work)
            if isinstance(A, Tensor):
                return self._exact_W(params, V, A, term, penalty, work)
        if work.options.w_penalty == "gradient" and not penalty.is_zero:
            return [self._gradient_W(params, v, V, term, penalty, work)]
        if penalty.quadratic is None:
            return [self._proximal_W(params, v, V, term, penalty, work)]
        recorded = work.how.never_waits(term.prediction)  # then nothing is copied from the device
        strength = penalty.quadratic if recorded else float(penalty.quadratic)
        return [self._majorised_W(params, v, V, term, strength, work)]

    def _exact_W(
        self, params: Params, V: Matrix, A: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """``argmin_W (c/2)||A~ V W^T - target||^2 + Omega(W) + (delta/2)||W - W_k||^2``: Equations 19, 20 solved.

        That is the affine block's solve with ``A = A~ V`` and no bias, possible where f is the identity.
        """
        rows = self.graph.rows
        if rows is None:
            return self._affine.update_parameters(params, A, term, penalty, work)
        W, new = params["W"], params["W"].clone()
        part = Term(term.weight, term.target[rows], term.prediction[rows])
        steps = self._affine.update_parameters({"W": new}, A, part, penalty, work)
        work.move(term.prediction, self.graph.output(V, new - W))
        work.assign(W, new)
        return steps

    def _majorised_W(
        self, params: Params, v: Tensor, V: Matrix, term: Term, strength: float | Tensor, work: Work
    ) -> Step:
        """``argmin_W P(W; sigma) + (strength/2)||W||^2``, Equations 19 and 20: ``W - gradient/sigma`` at strength 0;
        sigma by backtracking from alpha0: in closed form where f is the identity, else on true values."""
        W = params["W"]
        step = self._step(params, v, term, work)
        (g,) = work.total(self.graph.weight_gradient(V, step.gradient(), work))
        d = with_decay(g, W, strength)
        step.aim(self._change(V, d, work), d, g, strength)
        sigma = step.curvature(work.options.start_of_W(last=work.last), work.options)
        length = step.advance(sigma)
        work.move_along(W, d, length)
        self._keep_H(step, params, v, work)
        return Step("W", step.d_squared * length.square(), (sigma + strength) / 2)

    def _proximal_W(
        self, params: Params, v: Tensor, V: Matrix, term: Term, penalty: Regularizer, work: Work
    ) -> Step:
        """``argmin_W P(W; sigma) + Omega(W)``, Equations 19 and 20, for a penalty with kinks.

        The move depends on sigma in more than its length, so every trial needs a product of its own.
        """
        W, start = params["W"], work.options.start_of_W(last=work.last)
        step = self._step(params, v, term, work)
        (g,) = work.total(self.graph.weight_gradient(V, step.gradient(), work))
        if start is None:
            step.aim(self._change(V, g, work), g, g)
            start = float(step.first_curvature())
        move = torch.zeros_like(W)

        def trial(sigma: float) -> Trial:
            nonlocal move
            move = W - penalty.prox(W - g / sigma, 1.0 / sigma)
            step.aim(self._change(V, move, work), move, g)
            return Trial(step.rise(1.0), -float(step.along), float(step.d_squared))

        sigma = searched(trial, start, lambda: float(step.slack()), work.options)
        length = 1.0 if sigma is not None else 0.0
        work.move_along(W, move, length)
        step.move(length)
        self._keep_H(step, params, v, work)
        return Step("W", step.d_squared * length, torch.full_like(step.d_squared, (sigma or 0.0) / 2))

    def _gradient_W(
        self, params: Params, v: Tensor, V: Matrix, term: Term, penalty: Regularizer, work: Work
    ) -> Step:
        """``W - gradient/sigma`` where psi and penalty are majorised together, as in the authors' script."""
        W = params["W"]
        step = self._step(params, v, term, work)
        (g,) = work.total(self.graph.weight_gradient(V, step.gradient(), work))
        d = g + penalty.gradient(W)
        step.aim(self._change(V, d, work), d, d)
        start = work.options.start_of_W(last=work.last)
        start = float(step.first_curvature()) if start is None else start
        squared, before = float(step.d_squared), penalty.value(W)

        def trial(sigma: float) -> Trial:
            s = 1 / sigma
            moved = float(penalty.value(W - s * d) - before)
            return Trial(step.rise(s) + moved, -s * squared, s * s * squared)

        sigma = searched(trial, start, lambda: float(step.slack()), work.options) if squared > 0 else start
        length = 0.0 if sigma is None else 1 / sigma
        work.move_along(W, d, length)
        step.move(length)
        self._keep_H(step, params, v, work)
        return Step("W", step.d_squared * length**2, torch.full_like(step.d_squared, (sigma or 0.0) / 2))

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        step = self._step(params, v, term, work)
        (gradient,) = work.total(self.graph.weight_gradient(self.graph.operand(v), step.gradient(), work))
        return squared_norm(penalty.stationarity(params["W"], gradient))

    # Input ---------------------------------------------------------------------------------------------------------

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_Z Q(Z; delta)``, Equations 17 and 22: ``Z - gradient/delta``, lines 5 and 14 of Algorithm 5.

        The paper's formula for the backward step prints psi where it means its gradient. delta by backtracking from
        t0: in closed form where f is the identity, else on true values. An exact solve is not offered: it would be a
        Kronecker system of A~ and W.
        """
        W = params["W"]
        if self.graph.rows is not None and self.counted_rows is None:
            self._follow_forward(params, v, anchor, term, work)
        step = self._step(params, v, term, work)
        own = self.graph.pick(torch.sub(v, anchor.value, out=work.buffer("offset", v)))
        d = self.graph.input_gradient(W, step.gradient(), work).add_(own, alpha=anchor.weight)
        step.aim(self.graph.change_by(d, W, work), d, d, own=anchor.weight, offset=own)
        delta = step.curvature(work.options.t0, work.options)
        length = step.advance(delta)
        if self.graph.rows is None:
            work.move_along(v, d, length)
        else:
            work.move(v, d.mul_(-length), self.graph.rows)
        self._keep_H(step, params, v, work)
        return [Step("Z", step.d_squared * length.square(), delta / 2)]

    def _follow_forward(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> None:
        """Rows that are no variables take the value of the forward pass, and H moves with them."""
        assert self.graph.rows is not None
        W = params["W"]
        H = None if self.linear else work.find("H", (v, W))
        change = (anchor.value - v).index_fill_(0, self.graph.rows, 0.0)
        work.move(v, change)
        if self.linear:
            work.move(term.prediction, self.graph.output(change, W))
            return
        if H is None:
            H = self.graph.output(v, W)
        else:
            work.move(H, self.graph.output(change, W))
        work.assign(term.prediction, self.activation(H))
        work.keep("H", H, (v, W))

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        """Of the rows that are variables; zero on the others."""
        gradient = self.graph.input_gradient(params["W"], self._step(params, v, term, work).gradient())
        if self.graph.rows is None:
            return gradient
        return torch.zeros_like(v).index_copy_(0, self.graph.rows, gradient)

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        change = self.graph.output(self.graph.operand(v), moves["W"])
        return change if self.linear else change.mul_(self._derivative(params, v))

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        change = self.graph.output(move, params["W"])
        return change if self.linear else change.mul_(self._derivative(params, v))

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> Operator | None:
        """``H = A~ V W^T`` is linear in W; a gradient in f(H) is handed through f."""
        A = self.graph.input_rows(self.graph.operand(v), work)
        if self.graph.rows is not None or not isinstance(A, Tensor):
            return None
        slope = None if self.linear else self._derivative(params, v)
        return PropagatedRows(self.n_in, A, Term(1.0, prediction, prediction), work, slope)

    def _derivative(self, params: Params, v: Tensor) -> Tensor:
        H = self.graph.output(self.graph.operand(v), params["W"])
        return self.activation.write_derivative(H, torch.empty_like(H))

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        gradient = self.input_gradient(params, v, term, work).add_(v - anchor.value, alpha=anchor.weight)
        return squared_norm(self.graph.pick(gradient))
