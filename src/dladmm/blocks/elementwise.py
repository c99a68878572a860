"""Elementwise block: an activation as a link of its own, ``a_l = f_l(z_l)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dladmm.activations import Activation, get_activation
from dladmm.activations.jumps import JumpFunction
from dladmm.blocks.base import Block, Kind, Support
from dladmm.compute.execution import one_pass
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.solvers.jump_surrogate import REACH, STREAMED_REACH, surrogate_through, update_on_surrogate
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class Elementwise(Block):
    """``g(z) = f(z)``: no parameters, and its input is solved entry by entry to the global minimum.

    Parameters
    ----------
    activation : Activation or str
        f, for inputs and outputs of any shape (N, ...).
    """

    kind: Kind = "entrywise"
    rewrites_prediction = True

    def __init__(self, activation: Activation | str) -> None:
        self.activation = get_activation(activation)
        self.continuous = self.activation.continuous
        self.linear = self.activation.name == "identity"
        self.n_levels = self.activation.n_levels
        self.support = Support.ALL if self.activation.closed_form else Support.ALL & ~Support.RECORDING
        self._jumps = self.activation if isinstance(self.activation, JumpFunction) else None

    def __repr__(self) -> str:
        return f"Elementwise({self.activation.name})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return {}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        output = self.activation(v)
        return output.clone() if output is v else output  # identity: input and output are two variables

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        return self.activation.write(v, out)

    def differentiable_forward(self, params: Params, v: Tensor) -> Tensor:
        output: Tensor = self.activation.module()(v)
        return output

    def certified_as(self) -> dict[str, Any] | None:
        return {"type": "activation", "f": self.activation.to_spec()}

    def to_module(self, params: Params) -> nn.Module:
        return self.activation.module()

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_z (nu/2)||z - m||^2 + (nu/2)||a - f(z)||^2``, Equations 4 and 14; jumps also on a surrogate."""
        weight = term.weight / anchor.weight
        if work.options.ramps and self._jumps is not None:
            return [update_on_surrogate(self._jumps, v, weight, anchor, term, work)]
        tie = work.solve_entries(v, anchor, term, self.activation, weight)
        return [Step("z", None, None, tie=tie)]

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual(), work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        """``f'(z) gradient``; of a jump the derivative of its surrogate, which is what resynchronised sweeps see."""
        if self._jumps is not None:
            wide = REACH if work.options.ramps else STREAMED_REACH
            return surrogate_through(self._jumps, v, wide=wide).times_slope(v, gradient)
        return self.activation.times_derivative(v, gradient)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        if self._jumps is not None:
            return surrogate_through(self._jumps, v, wide=STREAMED_REACH).times_slope(v, move)
        return self.activation.times_derivative(v, move)

    def tie_margin(self, params: Params, v: Tensor, anchor: Anchor, term: Term) -> float | None:
        return self.activation.tie_margin(anchor.value, term.target, term.weight / anchor.weight)

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        relative = term.weight / anchor.weight
        squared = _distance(
            work.how, v, anchor.value, term.target, work.counts, activation=self.activation, weight=relative
        )
        return anchor.weight**2 * squared


@one_pass()
def _distance(
    z: Tensor, m: Tensor, a: Tensor, counts: Tensor | None, *, activation: Activation, weight: float
) -> Tensor:
    return squared_norm(activation.stationarity(z, m, a, weight), counts)
