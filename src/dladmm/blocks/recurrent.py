"""A recurrent layer, unrolled over time: the hidden states are variables, the parameters are shared.

    s_t ~ cell(B, x_t, s_{t-1}),   t = 1..T,   s_0 = 0         (soft, weight c)
    y_t ~ s_t                                                   (soft, weight c: the block's link in the chain)

In the chain this is one block. Its output variable y is (samples, T, states); its prediction of y *is* s, the block's
own variables, so they live where every block's cached prediction lives and are saved, resynchronised and measured with
it. docs/any_network.md says why.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm.blocks.base import Block, Support
from dladmm.blocks.recurrent_cells import (
    Unrolled,
    advanced,
    before,
    pulled_before,
    through_time,
)
from dladmm.blocks.recurrent_steps import gradients_of, whitened_step
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.network.recurrent_module import Recurrent
from dladmm.regularizers import Regularizer
from dladmm.solvers.local_step import local_gradients, majorised_step, proximal_point
from dladmm.solvers.subproblems import Anchor, Params, Step, Term

_CELLS: dict[str, Any] = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell, "GRU": torch.gru_cell}
"""Torch's cells whose state is the hidden state alone."""


GATES: dict[str, tuple[float, ...]] = {"GRU": (2.0, -2.0, 0.0)}
"""Initial biases, gates in torch's order: a GRU begins nearly as an Elman network and learns when to differ."""

ROUNDS = 2
"""A cell has no closed form: so many steps of states and parameters stand for the two exact solves of another block."""


