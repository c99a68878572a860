"""The accelerated iteration: resynchronised, extrapolated, and under a safeguard.

After a few plain iterations the per-sample variables fit the labels and nothing pulls the network itself. The
accelerated iteration starts every sweep from what the network really does:

1. *extrapolate* the parameters, ``y = x_k + beta_k (x_k - x_{k-1})`` with Nesterov's weights ``beta_k = j/(j+3)``;
2. *resynchronise*: z and a from the forward pass of y, ``u = -grad R`` (Lemma 2 at a feasible point), on inputs of
   which a few entries were dropped;
3. *sweep* once, with the unchanged engine;
4. keep the new parameters only if the *true objective*, loss of the forward pass plus penalty, did not rise.
   Otherwise try again with all entries, then with less extrapolation and shorter steps, then with none and shorter yet.

How long a step is, one number says, the *level*: rho and nu are their starting values times ``2^level``. Above 0 the
damping grows with it, and so does the stiffness of the links towards the input, which makes the sweep a descent step
in the limit (docs/theory.md): so the attempts end, or rounding ends them.

At a resynchronised point every constraint holds, so its augmented Lagrangian *is* the true objective: the history's
column ``lagrangian`` shows it, and the certificate's descent check checks the safeguard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.blocks import Params, Step
from dladmm.compute.chunks import Source
from dladmm.compute.recording import WARM_CALLS, Recorder
from dladmm.engine.method import Look, Seen
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine
from dladmm.network.chain import link_factors
from dladmm.network.input_dropout import InputDropout

HIGHEST_RAISE = 12
"""Before an iteration is given up, rho and nu have grown by 2^12."""

LOWEST_LEVEL = -2
"""How far steps may grow: a quarter of the starting rho and nu."""

PATIENCE, LONGEST_PATIENCE = 3, 192
"""Iterations without a refusal after which steps grow; refusals double it."""

FIRST_FADE, FADE_GROWTH = 0.3, 1.05
"""Of the dropped entries: the share with which a run begins, and its growth after a step that was not refused."""

NUMBERS = ("iteration", "momentum", "level", "calm", "refused", "patience", "fade", "rho", "nu")
"""What an accelerated run must find again besides its previous parameters."""


class Attempt(NamedTuple):
    """How one iteration is tried: the extrapolation's counter, the level, and whether entries are dropped."""

    momentum: int
    level: int
    drops: bool

    @property
    def weight(self) -> float:
        """How far it extrapolates, of the last move."""
        return self.momentum / (self.momentum + 3)


class Tried(NamedTuple):
    """Where an attempt ends, its true objective there, and what is seen of it; launched, not waited for."""

    candidate: State
    objective: Tensor
    seen: Any


