"""The one sweep: Algorithms 1 (generic), 2 (MLP) and 5 (GCN) of the paper over a chain of blocks.

    V_0 = x,   V_l ~ g_l(B_l, V_{l-1})  (soft, weight nu, l < n),   V_n = g_n(B_n, V_{n-1})  (hard, dual u, rho)

Augmented Lagrangian (Equation 1, and its counterparts for Problems 2 and 6)::

    L_rho = R(V_n; y) + sum_l Omega(B_l) + (nu/2) sum_{l<n} ||V_l - g_l(B_l, V_{l-1})||^2
            + <u, r> + (rho/2)||r||^2,          r = V_n - g_n(B_n, V_{n-1})

The last two terms are ``(rho/2)||V_n + u/rho - g_n||^2`` up to a constant, so every block sees one quadratic
:class:`~dladmm.blocks.Term`, whether it is soft or hard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.blocks import Anchor, Params, Scope, Step, Term
from dladmm.blocks.base import like_rows
from dladmm.blocks.scratch import Scratch
from dladmm.compute.chunks import Source, joined, over
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.compute.norms import ratio, squared_norm
from dladmm.compute.passes import pull, squared_distance
from dladmm.compute.shards import Shards
from dladmm.engine.state import Energy, State
from dladmm.losses import Risk
from dladmm.network.chain import Chain
from dladmm.regularizers import NoPenalty, Regularizer
from dladmm.solvers.subproblems import SubproblemOptions

Asked = Literal["term", "anchor"] | None
"""See :class:`~dladmm.blocks.Scope`."""


class Engine:
    """Runs iterations of dlADMM on one problem. It owns the problem, never the iterate.

    ``rows`` (N, 1) are multiplicities: the whole Lagrangian of sample i counts ``rows_i`` times, so that training with
    whole numbers equals training with repeated samples, and rho > 2H is the condition as before. (A weight in the
    :class:`~dladmm.losses.Risk` weighs the loss alone, which is how a graph leaves unlabelled nodes out.)

    ``at_once`` is the number of rows worked on at a time (:mod:`dladmm.compute.chunks`), None all of them; with it
    ``x`` may be a :class:`~dladmm.compute.chunks.Source`. Variables, predictions and u are whole either way.

    ``comm`` says who else has rows of this problem. Parameters are the same on every rank; inputs, targets, variables,
    predictions and u are of a rank's own rows, and sums over the samples are made totals of all ranks by ``comm``.
    ``shards`` says more of those rows where it is known.
    """

    def __init__(
        self,
        chain: Chain,
        x: Tensor | Source,
        risk: Risk,
        penalty: Regularizer | None = None,
        options: SubproblemOptions | None = None,
        rows: Tensor | None = None,
        at_once: int | None = None,
        comm: Communicator = ALONE,
        shards: Shards | None = None,
    ) -> None:
        self.chain, self.risk, self.comm = chain, risk, comm
        # Blocks that work by rows cut x and never look at it whole: to them a source is a tensor
        self.x = cast(Tensor, x)
        self.at_once = None if at_once is None else max(1, min(at_once, len(x)))
        self.penalty = NoPenalty() if penalty is None else penalty
        self.options = SubproblemOptions() if options is None else options
        self.rows = rows
        if rows is not None and not all(block.counts_rows for block in chain):
            deaf = ", ".join(dict.fromkeys(repr(block) for block in chain if not block.counts_rows))
            raise InputError(f"sample weights cannot be used: they do not count in {deaf}.")
        if at_once is not None and not all(block.by_rows for block in chain):
            raise InputError("rows in chunks need a network of linear layers and known activations only.")
        if not comm.alone and not all(block.sharded for block in chain):
            single = ", ".join(dict.fromkeys(repr(block) for block in chain if not block.sharded))
            raise InputError(f"these blocks cannot be trained on several ranks: {single}. Train on one.")
        self.shards = Shards.of(comm, len(x), rows) if shards is None else shards
        self._memories: list[dict[str, Any]] = [{} for _ in chain]
        self._scratch = Scratch()
        self._penalties = [self.penalty] * len(chain.blocks)
        self._forces: Sequence[Tensor] | None = None

    # The algorithm ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sweep(self, state: State, forces: Sequence[Tensor] | None = None) -> list[Step]:
        """One iteration: backward V_l, B_l for l = n..1, forward B_l, V_l for l = 1..n, then r and u.

        ``forces`` are the gradients of R at a feasible state (:meth:`forces`). With them, the penalty of a block counts
        by the share of that gradient which reaches the block in the backward sweep, so that the two keep the
        proportion they have in the true objective.
        """
        layers = range(len(self.chain))
        steps: list[Step] = []
        self._penalties, self._forces = [self.penalty] * len(self.chain), forces
        for l in reversed(layers):
            steps += self._update_output(state, l, forward=False)
            if l > 0:
                steps += self._update_parameters(state, l, forward=False)
        steps += self._update_parameters(state, 0, forward=None)
        for l in layers:
            if l > 0:
                steps += self._update_parameters(state, l, forward=True)
            steps += (step._replace(link=l) for step in self._update_output(state, l, forward=True))
        self._forces = None  # as large as the variables
        state.u.add_(state.residual, alpha=state.rho)
        return steps

    def _update_parameters(self, state: State, l: int, *, forward: bool | None) -> list[Step]:
        """``B_l``: solved by block l, which knows how its output depends on its parameters.

        The first block's two updates follow one another (``forward=None``) and are left to it together.
        """
        last = l == len(self.chain) - 1
        block = self.chain.blocks[l]
        whole = self.at_once is None and not last
        asked: Asked = "term" if whole and forward is False and block.asks_differences else None
        scope = self._scope(l, bool(forward), asked, last, idle=not state.params[l])
        term = self._term(state, l)
        if self._forces is not None and not forward and block.penalised:
            share = _share(term, self._forces[l])
            known = block.shares_on_device and self.penalty.quadratic is not None
            self._penalties[l] = self.penalty.times(share if known else float(share))
        update = block.turn if forward is None else block.update_parameters
        return update(state.params[l], self._input(state, l), term, self._penalties[l], scope)

    def _update_output(self, state: State, l: int, *, forward: bool) -> list[Step]:
        """``V_l``: solved by the block that follows, or by the loss when none does."""
        if l == len(self.chain) - 1:
            return [self._update_last(state)]
        scope = self._scope(l + 1, forward, self._asked_after(state, l, forward))
        anchor = Anchor(state.weight(l), state.predictions[l])
        block = self.chain.blocks[l + 1]
        return block.update_input(
            state.params[l + 1], state.outputs[l], anchor, self._term(state, l + 1), scope
        )

    def _scope(
        self, l: int, forward: bool, asked: Asked = None, last: bool = False, idle: bool = False
    ) -> Scope:
        """What an update by block l gets; an idle one, of no parameters, does not count as one."""
        if not idle:
            self._scratch.next_update()
        goes_on = forward and self._forces is None and self.at_once is None
        return Scope(self.options, forward, self._memories[l], last, self._scratch, asked, goes_on)

    def _asked_after(self, state: State, l: int, forward: bool) -> Asked:
        """Which difference the update after that of V_l begins with.

        Backward that is the update of B_l. Forward it is that of B_{l+1}, or of V_{l+1} where block l+1 has none. The
        last link's target is made anew each time, so nothing is left for it; nor where rows come in chunks.
        """
        blocks = self.chain.blocks
        if self.at_once is not None or state.outputs[l].ndim != 2:
            return None
        if not forward:
            return "anchor" if blocks[l].asks_differences else None
        after = l + 1 if state.params[l + 1] else l + 2
        return "term" if l + 2 < len(blocks) and blocks[after].asks_differences else None

    def _update_last(self, state: State) -> Step:
        """``argmin_z R(z; y) + <u, z> + (rho/2)||z - m||^2``, Equations 5 and 15."""
        z = state.outputs[-1]
        new = self._prox(state.predictions[-1] - state.u / state.rho, state.rho)
        squared = squared_norm(new - z, self.rows)
        z.copy_(new)
        rate = torch.full_like(squared, last_layer_rate(state.rho, self.risk.H))
        return Step("z_L", squared, rate, own=True)

    def _prox(self, v: Tensor, rho: float) -> Tensor:
        """The prox of R; rows of a loss with an exact one need nothing of each other."""
        if self.at_once is None or not self.risk.loss.exact or self.risk.solver != "auto":
            return self.risk.prox(v, rho)

        def of_chunk(some: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
            return replace(self.risk, target=target, weight=weight).prox(some, rho)

        return joined(self.at_once, of_chunk, v, self.risk.target, self.risk.weight)

    def _term(self, state: State, l: int) -> Term:
        target = state.outputs[l]
        if l == len(self.chain) - 1:
            target = target + state.u / state.rho
        return Term(state.weight(l), target, state.predictions[l], self.rows, self.at_once, self.shards)

    def _input(self, state: State, l: int) -> Tensor:
        return self.x if l == 0 else state.outputs[l - 1]

    @property
    def recordable(self) -> bool:
        """Whether a sweep never asks the device for a number, so that its launches can be recorded and replayed."""
        return (
            all(block.recordable(self.options) for block in self.chain)
            and self.penalty.quadratic is not None
            and self.risk.loss.exact
            and self.risk.solver == "auto"
        )

    @property
    def memories(self) -> list[dict[str, Any]]:
        """What the blocks remember from one update to the next."""
        return self._memories

    def remembered(self, l: int) -> dict[str, Any]:
        """What block l must find again for a resumed run to go on bit for bit."""
        memory = self._memories[l]
        return {key: memory[key] for key in self.chain.blocks[l].remembers if key in memory}

    def remember(self, l: int, key: str, value: Tensor) -> None:
        """Put back what :meth:`remembered` gave; a number was saved as a tensor without dimensions."""
        self._memories[l][key] = value.item() if value.ndim == 0 else value

    def forget(self, *, keep_input: bool = False) -> None:
        """Drop everything remembered between updates: call it after changing a state by hand.

        ``keep_input`` leaves what the first block knows of the data alone (its Gram matrix), which no state changes.
        """
        self._scratch.forget()
        for l, memory in enumerate(self._memories):
            kept = self.chain.blocks[l].knows_of_input if keep_input and l == 0 else ()
            for key in [key for key in memory if key not in kept]:
                del memory[key]

    @torch.no_grad()
    def forces(self, state: State) -> list[Tensor]:
        """``dR/dV_l`` of every link at a feasible state, handed down from block to block by the chain rule."""
        blocks = self.chain.blocks
        force = self.risk.gradient(state.outputs[-1])
        forces = [force]
        for l in range(len(blocks) - 1, 0, -1):
            pull_back = partial(blocks[l].pull_back, state.params[l])
            force = joined(self.at_once, pull_back, state.outputs[l - 1], state.predictions[l], force)
            forces.insert(0, force)
        return forces

    @contextmanager
    def seeing(self, x: Tensor | Source | None, options: SubproblemOptions) -> Iterator[None]:
        """Other inputs (None: the engine's own) and options for a while; begins and ends with nothing remembered."""
        self.forget(keep_input=True)
        kept = self.x, self.options, self._memories
        self.options = options
        if x is not None:
            self.x, self._memories = cast(Tensor, x), [{} for _ in self.chain]
        try:
            yield
        finally:
            self.x, self.options, self._memories = kept
            self.forget(keep_input=True)

    # Where an iterate starts -----------------------------------------------------------------------------------

    @torch.no_grad()
    def feasible_state(self, params: list[Params], rho: float, nu: float) -> State:
        """V from the network's own forward pass and ``u = -grad R``: Lemma 2 holds from the start."""
        outputs: list[Tensor] = []
        for l, block in enumerate(self.chain):
            v = outputs[-1] if outputs else self.x
            outputs.append(joined(self.at_once, partial(block.forward, params[l]), v))
        u = -self.risk.gradient(outputs[-1])
        return State(params, outputs, [v.clone() for v in outputs], u, rho, nu)

    @torch.no_grad()
    def resynchronise(self, state: State) -> None:
        """:meth:`feasible_state` of the parameters the state has, in the memory the state has."""
        v = self.x
        for l, block in enumerate(self.chain):
            for some, out in over(self.at_once, v, state.outputs[l]):
                block.write_forward(state.params[l], some, out)
            v = state.outputs[l]
            if state.predictions[l] is not v:
                state.predictions[l].copy_(v)
        torch.neg(self.risk.gradient(v), out=state.u)

    def objective(self, state: State) -> Tensor:
        """The true objective, loss of the forward pass plus penalty, of a feasible state."""
        return self.risk_value(state.outputs[-1]) + self.penalty_value(state.params)

    @torch.no_grad()
    def paper_state(self, params: list[Params], rho: float, nu: float) -> State:
        """As the authors start: hidden layers from the forward pass, z_L at +1 / -1, u = 0."""
        state = self.feasible_state(params, rho, nu)
        state.outputs[-1].copy_(torch.where(self.risk.target > 0, 1.0, -1.0).reshape(state.u.shape))
        state.u.zero_()
        return state

    # What the theory speaks of ---------------------------------------------------------------------------------

    @torch.no_grad()
    def raw_predictions(self, state: State) -> list[Tensor]:
        """``g_l(B_l, V_{l-1})`` computed again from data, parameters and variables, without the caches.

        Where rows come in chunks, those of the hidden layers are made chunk by chunk when somebody looks.
        """

        def again(l: int, rows: slice) -> Tensor:
            v = self._input(state, l)[rows]
            return self.chain.blocks[l].recompute(state.params[l], v, state.predictions[l][rows])

        found: list[Tensor] = []
        for l, block in enumerate(self.chain):
            v, g = self._input(state, l), state.predictions[l]
            if self.at_once is None or l == len(self.chain) - 1:
                found.append(joined(self.at_once, partial(block.recompute, state.params[l]), v, g))
            else:
                found.append(cast(Tensor, Source(partial(again, l), tuple(g.shape), g.dtype, g.device)))
        return found

    @property
    def n_rows(self) -> int:
        """How many rows there are on all ranks."""
        return len(self.x) if self.shards is None else self.shards.n_rows

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
            tie = ties.get(l)
            if tie is None and output is not prediction:  # a feasible state may have one tensor for both
                parts = over(self.at_once, output, prediction, self.rows)
                tie = sum((squared_distance(*part) for part in parts), zero)
            if tie is not None:
                coupling = coupling + state.weight(l) / 2 * tie
        for l, block in enumerate(self.chain):
            if block.own_variables:
                v = self._input(state, l)
                args = state.params[l], v, predictions[l], state.weight(l), self.rows
                coupling = coupling + block.own_energy(*args)
        r = pairs[-1][0] - pairs[-1][1]
        return Energy(
            risk=self._local_risk(state.outputs[-1]),
            penalty=self.penalty_value(state.params),
            coupling=coupling,
            dual=self._counted(state.u.double() * r.double()).sum(),
            residual_squared=squared_norm(r, self.rows),
            rho=state.rho,
        )

    def risk_value(self, z: Tensor) -> Tensor:
        """``R(z; y)``, every row counted as often as it counts."""
        return self.comm.total(self._local_risk(z))[0]

    def _local_risk(self, z: Tensor) -> Tensor:
        if self.rows is None:
            return self.risk.value(z)
        return self._counted(self.risk.by_sample(z)[:, None]).sum()

    def _counted(self, x: Tensor) -> Tensor:
        return x if self.rows is None else x * like_rows(self.rows, x)

    def penalty_value(self, params: Sequence[Params]) -> Tensor:
        """``sum_l Omega(W_l)``."""
        zero = torch.zeros((), dtype=torch.float64, device=self.x.device)
        penalised = (p[name] for block, p in zip(self.chain, params, strict=True) for name in block.penalised)
        return sum((self.penalty.value(W) for W in penalised), zero)

    @torch.no_grad()
    def dual_optimality(self, state: State) -> Tensor:
        """``||grad R(z_L) + u||^2``: zero by Lemma 2 when z_L was solved exactly."""
        return self.comm.total(self.local_dual_optimality(state))[0]

    @torch.no_grad()
    def local_dual_optimality(self, state: State) -> Tensor:
        """The same of this process's rows."""
        return squared_norm(self.risk.gradient(state.outputs[-1]) + state.u, self.rows)

    @torch.no_grad()
    def stationarity(self, state: State, predictions: Sequence[Tensor] | None = None) -> Tensor:
        """``dist(0, dL_rho)^2`` at the iterate (Property 3): all of W, b, z, a, z_L and u, squared and summed."""
        predictions = state.predictions if predictions is None else predictions
        probe = replace(state, predictions=list(predictions))
        r = probe.residual
        last = self.risk.gradient(state.outputs[-1]) + state.u + state.rho * r
        own = squared_norm(last, self.rows) + squared_norm(r, self.rows)
        total = torch.zeros_like(own)
        for l, block in enumerate(self.chain):
            term = self._term(probe, l)
            v = self._input(probe, l)
            total = total + block.parameter_stationarity(state.params[l], v, term, self.penalty)
            if l > 0:
                for part, some, value in term.parts(v, probe.predictions[l - 1]):
                    anchor = Anchor(state.weight(l - 1), value)
                    own = own + block.input_stationarity(state.params[l], some, anchor, part)
        return total + self.comm.total(own)[0]


def _share(term: Term, force: Tensor) -> Tensor:
    """How much of ``force`` reaches a block whose term pulls with ``weight E``: their product over ||force||^2."""
    pulled, squared = term.total(pull(term.prediction, term.target, force, term.rows))[0]
    share = (term.weight * ratio(pulled, squared, 1.0 / term.weight)).clamp(0.0, 1.0)
    return share.nan_to_num(1.0)  # a trial that left the numbers: the safeguard refuses it


def last_layer_rate(rho: float, H: float) -> float:
    """``C_1 = rho/2 - 2 H^2/rho``: what both z_L steps and the dual step together promise (Lemma 6, mended).

    The paper has ``rho/2 - H/2 - H^2/rho``. It drops the factor 2 that squaring the triangle inequality costs, and
    does not use that R is convex; with both corrected C_1 is positive exactly when ``rho > 2H``, as it claims.
    """
    return rho / 2 - 2 * H**2 / rho
