"""The one sweep: Algorithms 1 (generic), 2 (MLP) and 5 (GCN) of the paper over a chain of blocks.

    V_0 = x,   V_l ~ g_l(B_l, V_{l-1})  (soft, weight nu, l < n),   V_n = g_n(B_n, V_{n-1})  (hard, dual u, rho)

The hard link's terms ``<u, r> + (rho/2)||r||^2`` are ``(rho/2)||V_n + u/rho - g_n||^2`` up to a constant, so every
block sees one quadratic :class:`~dladmm.solvers.subproblems.Term`, whether its link is soft or hard.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dladmm.blocks import Anchor, Block, Step, Support, Term, Work
from dladmm.compute.chunks import concatenated
from dladmm.compute.execution import copied
from dladmm.compute.foresight import is_of_a_loop
from dladmm.compute.passes import inner_and_square, ratio, total_square
from dladmm.compute.workspace import UpdatePlan
from dladmm.engine.batches import Batches
from dladmm.engine.lagrangian import MeasuredProblem
from dladmm.engine.problem import State
from dladmm.engine.schedule import Schedule, Update, paper_schedule, planned
from dladmm.regularizers import Regularizer


class Engine(MeasuredProblem):
    """Runs iterations of dlADMM on one problem, relaxed as in Problem 2 of the paper.

    ``schedule`` is the order of updates, the paper's unless another is given (:mod:`dladmm.engine.schedule`).
    """

    def __init__(self, *args: Any, schedule: Schedule | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.schedule = paper_schedule(len(self.chain)) if schedule is None else schedule
        self._plans: dict[Hashable, list[tuple[Update, UpdatePlan]]] = {}

    @torch.no_grad()
    def sweep(self, state: State, gradients: list[Tensor | None] | None = None) -> list[Step]:
        """One iteration: the updates of the schedule, then ``r = V_n - g_n`` and ``u += rho r``.

        ``gradients`` are those of R at a feasible state (:meth:`output_gradients`). With them, the penalty of a block
        counts by the share of that gradient which reaches the block when it is updated first, in the backward sweep, so
        that the two keep the proportion they have in the true objective. The list gives them up as they are used.
        """
        steps: list[Step] = []
        penalties: list[Regularizer] = [self.penalty_of(l) for l in range(len(self.chain))]
        sweep_values: dict[Hashable, Any] = {}
        shared: set[int] = set()
        for update, plan in self._planned(state, continues=gradients is None):
            if update.variable == "output":
                steps += self._update_output(state, update, plan, sweep_values)
                continue
            l = update.link
            block, v, term = self.chain.blocks[l], self.input(state, l), self.term(state, l)
            work = self._work_of(state, l, update, plan, sweep_values, shared=gradients is not None)
            gradient = None if gradients is None or l in shared else gradients[l]
            if gradients is not None and gradient is not None and block.penalised:
                shared.add(l)
                share, _ = self.comm.at_once(
                    partial(gradient_share, term, gradient, self.work(l)),
                    partial(block.fetch_sums, v, term, work),
                )
                penalties[l] = self.penalty_of(l).times(share)
                gradients[l] = gradient = None
            steps += block.update_parameters(state.params[l], v, term, penalties[l], work)
        state.u.add_(state.residual, alpha=state.rho)
        return steps

    @torch.no_grad()
    def output_gradients(self, state: State, wanted: Sequence[bool] | None = None) -> list[Tensor | None]:
        """``dR/dV_l`` of every link at a feasible state, handed down from block to block by the chain rule.

        ``wanted`` says of which links they are kept, None is all; the others' are None.
        """
        blocks = self.chain.blocks
        gradient = self.risk.gradient(state.outputs[-1])
        gradients: list[Tensor | None] = [gradient if wanted is None or wanted[-1] else None]
        first = 0 if wanted is None else wanted.index(True) if True in wanted else len(blocks)
        for l in range(len(blocks) - 1, first, -1):
            pull_back = partial(blocks[l].pull_back, state.params[l], work=self.work(l))
            inputs = state.outputs[l - 1], state.predictions[l], gradient
            if gradients[0] is None and _keeps_entries(blocks[l]):
                for some in self.work(l).parts(*inputs):  # in the memory of the gradient that nobody keeps
                    copied(pull_back(*some), some[-1])
            else:
                gradient = concatenated(self.chunk_rows, pull_back, *inputs)
            gradients.insert(0, gradient if wanted is None or wanted[l - 1] else None)
        return [None] * (len(blocks) - len(gradients)) + gradients

    def largest_product(self, state: State, batches: Batches | None) -> float:
        """Multiplications of the largest product of a sweep; infinite where the rows of its batches are not known."""
        rows = self.n_rows if batches is None else batches.rows_at_once
        pairs = zip(self.chain, state.outputs, strict=True)
        widths = [v.shape[-1] if block.by_steps else v.shape[1:].numel() for block, v in pairs]
        inner = [max((p.shape[1:].numel() for p in params.values()), default=0) for params in state.params]
        return rows * max(out * n_in for out, n_in in zip(widths, inner, strict=True))

    def _planned(self, state: State, *, continues: bool) -> list[tuple[Update, UpdatePlan]]:
        """The updates that have something to do, planned once. Nothing is prepared where rows come in chunks."""
        idle = tuple(not params for params in state.params)
        whole = self.chunk_rows is None and all(v.ndim == 2 for v in state.outputs)
        joined = self.how.shortcuts
        asked = self.schedule, idle, joined, whole, continues
        if asked not in self._plans:
            self._plans[asked] = planned(
                self.schedule, self.chain, idle, joined=joined, prepared=whole, continues=continues
            )
        return self._plans[asked]

    def _update_output(
        self, state: State, update: Update, plan: UpdatePlan, values: dict[Hashable, Any]
    ) -> list[Step]:
        """``V_l``: solved by the block that follows, or by the loss when none does."""
        l = update.link
        if l == len(self.chain) - 1:
            return [self._update_last(state)]
        work = self._work_of(state, l + 1, update, plan, values)
        block, anchor = self.chain.blocks[l + 1], Anchor(state.weight(l), state.predictions[l])
        term = self.term(state, l + 1)
        steps = block.update_input(state.params[l + 1], state.outputs[l], anchor, term, work)
        return [step._replace(link=l) for step in steps] if plan.in_settled else steps

    def _work_of(
        self,
        state: State,
        l: int,
        update: Update,
        plan: UpdatePlan,
        values: dict[Hashable, Any],
        **further: bool,
    ) -> Work:
        settings = {"order": update.order, "plan": plan, "curvatures": state.curvatures[l]}
        return self.work(l, sweep_values=values, **settings, **further)

    def carried(self, state: State) -> dict[str, Tensor]:
        """What blocks carry along with this state and cannot compute again bit for bit, by ``link.name``."""
        found = {
            f"{l}.{name}": self.workspace.find((l, name), (self.input(state, l), *state.params[l].values()))
            for l, block in enumerate(self.chain)
            for name in block.carried
        }
        loops = self.workspace.foresight.snapshot() if self.how.recorded else {}
        return {name: value for name, value in found.items() if value is not None} | loops

    def carry(self, state: State, l: int, name: str, value: Tensor) -> None:
        """Put back what :meth:`carried` gave for block l."""
        if is_of_a_loop(name):
            self.workspace.foresight.resume(l, name, value)
            return
        self.workspace.keep((l, name), value, (self.input(state, l), *state.params[l].values()))

    def _update_last(self, state: State) -> Step:
        """``argmin_z R(z; y) + <u, z> + (rho/2)||z - m||^2``, Equations 5 and 15."""
        z = state.outputs[-1]
        new = self._prox(state.predictions[-1] - state.u / state.rho, state.rho, z)
        squared = total_square(self.how, new - z, self.counts)
        z.copy_(new)
        rate = torch.full_like(squared, last_layer_rate(state.rho, self.risk.H))
        return Step("z_L", squared, rate, own=True)

    def _prox(self, v: Tensor, rho: float, start: Tensor) -> Tensor:
        """The prox of R; rows of a loss with an exact one need nothing of each other."""
        if self.chunk_rows is None or not self.risk.closed_form:
            return self.risk.prox(v, rho, self.how, start)

        def of_chunk(some: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
            return replace(self.risk, target=target, weight=weight).prox(some, rho, self.how)

        return concatenated(self.chunk_rows, of_chunk, v, self.risk.target, self.risk.weight)


def gradient_share(term: Term, gradient: Tensor, work: Work) -> Tensor:
    """The share of ``gradient`` that reaches a block whose term pulls with ``weight E``: <weight E, g> / ||g||^2."""
    own = inner_and_square(work.how, term.prediction, term.target, gradient, work.counts)
    inner, squared = work.total(own)[0]
    share = (term.weight * ratio(inner, squared, 1.0 / term.weight)).clamp(0.0, 1.0)
    return share.nan_to_num(1.0)  # of a non-finite trial, which the safeguard refuses


def last_layer_rate(rho: float, H: float) -> float:
    """``C_1 = rho/2 - 2 H^2/rho``: what both z_L steps and the dual step together promise (Lemma 6, mended).

    The paper has ``rho/2 - H/2 - H^2/rho``. It drops the factor 2 that squaring the triangle inequality costs, and
    does not use that R is convex; with both corrected C_1 is positive exactly when ``rho > 2H``, as it claims.
    """
    return rho / 2 - 2 * H**2 / rho


def _keeps_entries(block: Block) -> bool:
    """Whether a gradient is pulled back through the block entry by entry, in any part of the rows alone."""
    return block.kind == "entrywise" and block.continuous and Support.CHUNKS in block.support