class Accelerated:
    """Extrapolation, resynchronisation and the safeguard around the unchanged engine."""

    def __init__(self, engine: Engine, state: State, dropout: float = 0.0, seed: int = 0) -> None:
        if dropout > 0 and engine.x.layout != torch.strided:
            raise InputError("dropout needs dense inputs; these are stored sparse.")
        self.engine, self.dropout = engine, dropout
        self._drops = InputDropout(engine.x, seed) if dropout > 0 else None
        self.rho, self.nu = state.rho, state.nu
        self.previous = state.clone_parameters()
        state.predictions = list(state.outputs)  # equal at a feasible point: only the trial is ever swept
        self._trial = replace(
            state,
            outputs=list(state.outputs),  # lent by the state while attempts are made
            predictions=[torch.empty_like(v) for v in state.outputs],
            u=torch.empty_like(state.u),
            links=link_factors(engine.chain, state.outputs),
        )
        self.iteration = self.momentum = self.level = self.calm = self.refused = 0
        self.patience, self.fade = PATIENCE, FIRST_FADE
        self._known: tuple[State, float] | None = None
        self._recorder: Recorder | None = None
        self._calls = 0
        self._beta = state.u.new_zeros(())
        # Links may be stiffer than their successors only as far as the dtype resolves what is left of a move
        self._stiffest = torch.finfo(state.u.dtype).eps ** (-0.5 / len(engine.chain))

    @torch.no_grad()
    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        objective = self._objective_of(state)
        self.iteration += 1
        with self._lent_memory(state):
            for refused, attempt in enumerate(self._attempts()):
                tried = self._try(state, attempt, look)
                # Asked only now: a GPU that is waited for has nothing to do meanwhile
                reached = float(tried.objective)
                if reached <= objective:
                    self._accept(state, tried.candidate, attempt, refused > 0)
                    self._known = state, reached
                    seen: Seen = tried.seen
                    return seen
                self.refused += 1
        return None

    @contextmanager
    def _lent_memory(self, state: State) -> Iterator[None]:
        """Within it the state is without variables, and attempts are made in their memory.

        They are the forward pass of its parameters, which no attempt reads or changes: where nothing was accepted, or
        an attempt was broken off, they are made again. One set of variables less is held, and at no time do two states
        share one.
        """
        state.outputs, state.predictions = [], []
        try:
            yield
        finally:
            if not state.outputs:
                state.outputs, state.predictions = list(self._trial.outputs), list(self._trial.outputs)
                self.engine.resynchronise(state)

    def _try(self, state: State, attempt: Attempt, look: Look[Seen]) -> Tried:
        """One attempt. Where launches are recorded, those of its level are replayed: all that changes from one to the
        next is the extrapolation and the inputs, which lie where they lay."""

        def after(steps: list[Step]) -> Tried:
            candidate = self._candidate(state)
            asked = partial(self.engine.objective, candidate), partial(look, candidate, steps)
            return Tried(candidate, *self.engine.comm.at_once(*asked))

        if not self._records(state):
            return after(self._sweep_trial(state, attempt))
        inputs = self._inputs(attempt)
        self._beta.fill_(attempt.weight)

        def run() -> Tried:
            return after(self._sweep_from(state, attempt, self._beta, inputs))

        planned = self.engine.workspace.foresight.plan()
        self._calls += 1
        if self._calls <= WARM_CALLS:
            return run()
        held = (
            p.data_ptr()
            for params in (state.params, self.previous)
            for block in params
            for p in block.values()
        )
        if self._recorder is None:
            compiles = self.engine.how.compiled
            self._recorder = Recorder(self.engine.workspace, lasting=False, compiles=compiles)
        tried: Tried = self._recorder((attempt.level, inputs is None, planned, *held), run)
        return tried

    def _records(self, state: State) -> bool:
        """Whether attempts are replayed: then the tensors of the state, and of the trial, stay where they are."""
        small = self.engine.worth_recording(self._trial)
        return self.engine.how.never_waits(state.u) and small and not self.engine.chain.draws

    def _objective_of(self, state: State) -> float:
        """The true objective, known of the state that the last iteration left: asking a GPU for it means waiting."""
        if self._known is not None and self._known[0] is state:
            return self._known[1]
        return float(self.engine.objective(state))

    def _attempts(self) -> Iterator[Attempt]:
        """What is tried, in this order, until the objective does not rise."""
        drops = self.dropout > 0 or self.engine.chain.draws
        yield Attempt(self.momentum, self.level, drops)
        if drops:  # was it the dropped entries,
            yield Attempt(self.momentum, self.level, drops=False)
        yield Attempt(3 * self.momentum // 4, self.level + 1, drops)  # or the length of the step?
        for raised in range(1, HIGHEST_RAISE + 1):
            yield Attempt(0, self.level + raised, drops=False)

    def _inputs(self, attempt: Attempt) -> Tensor | Source | None:
        """The inputs with entries dropped, in memory of their own; None is the inputs themselves."""
        if self._drops is None or not attempt.drops:
            return None
        engine = self.engine
        return self._drops.apply(engine.x, self.fade * self.dropout, self._number_of(attempt), engine.how)

    def _number_of(self, attempt: Attempt) -> int:
        """The number of this attempt among all of the run, for what is drawn."""
        return 64 * self.iteration + attempt.level - LOWEST_LEVEL

    def _sweep_trial(self, state: State, attempt: Attempt) -> list[Step]:
        """One sweep of the trial from the resynchronised, extrapolated point; the state's parameters stay."""
        return self._sweep_from(state, attempt, attempt.weight, self._inputs(attempt))

    def _sweep_from(
        self, state: State, attempt: Attempt, beta: float | Tensor, inputs: Tensor | Source | None
    ) -> list[Step]:
        engine, scale, stiffer = self.engine, 2.0**attempt.level, 2.0 ** max(attempt.level, 0)
        trial = self._trial
        trial.curvatures = [dict(kept) for kept in state.curvatures]
        trial.params = self._extrapolated(state.params, beta)
        trial.rho, trial.nu = scale * self.rho, scale * self.nu
        trial.stiffness = min(stiffer, self._stiffest)
        seen = engine.seen_as(x=inputs, options=engine.options.damped(stiffer))
        with engine.chain.drawing(self._number_of(attempt), self.fade if attempt.drops else 0.0):
            seen.resynchronise(trial)
            gradients: list[Tensor | None] | None = None
            if not engine.penalty.is_zero:
                gradients = seen.output_gradients(trial, [bool(block.penalised) for block in engine.chain])
            # The links of the trial are not those of the candidate, so ties say nothing about it
            return [step._replace(link=None) for step in seen.sweep(trial, gradients)]

    def _candidate(self, state: State) -> State:
        """The feasible point of the trial's parameters, in the trial's memory: the sweep's variables are used up."""
        trial = self._trial
        candidate = replace(
            state, params=trial.params, outputs=trial.outputs, predictions=list(trial.outputs), u=trial.u
        )
        self.engine.resynchronise(candidate)
        return candidate

    def _extrapolated(self, params: list[Params], beta: float | Tensor) -> list[Params]:
        pairs = zip(params, self.previous, strict=True)
        moved = [{name: p[name].lerp(old[name], -beta) for name in p} for p, old in pairs]
        for l, block_params in enumerate(moved):
            penalty = self.engine.penalty_of(l)
            if penalty.quadratic is None:
                for name in self.engine.chain.blocks[l].penalised:  # a constraint holds at the new point too
                    block_params[name] = penalty.prox(block_params[name], 0.0)
        return moved

    def _accept(self, state: State, candidate: State, attempt: Attempt, refused: bool) -> None:
        """Take the new point, and let what was refused count less: longer steps, or dropped entries."""
        trial = self._trial
        if self._records(state):
            self._copy(state, candidate)
        else:
            for old, p, new in zip(self.previous, state.params, candidate.params, strict=True):
                for name in p:  # handed on, not copied: the next attempt makes tensors of its own
                    old[name], p[name] = p[name], new[name]
            state.u, trial.u = candidate.u, state.u
        state.outputs, state.predictions = list(candidate.outputs), list(candidate.outputs)
        state.curvatures = trial.curvatures
        state.rho, state.nu = 2.0**attempt.level * self.rho, 2.0**attempt.level * self.nu
        self.momentum = attempt.momentum + 1
        self.calm = 0 if refused else self.calm + 1
        self.fade = self.fade / 2 if refused and not attempt.drops else min(1.0, FADE_GROWTH * self.fade)
        if attempt.level > self.level:
            self.level += 1
            self.patience = min(2 * self.patience, LONGEST_PATIENCE)
        elif self.calm >= self.patience and self.level > LOWEST_LEVEL:
            self.level, self.calm = self.level - 1, 0

    def _copy(self, state: State, candidate: State) -> None:
        """The new point, where recorded launches find it."""
        old, now, new = (
            [p for block in params for p in block.values()]
            for params in (self.previous, state.params, candidate.params)
        )
        torch._foreach_copy_(old, now)
        torch._foreach_copy_([*now, state.u], [*new, candidate.u])

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            f"previous.{l}.{name}": p for l, block in enumerate(self.previous) for name, p in block.items()
        }
        return tensors, {name: getattr(self, name) for name in NUMBERS}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        for l, block in enumerate(self.previous):
            for name, p in block.items():
                p.copy_(tensors[f"previous.{l}.{name}"])
        for name in NUMBERS:
            setattr(self, name, type(getattr(self, name))(meta[name]))
        self._known = None
