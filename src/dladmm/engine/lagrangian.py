"""The augmented Lagrangian of a problem, and the residuals of the theory.

Equation 1, and its counterparts for Problems 2 and 6::

    L_rho = R(V_n; y) + sum_l Omega(B_l) + (nu/2) sum_{l<n} ||V_l - g_l(B_l, V_{l-1})||^2
            + <u, r> + (rho/2)||r||^2,          r = V_n - g_n(B_n, V_{n-1})
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from dladmm.blocks import Anchor, Step
from dladmm.compute.chunks import Source, concatenated, in_chunks
from dladmm.compute.passes import squared_distance, squared_norm, total_square
from dladmm.compute.work import like_rows
from dladmm.compute.workspace import Workspace
from dladmm.engine.problem import Problem, State


@dataclass(frozen=True)
class Energy:
    """The pieces of the Lagrangian, each a float64 scalar on the device."""

    risk: Tensor
    penalty: Tensor
    coupling: Tensor
    dual: Tensor
    residual_squared: Tensor
    rho: float

    @property
    def sums(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The pieces that are sums over the samples."""
        return self.risk, self.coupling, self.dual, self.residual_squared

    def with_sums(self, risk: Tensor, coupling: Tensor, dual: Tensor, residual_squared: Tensor) -> Energy:
        """The same penalty beside other sums."""
        return replace(self, risk=risk, coupling=coupling, dual=dual, residual_squared=residual_squared)

    @property
    def objective(self) -> Tensor:
        """F of Problem 4."""
        return self.risk + self.penalty + self.coupling

    @property
    def lagrangian(self) -> Tensor:
        """L_rho of Equation 1."""
        return self.objective + self.dual + self.rho / 2 * self.residual_squared


