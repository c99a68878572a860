"""A recurrent layer, unrolled over time: the hidden states are variables, the parameters are shared.

    s_t ~ cell(B, x_t, s_{t-1}),   t = 1..T,   s_0 = 0         (soft, weight c)
    y_t ~ s_t                                                   (soft, weight c: the block's link in the chain)

In the chain this is one block. Its output variable y is (samples, T, states); its prediction of y *is* s, the block's
own variables, so they live where every block's cached prediction lives and are saved, resynchronised and measured with
it. docs/any_network.md says why.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.blocks.base import Block, Support
from dladmm.blocks.recurrent_parts import joined_parameters, parted_parameters
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work, like_rows
from dladmm.network.recurrent_module import Recurrent
from dladmm.regularizers import Regularizer
from dladmm.solvers.factor import damped_cholesky, full_precision_gram
from dladmm.solvers.local_step import local_gradients, majorised_step, proximal_point
from dladmm.solvers.subproblems import Anchor, Params, Step, Term

_CELLS: dict[str, Any] = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell, "GRU": torch.gru_cell}
"""Torch's cells whose state is the hidden state alone."""


GATES: dict[str, tuple[float, ...]] = {"GRU": (2.0, -2.0, 0.0)}
"""Initial biases, gates in torch's order: a GRU begins nearly as an Elman network and learns when to differ."""