class RecurrentStates(Block):
    """All states of an Elman network, a GRU or an LSTM; the state of an LSTM is (h, c).

    Every subproblem takes one majorised step (Algorithm 1): the gradient of this one block, backtracking on true
    values. Backward the states are updated, then the parameters; forward the other way round.
    """

    own_variables = True
    support = Support.COUNTS

    def __init__(self, layer: Recurrent) -> None:
        rnn = layer.rnn
        self.layer = copy.deepcopy(layer)
        self.n_in, self.n_hidden, self.bias = rnn.input_size, rnn.hidden_size, rnn.bias
        self.cell_kind = type(rnn).__name__ if not isinstance(rnn, nn.RNN) else rnn.nonlinearity
        self.n_states = (2 if self.cell_kind == "LSTM" else 1) * self.n_hidden
        self.penalised = ("weight_ih_l0", "weight_hh_l0")

    def __repr__(self) -> str:
        return f"RecurrentStates({self.cell_kind}, {self.n_in}, {self.n_hidden})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        """Weights of He's deviation, biases those of ``GATES``; without a generator the layer's own values.

        An Elman network begins with an orthogonal U and a small W (torch's deviation): its states keep their length
        from step to step, so that what came first is there at the end, and nothing drives its units into saturation.

        ``scale`` is left aside: it makes states small, and a layer of small states forgets before it can learn.
        """
        own = {name: p.detach().double().cpu().clone() for name, p in self.layer.rnn.named_parameters()}
        if generator is None:
            return own
        for p in own.values():
            deviation = (2.0 / p.shape[1]) ** 0.5 if p.ndim > 1 else 0.0
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * deviation)
        if self.cell_kind in ("tanh", "relu"):
            own["weight_ih_l0"].mul_(
                (self.layer.rnn.input_size / (6 * self.n_hidden)) ** 0.5
            )  # 1/sqrt(3 units)
            own["weight_hh_l0"].copy_(torch.linalg.qr(own["weight_hh_l0"])[0])
        if self.bias:
            for gate, bias in enumerate(GATES.get(self.cell_kind, ())):
                own["bias_ih_l0"][gate * self.n_hidden :][: self.n_hidden] = bias
        return own

    def to_module(self, params: Params) -> nn.Module:
        made = copy.deepcopy(self.layer)
        some = params["weight_ih_l0"]
        made = made.to(device=some.device, dtype=some.dtype)
        with torch.no_grad():
            for name, p in made.rnn.named_parameters():
                p.copy_(params[name])
        return made

    # The cell --------------------------------------------------------------------------------------------------

    def cell(self, params: Params, x: Tensor, s: Tensor) -> Tensor:
        """``s_t`` from ``x_t`` and ``s_{t-1}``, over all leading dimensions at once."""
        W, U = params["weight_ih_l0"], params["weight_hh_l0"]
        biases = (params["bias_ih_l0"], params["bias_hh_l0"]) if self.bias else (None, None)
        flat, states = x.reshape(-1, x.shape[-1]), s.reshape(-1, s.shape[-1])
        if self.cell_kind in _CELLS:
            found: Tensor = _CELLS[self.cell_kind](flat, states, W, U, *biases)
            return found.reshape(s.shape)
        pair = torch.lstm_cell(flat, states.chunk(2, 1), W, U, *biases)
        return torch.cat(pair, 1).reshape(s.shape)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        s = v.new_zeros(len(v), self.n_states)
        states = []
        for x in v.unbind(1):
            s = self.cell(params, x, s)
            states.append(s)
        return torch.stack(states, 1)

    def predicted(self, params: Params, v: Tensor, s: Tensor) -> Tensor:
        """``cell(B, x_t, s_{t-1})`` of every t at once."""
        return self.cell(params, v, before(s))

    def unrolled(self, params: Params, v: Tensor, s: Tensor) -> Unrolled:
        """The same with the cells' slopes, by hand."""
        old, inputs = before(s), self._sums(params, v, "ih")
        states = self._sums(params, old[..., : self.n_hidden], "hh")
        return Unrolled(self.cell_kind, params, s, *advanced(self.cell_kind, inputs, states, old))

    def _sums(self, params: Params, x: Tensor, name: str) -> Tensor:
        """``x W^T + b`` of the matrix "ih" or ``h U^T + b`` of "hh"."""
        return F.linear(x, params[f"weight_{name}_l0"], params[f"bias_{name}_l0"] if self.bias else None)

    def recompute(self, params: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return prediction  # variables, not a cache

    def own_energy(self, params: Params, v: Tensor, prediction: Tensor, weight: float, work: Work) -> Tensor:
        """``sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2``."""
        apart = prediction - self.predicted(params, v, prediction)
        return weight / 2 * squared_norm(apart, work.counts)

    # Updates ---------------------------------------------------------------------------------------------------

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """The states and B: lines 4 and 5 of Algorithm 1 backward, lines 8 and 9 forward, a few times over."""
        steps: list[Step] = []
        (forward,) = work.order
        at = self.unrolled(params, v, term.prediction)
        for _ in range(ROUNDS):
            for of_states in (False, True) if forward else (True, False):
                if of_states:
                    step, at = self._states_step(v, term, work, at)
                else:
                    step, at = self._step_of_B(v, term, penalty, work, at)
                steps.append(step)
        for name, p in params.items():
            if p is not at.params[name]:
                work.assign(p, at.params[name])
        if at.states is not term.prediction:
            work.assign(term.prediction, at.states)
        return steps

    def _step_of_B(
        self, v: Tensor, term: Term, penalty: Regularizer, work: Work, at: Unrolled
    ) -> tuple[Step, Unrolled]:
        """``argmin_B sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2 + Omega(B)``: one step for all of time.

        With exact solves asked for, the step is taken in coordinates in which the cell's inputs are uncorrelated (the
        damped Gram matrices of x and of s): what an exact solve does for an affine block, as far as a cell allows.
        """
        if penalty.quadratic is not None and work.options.w_solver == "exact":
            return whitened_step(self, v, term.weight, float(penalty.quadratic), work, at)
        names, s = list(at.params), at.states
        point = proximal_point(at.params, penalty, self.penalised)

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.predicted(dict(zip(names, values, strict=True)), v, s)

        own = Term(term.weight, s, s)
        found = majorised_step(list(at.params.values()), evaluate, point, None, own, work, "B")
        ended = self.unrolled(dict(zip(names, found.values, strict=True)), v, s)
        return Step("W", found.squared, found.rate), ended

    def _states_step(self, v: Tensor, term: Term, work: Work, at: Unrolled) -> tuple[Step, Unrolled]:
        """``argmin_s sum_t (c/2)||s_t - cell(x_t, s_{t-1})||^2 + (c/2)||y - s||^2`` over all of time together.

        The step is taken in ``e_t = s_t - cell(x_t, s_{t-1})``, from which the states roll out again: in these
        coordinates the first sum is ``||e||^2`` and the problem is well conditioned however long the sequence.
        """
        s, inputs = at.states, self._sums(at.params, v, "ih")
        held: list[tuple[Tensor, ...]] = []

        def evaluate(values: list[Tensor]) -> Tensor:
            nonlocal held
            found, held = self._rolled_out(at.params, inputs, values[0])
            return found

        anchor = Anchor(term.weight, torch.zeros_like(s))
        pull = through_time(at.slopes, term.weight * (s - term.target), at.params["weight_hh_l0"])
        found = majorised_step([s - at.predicted], evaluate, None, anchor, term, work, "S", (s, [pull]))
        step = Step("s", found.squared, found.rate)
        if found.prediction is None:
            return step, at
        parts = [torch.stack(each, 1) for each in zip(*held, strict=True)]
        predicted = found.prediction - found.values[0]
        return step, Unrolled(self.cell_kind, at.params, found.prediction, predicted, parts)

    def _rolled_out(
        self, params: Params, inputs: Tensor, e: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """``s_t = cell(x_t, s_{t-1}) + e_t`` from the sums of x, and what the slopes of every t are made of."""
        s = e.new_zeros(len(e), self.n_states)
        states, held = [], []
        for x, own in zip(inputs.unbind(1), e.unbind(1), strict=True):
            new, parts = advanced(self.cell_kind, x, self._sums(params, s[:, : self.n_hidden], "hh"), s)
            s = new + own
            states.append(s)
            held.append(parts)
        return torch.stack(states, 1), held

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_x (nu/2)||x - value||^2 + sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2``, all t at once."""
        s = term.prediction

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.predicted(params, values[0], s)

        own = Term(term.weight, s, s)
        found = majorised_step([v], evaluate, None, anchor, own, work, "V")
        work.assign(v, found.values[0])
        return [Step("a", found.squared, found.rate)]

    # What the theory speaks of ---------------------------------------------------------------------------------

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        """Of B and of the states."""
        s = term.prediction
        at = self.unrolled(params, v, s)
        pull = term.weight * (at.predicted - s)
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        for name, slope in gradients_of(self, v, at, pull, work).items():
            kept = penalty.stationarity(params[name], slope) if name in self.penalised else slope
            total = total + squared_norm(kept)
        back = pulled_before(at.slopes, pull, params["weight_hh_l0"])
        slope = term.weight * term.residual() - pull
        slope[:, :-1] += back[:, 1:]
        return total + squared_norm(slope, work.counts)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        """Through all of time: ``g`` is the unrolled layer here."""
        return local_gradients([v], lambda values: self.forward(params, values[0]), term)[1][0]

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        s = term.prediction
        own = Term(term.weight, s, s)
        slope = local_gradients([v], lambda values: self.predicted(params, values[0], s), own)[1][0]
        return squared_norm(slope + anchor.weight * (v - anchor.value), work.counts)