class MeasuredProblem(Problem):
    """A problem whose Lagrangian, objective and residuals can be measured at a state."""

    @torch.no_grad()
    def raw_predictions(self, state: State) -> list[Tensor]:
        """``g_l(B_l, V_{l-1})`` computed again from data, parameters and variables, without the caches.

        Where rows come in chunks, those of the hidden layers are made chunk by chunk when they are read.
        """

        def again(l: int, rows: slice) -> Tensor:
            v = self.input(state, l)[rows]
            return self.chain.blocks[l].recompute(state.params[l], v, state.predictions[l][rows])

        found: list[Tensor] = []
        for l, block in enumerate(self.chain):
            v, g = self.input(state, l), state.predictions[l]
            if self.chunk_rows is None or l == len(self.chain) - 1:
                found.append(concatenated(self.chunk_rows, partial(block.recompute, state.params[l]), v, g))
            else:
                found.append(cast(Tensor, Source(partial(again, l), tuple(g.shape), g.dtype, g.device)))
        return found

    def objective(self, state: State) -> Tensor:
        """The true objective, loss of the forward pass plus penalty, of a feasible state."""
        return self.risk_value(state.outputs[-1]) + self.penalty_value(state.params)

    def energy(
        self, state: State, predictions: Sequence[Tensor] | None = None, steps: Sequence[Step] = ()
    ) -> Energy:
        """The terms of the Lagrangian, from the cached predictions unless others are given.

        ``steps`` are those of the sweep that made the state, where it has just been made.
        """
        own = self.local_energy(state, predictions, steps)
        return own.with_sums(*self.comm.total(*own.sums))

    @torch.no_grad()
    def local_energy(
        self, state: State, predictions: Sequence[Tensor] | None = None, steps: Sequence[Step] = ()
    ) -> Energy:
        """The same of this process's rows; only the penalty is everybody's."""
        predictions = state.predictions if predictions is None else predictions
        zero = torch.zeros((), dtype=torch.float64, device=self.x.device)
        pairs = list(zip(state.outputs, predictions, strict=True))
        ties = {step.link: step.tie for step in steps if step.link is not None and step.tie is not None}
        coupling = zero
        for l, (output, prediction) in enumerate(pairs[:-1]):
            tie, rows = ties.get(l), self.chain.blocks[l].counted_rows
            if rows is not None:
                tie = squared_distance(self.how, output[rows], prediction[rows], None)
            if tie is None and output is not prediction:  # a feasible state may have one tensor for both
                parts = in_chunks(self.chunk_rows, output, prediction, self.counts)
                tie = sum((squared_distance(self.how, *part) for part in parts), zero)
            if tie is not None:
                coupling = coupling + state.weight(l) / 2 * tie
        for l, block in enumerate(self.chain):
            if block.own_variables:
                v = self.input(state, l)
                args = state.params[l], v, predictions[l], state.weight(l), self.work(l)
                coupling = coupling + block.own_energy(*args)
        r = pairs[-1][0] - pairs[-1][1]
        return Energy(
            risk=self._local_risk(state.outputs[-1]),
            penalty=self.penalty_value(state.params),
            coupling=coupling,
            dual=self._counted(state.u.double() * r.double()).sum(),
            residual_squared=total_square(self.how, r, self.counts),
            rho=state.rho,
        )

    def risk_value(self, z: Tensor) -> Tensor:
        """``R(z; y)``, every row counted as often as it counts."""
        return self.comm.total(self._local_risk(z))[0]

    def _local_risk(self, z: Tensor) -> Tensor:
        if self.counts is None:
            return self.risk.value(z)
        return self._counted(self.risk.by_sample(z)[:, None]).sum()

    def _counted(self, x: Tensor) -> Tensor:
        return x if self.counts is None else x * like_rows(self.counts, x)

    @torch.no_grad()
    def dual_optimality(self, state: State) -> Tensor:
        """``||grad R(z_L) + u||^2``: zero by Lemma 2 when z_L was solved exactly."""
        return self.comm.total(self.local_dual_optimality(state))[0]

    @torch.no_grad()
    def local_dual_optimality(self, state: State) -> Tensor:
        """The same of this process's rows."""
        return total_square(self.how, self.risk.gradient(state.outputs[-1]) + state.u, self.counts)

    @torch.no_grad()
    def stationarity(self, state: State, predictions: Sequence[Tensor] | None = None) -> Tensor:
        """``dist(0, dL_rho)^2`` at the iterate (Property 3): all of W, b, z, a, z_L and u, squared and summed."""
        predictions = state.predictions if predictions is None else predictions
        probe = replace(state, predictions=list(predictions))
        r = probe.residual
        last = self.risk.gradient(state.outputs[-1]) + state.u + state.rho * r
        own = squared_norm(last, self.counts) + squared_norm(r, self.counts)
        apart = Workspace()  # nothing that the sweeps have cached is used

        def of_parameters(l: int) -> Tensor:
            args = state.params[l], self.input(probe, l), self.term(probe, l), self.penalty_of(l)
            return self.chain.blocks[l].parameter_stationarity(*args, self.work(l, workspace=apart))

        def of_variables() -> Tensor:
            found = own
            for l, block in list(enumerate(self.chain))[1:]:
                term, v, work = self.term(probe, l), self.input(probe, l), self.work(l, workspace=apart)
                for part, own_term, some, value in work.terms(term, v, probe.predictions[l - 1]):
                    anchor = Anchor(state.weight(l - 1), value)
                    found = found + block.input_stationarity(state.params[l], some, anchor, own_term, part)
            return self.comm.total(found)[0]

        links = [partial(of_parameters, l) for l in range(len(self.chain))]
        parts: list[Tensor] = self.comm.at_once(*links, of_variables)
        return sum(parts, torch.zeros_like(own))

    @torch.no_grad()
    def tie_margin(self, state: State, predictions: Sequence[Tensor]) -> float | None:
        """How far the updates of the hidden variables keep from ties (Assumption 1); None where that is not known."""
        margins: list[float | None] = []
        for l, block in enumerate(self.chain):
            if l > 0:
                v, value = state.outputs[l - 1], predictions[l - 1][:]
                anchor, term = Anchor(state.weight(l - 1), value), self.term(state, l)
                margins.append(block.tie_margin(state.params[l], v, anchor, term))
        known = [margin for margin in margins if margin is not None]
        own = min(known, default=math.inf) if len(known) == len(margins) else -math.inf
        # The smallest of all ranks; -infinity says that it is not known
        (found,) = self.comm.largest(torch.full((), -own, dtype=torch.float64, device=self.x.device))
        return None if float(found) == math.inf else -float(found)

    def all_penalised(self, state: State) -> bool:
        """Whether every parameter is penalised: biases are only with ``penalise_bias``."""
        return all(set(params) <= set(self.penalised(l)) for l, params in enumerate(state.params))

    def largest_entry(self, state: State) -> float:
        """The largest absolute value of any variable or parameter, of all ranks."""
        tensors = [*state.outputs, state.u, *(p for block in state.params for p in block.values())]
        ends = [end.double() for t in tensors if t.numel() for end in torch.aminmax(t)]
        own = float(torch.stack(ends).abs().max()) if ends else 0.0
        if self.comm.alone:
            return own
        return float(self.comm.largest(torch.full((), own, dtype=torch.float64, device=state.u.device))[0])
