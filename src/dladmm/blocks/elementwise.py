"""Elementwise block: an activation as a link of its own, ``a_l = f_l(z_l)``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dladmm.activations import Activation, get_activation
from dladmm.activations.base import checked_weight
from dladmm.activations.jumps import JumpFunction
from dladmm.activations.piecewise import PiecewiseLinear
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.blocks.ramp import ramp_through, update_on_ramp
from dladmm.compute.norms import squared_norm
from dladmm.compute.passes import nothing, one_pass
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import SubproblemOptions


class Elementwise(Block):
    """``g(z) = f(z)``: no parameters, and its input is solved entry by entry to the global minimum."""

    counts_rows = True
    by_rows = True
    sharded = True

    def __init__(self, activation: Activation | str) -> None:
        self.activation = get_activation(activation)
        self.continuous = self.activation.continuous
        self.linear = self.activation.name == "identity"

    def __repr__(self) -> str:
        return f"Elementwise({self.activation.name})"

    def recordable(self, options: SubproblemOptions) -> bool:
        return isinstance(self.activation, PiecewiseLinear)

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return {}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        output = self.activation(v)
        return output.clone() if output is v else output  # identity: input and output are two variables

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        return self.activation.write(v, out)

    def to_module(self, params: Params) -> nn.Module:
        return self.activation.module()

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        return []

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """``argmin_z (nu/2)||z - m||^2 + (nu/2)||a - f(z)||^2``, Equations 4 and 14; jumps also on their ramp."""
        weight = checked_weight(term.weight / anchor.weight)
        if scope.options.ramps and isinstance(self.activation, JumpFunction):
            return [update_on_ramp(self.activation, v, weight, anchor, term, scope)]
        gap = apart = None
        f: Tensor | None = term.prediction
        if scope.asked == "anchor":
            gap = scope.leave("gap", anchor.value, v, term)
            f = None  # a backward update: the forward one makes it again before anybody looks
        elif scope.asked == "term":
            apart = scope.leave("gradient", term.target, term.prediction, term)
        tie = _solve(
            v,
            f,
            anchor.value,
            term.target,
            term.rows,
            gap,
            apart,
            activation=self.activation,
            weight=weight,
        )
        return [Step("z", None, None, tie=tie)]

    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=v.device)

    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual())

    def pull_back(self, params: Params, v: Tensor, prediction: Tensor, force: Tensor) -> Tensor:
        if isinstance(
            self.activation, JumpFunction
        ):  # only resynchronised sweeps ask: what they see is the ramp
            return ramp_through(self.activation, v).slope(v) * force
        out = torch.empty_like(force)
        _through(out, v, force, activation=self.activation)
        return out

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term) -> Tensor:
        relative = term.weight / anchor.weight
        squared = _distance(
            v, anchor.value, term.target, term.rows, activation=self.activation, weight=relative
        )
        return anchor.weight**2 * squared


@one_pass
def _distance(
    z: Tensor, m: Tensor, a: Tensor, rows: Tensor | None, *, activation: Activation, weight: float
) -> Tensor:
    return squared_norm(activation.stationarity(z, m, a, weight), rows)


@one_pass
def _through(out: Tensor, z: Tensor, force: Tensor, *, activation: Activation) -> Tensor:
    """``out = f'(z) force``."""
    activation.write_derivative(z, out).mul_(force)
    return nothing(out)


@one_pass
def _solve(
    z: Tensor,
    f: Tensor | None,
    m: Tensor,
    a: Tensor,
    rows: Tensor | None,
    gap: Tensor | None,
    apart: Tensor | None,
    *,
    activation: Activation,
    weight: float,
) -> Tensor:
    """``z = argmin (z - m)^2 + weight (a - f(z))^2`` in place; ``||m - z||^2``.

    Where they are asked for, ``f = f(z)``, ``gap = m - z`` and ``apart = a - f``.
    """
    z.copy_(activation.project(m, a, weight))
    if f is not None:
        activation.write(z, f)
        if apart is not None:
            torch.sub(a, f, out=apart)
    return squared_norm(m - z if gap is None else torch.sub(m, z, out=gap), rows)