ROUNDS = 3
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

        ``scale`` is left aside: it makes states small, and a layer of small states forgets before it can learn.
        """
        own = {name: p.detach().double().cpu().clone() for name, p in self.layer.rnn.named_parameters()}
        if generator is None:
            return own
        for p in own.values():
            deviation = (2.0 / p.shape[1]) ** 0.5 if p.ndim > 1 else 0.0
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * deviation)
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
        before = torch.cat([torch.zeros_like(s[:, :1]), s[:, :-1]], 1)
        return self.cell(params, v, before)

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
        for _ in range(ROUNDS):
            if not forward:
                steps.append(self._update_states(params, v, term, work))
            steps.append(self._update_B(params, v, term, penalty, work))
            if forward:
                steps.append(self._update_states(params, v, term, work))
        return steps

    def _update_B(self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work) -> Step:
        """``argmin_B sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2 + Omega(B)``: one step for all of time.

        With exact solves asked for, the step is taken in coordinates in which the cell's inputs are uncorrelated (the
        damped Gram matrices of x and of s): what an exact solve does for an affine block, as far as a cell allows.
        """
        s = term.prediction
        if penalty.quadratic is not None and work.options.w_solver == "exact":
            return self._whitened_B(params, v, term, float(penalty.quadratic), work)
        names = list(params)
        start = [params[name] for name in names]

        point = proximal_point(params, penalty, self.penalised)

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.predicted(dict(zip(names, values, strict=True)), v, s)

        own = Term(term.weight, s, s)
        found = majorised_step(start, evaluate, point, None, own, work, "B")
        for p, new in zip(start, found.values, strict=True):
            work.assign(p, new)
        return Step("W", found.squared, found.rate)

    def _whitened_B(self, params: Params, v: Tensor, term: Term, quadratic: float, work: Work) -> Step:
        """The same with ``(lambda/2)||B||^2`` in the smooth term, as rows of their own, in the coordinates ``B L``.

        ``L L^T`` is the damped Gram matrix of the inputs (x, 1) and of (s, 1).
        """
        s = term.prediction
        before = torch.cat([torch.zeros_like(s[:, :1]), s[:, :-1]], 1)[..., : self.n_hidden]
        factors = [self._factor(inputs, work) for inputs in (v, before)]
        start = [p @ L for p, L in zip(joined_parameters(params, self.bias), factors, strict=True)]
        root = (quadratic / term.weight) ** 0.5
        counts = 1.0 if work.counts is None else like_rows(work.counts.to(s.dtype).sqrt(), s)

        def unwhitened(values: list[Tensor]) -> Params:
            solved = [
                torch.linalg.solve_triangular(L, p, upper=False, left=False)
                for p, L in zip(values, factors, strict=True)
            ]
            return parted_parameters(solved, self.bias)

        def evaluate(values: list[Tensor]) -> Tensor:
            trial = unwhitened(values)
            predicted = counts * self.predicted(trial, v, s)  # squares count as often as their sample
            parts = [predicted, *(root * trial[name] for name in self.penalised)]
            return torch.cat([part.flatten() for part in parts])

        def point(curvature: float, slopes: list[Tensor]) -> list[Tensor]:
            return [p - g / curvature for p, g in zip(start, slopes, strict=True)]

        wanted = (counts * s).flatten()
        target = torch.cat([wanted, wanted.new_zeros(sum(params[name].numel() for name in self.penalised))])
        found = majorised_step(
            start,
            evaluate,
            point,
            None,
            Term(term.weight, target, target),
            replace(work, counts=None),
            "B",
        )
        for name, p in unwhitened(found.values).items():
            work.assign(params[name], p)
        return Step("W", found.squared, found.rate)

    def _factor(self, inputs: Tensor, work: Work) -> Tensor:
        """L, from the mean over samples and time."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if self.bias else rows
        counts = None if work.counts is None else work.counts.repeat_interleave(inputs.shape[1], 0)
        gram = full_precision_gram(rows, counts) / (work.samples(len(inputs)) * inputs.shape[1])
        damping = work.options.damping * gram.diagonal().mean()
        return damped_cholesky(gram, damping, rows.dtype)[0].to(rows.dtype)

    def _update_states(self, params: Params, v: Tensor, term: Term, work: Work) -> Step:
        """``argmin_s sum_t (c/2)||s_t - cell(x_t, s_{t-1})||^2 + (c/2)||y - s||^2`` over all of time together.

        The step is taken in ``e_t = s_t - cell(x_t, s_{t-1})``, from which the states roll out again: in these
        coordinates the first sum is ``||e||^2`` and the problem is well conditioned however long the sequence.
        """
        s = term.prediction
        start = s - self.predicted(params, v, s)

        def evaluate(values: list[Tensor]) -> Tensor:
            return self._rolled_out(params, v, values[0])

        def point(curvature: float, slopes: list[Tensor]) -> list[Tensor]:
            return [start - slopes[0] / curvature]

        anchor = Anchor(term.weight, torch.zeros_like(s))
        found = majorised_step([start], evaluate, point, anchor, term, work, "S")
        if found.prediction is not None:
            work.assign(s, found.prediction)
        return Step("s", found.squared, found.rate)

    def _rolled_out(self, params: Params, v: Tensor, e: Tensor) -> Tensor:
        """``s_t = cell(x_t, s_{t-1}) + e_t``."""
        s = v.new_zeros(len(v), self.n_states)
        states = []
        for x, own in zip(v.unbind(1), e.unbind(1), strict=True):
            s = self.cell(params, x, s) + own
            states.append(s)
        return torch.stack(states, 1)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_x (nu/2)||x - value||^2 + sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2``, all t at once."""
        s = term.prediction

        def point(curvature: float, slopes: list[Tensor]) -> list[Tensor]:
            return [v - slopes[0] / curvature]

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.predicted(params, values[0], s)

        own = Term(term.weight, s, s)
        found = majorised_step([v], evaluate, point, anchor, own, work, "V")
        work.assign(v, found.values[0])
        return [Step("a", found.squared, found.rate)]

    # What the theory speaks of ---------------------------------------------------------------------------------

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        """Of B and of the states."""
        names, s = list(params), term.prediction
        own = Term(term.weight, s, s)
        slopes = local_gradients(
            [params[name] for name in names],
            lambda values: self.predicted(dict(zip(names, values, strict=True)), v, s),
            own,
            work.counts,
        )[1]
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        for name, slope in zip(names, slopes, strict=True):
            kept = penalty.stationarity(params[name], slope) if name in self.penalised else slope
            total = total + squared_norm(kept)
        apart = Term(term.weight, torch.zeros_like(s), s)
        slope = local_gradients([s], lambda values: self.predicted(params, v, values[0]) - values[0], apart)[
            1
        ][0]
        return total + squared_norm(slope + term.weight * term.residual(), work.counts)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        """Through all of time: ``g`` is the unrolled layer here."""
        return local_gradients([v], lambda values: self.forward(params, values[0]), term)[1][0]

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        s = term.prediction
        own = Term(term.weight, s, s)
        slope = local_gradients([v], lambda values: self.predicted(params, values[0], s), own)[1][0]
        return squared_norm(slope + anchor.weight * (v - anchor.value), work.counts)
