"""A recurrent layer, unrolled over time: the hidden states are variables, the parameters are shared.

    s_t ~ cell(B, x_t, s_{t-1}),   t = 1..T,   s_0 = 0         (soft, weight c)
    y_t ~ s_t                                                   (soft, weight c: the block's link in the chain)

In the chain this is one block. Its output variable y is (samples, T, states); its prediction of y *is* s, the block's
own variables, so they live where every block's cached prediction lives and are saved, resynchronised and measured with
it. docs/network_notes.md says why.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm.blocks.base import Block, Support
from dladmm.blocks.recurrent_cells import (
    Unrolled,
    advanced,
    before,
    forward_through_time,
    pulled,
    pulled_before,
    pushed,
    through_time,
)
from dladmm.blocks.recurrent_parts import initial, with_memories
from dladmm.blocks.recurrent_steps import (
    SHARE,
    gradients_of,
    majorised_states,
    share_of_pull,
    solved_states,
    whitened_step,
)
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.network.recurrent_module import Recurrent
from dladmm.regularizers import Regularizer
from dladmm.solvers.local_step import Known, majorised_step, proximal_point
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class RecurrentStates(Block):
    """All states of an Elman network, a GRU or an LSTM; the state of an LSTM is (h, c).

    Every subproblem takes one majorised step (Algorithm 1): the gradient of this one block, or with exact solves asked
    for a step near Gauss and Newton's, and backtracking on true values. Backward the states are updated, then the
    parameters; forward the other way round.

    Parameters
    ----------
    layer : Recurrent
        The layer; inputs are (N, time, features), states (N, time, units).
    """

    kind = "recurrent"
    of_inputs = "weight_ih_l0", "bias_ih_l0"
    own_variables = starts_by_data = by_steps = updated_once = True
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
        """Those of :func:`~dladmm.blocks.recurrent_parts.initial`; without a generator the layer's own values.

        ``scale`` is left aside: it makes states small, and a layer of small states forgets before it can learn.
        """
        return initial(self.layer.rnn, generator)

    def started(self, params: Params, v: Tensor) -> Params:
        return with_memories(params, self.cell_kind, v.shape[1])

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
        return self._advanced(params, self._sums(params, x, "ih"), s)[0]

    def _advanced(self, params: Params, inputs: Tensor, s: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The same from the sums of the inputs, with what slopes are made of."""
        return advanced(self.cell_kind, inputs, self._sums(params, s[..., : self.n_hidden], "hh"), s)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.rolled_out(params, self._sums(params, v, "ih"))[0]

    def predicted(self, params: Params, v: Tensor, s: Tensor) -> Tensor:
        """``cell(B, x_t, s_{t-1})`` of every t at once."""
        return self.cell(params, v, before(s))

    def unrolled(self, params: Params, v: Tensor, s: Tensor, earlier: Tensor | None = None) -> Unrolled:
        """The same with the cells' slopes, by hand; ``earlier`` are the states a step before, where they are known."""
        earlier = before(s) if earlier is None else earlier
        inputs = self._sums(params, v, "ih")
        found = self._advanced(params, inputs, earlier)
        return Unrolled(self.cell_kind, params, s, *found, inputs=inputs, earlier=earlier)

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
        """The states and B: lines 4 and 5 of Algorithm 1 backward, lines 8 and 9 forward."""
        steps: list[Step] = []
        (forward,) = work.order
        at = self.unrolled(params, v, term.prediction)
        for of_states in (False, True) if forward else (True, False):
            if of_states:
                step, at = self._states_step(term, work, at)
            else:
                own = (
                    penalty.times(work.once_per_sweep(SHARE, lambda: v.new_ones(())))
                    if work.shared
                    else penalty
                )
                step, at = self._step_of_B(v, term, own, work, at)
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

    def _states_step(self, term: Term, work: Work, at: Unrolled) -> tuple[Step, Unrolled]:
        """``argmin_s sum_t (c/2)||s_t - cell(x_t, s_{t-1})||^2 + (c/2)||y - s||^2`` over all of time together.

        The step is taken in ``e_t = s_t - cell(x_t, s_{t-1})``, from which the states roll out again: in these
        coordinates the first sum is ``||e||^2``, and what y wants reaches the first step of time at once.
        """
        solves = solved_states if work.options.a_solver == "exact" else majorised_states
        step, ended, pull = solves(self, term, work, at)
        if work.shared:
            e = ended.states - ended.predicted
            work.once_per_sweep(SHARE, lambda: share_of_pull(pull, e, term.weight, work))
        return step, ended

    def rolled_out(
        self, params: Params, inputs: Tensor, e: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """``s_t = cell(x_t, s_{t-1}) + e_t`` from the sums of x, and what the slopes of every t are made of.

        Without e it is the forward pass, which needs no slopes.
        """
        s = inputs.new_zeros(len(inputs), self.n_states)
        states, held = [], []
        for t, x in enumerate(inputs.unbind(1)):
            s, parts = self._advanced(params, x, s)
            if e is not None:
                s = s + e[:, t]
                held.append(parts)
            states.append(s)
        return torch.stack(states, 1), held

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_x (nu/2)||x - value||^2 + sum_t (c/2)||s_t - cell(B, x_t, s_{t-1})||^2``, all t at once."""
        at = self.unrolled(params, v, term.prediction)
        s, residual = at.states, at.predicted - at.states

        def evaluate(values: list[Tensor]) -> Tensor:
            return self._advanced(params, self._sums(params, values[0], "ih"), at.before)[0]

        own, known = (
            Term(term.weight, s, s),
            Known(at.predicted, residual, [self._of_inputs(at, term.weight * residual)]),
        )
        found = majorised_step([v], evaluate, None, anchor, own, work, "V", known)
        work.assign(v, found.values[0])
        return [Step("a", found.squared, found.rate)]

    def _of_inputs(self, at: Unrolled, pull: Tensor) -> Tensor:
        """A gradient in what the cells predict as one in x, all t at once."""
        return pulled(at.slopes, pull, of="inputs") @ at.params["weight_ih_l0"]

    # For steps that see the network as a whole ------------------------------------------------------------------

    def parameter_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Params:
        at = self.unrolled(params, v, prediction)
        pull = through_time(at.slopes, gradient, params["weight_hh_l0"])
        found = gradients_of(self, v, at, pull, work)
        return dict(zip(params, work.total(*(found[name] for name in params)), strict=True))

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        at = self.unrolled(params, v, prediction)
        of_states = self._sums(moves, at.before[..., : self.n_hidden], "hh")
        of_gates = at.slopes.inputs * self._sums(moves, v, "ih") + at.slopes.states * of_states
        return forward_through_time(at.slopes, pushed(at.slopes, of_gates), params["weight_hh_l0"])

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        slopes = self.unrolled(params, v, prediction).slopes
        own = pushed(slopes, slopes.inputs * (move @ params["weight_ih_l0"].T))
        return forward_through_time(slopes, own, params["weight_hh_l0"])

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        at = self.unrolled(params, v, prediction)
        return self._of_inputs(at, through_time(at.slopes, gradient, params["weight_hh_l0"]))

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
        states = self.forward(params, v)
        return self.pull_back(params, v, states, term.weight * (states - term.target), work)

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        at = self.unrolled(params, v, term.prediction)
        slope = self._of_inputs(at, term.weight * (at.predicted - at.states))
        return squared_norm(slope + anchor.weight * (v - anchor.value), work.counts)
