"""How one iteration is made: the plain sweep of the paper, or an accelerated one under a safeguard.

After a few plain iterations the per-sample variables fit the labels and nothing pulls the network itself. The
accelerated iteration starts every sweep from what the network really does:

1. *extrapolate* the parameters, ``y = x_k + beta_k (x_k - x_{k-1})`` with Nesterov's weights ``beta_k = j/(j+3)``;
2. *resynchronise*: z and a from the forward pass of y, ``u = -grad R`` (Lemma 2 at a feasible point), on inputs of
   which a few entries were dropped;
3. *sweep* once, with the unchanged engine;
4. keep the new parameters only if the *true objective*, loss of the forward pass plus penalty, did not rise.
   Otherwise try again with less extrapolation and shorter steps, then with no extrapolation and all inputs, and so on.

How long a step is, one number says, the *level*: rho and nu are their starting values times ``2^level``. Above 0 the
damping grows with it, and so does the stiffness of the links towards the input, which makes the sweep a step along the
true gradient in the limit (docs/theory.md, Section 8): so the attempts end.

At a resynchronised point every constraint holds, so its augmented Lagrangian *is* the true objective: the history's
column ``lagrangian`` shows it, and the certificate's descent check checks the safeguard.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from dladmm.blocks import Params, Step
from dladmm.engine import Engine, State
from dladmm.regularizers import NoPenalty

TRIES = 14
"""Attempts at one iteration: rho and nu grow by 2^13 before it is given up."""

LOWEST_LEVEL = -2
"""How far steps may grow: a quarter of the starting rho and nu."""

PATIENCE, LONGEST_PATIENCE = 3, 192
"""Iterations without a refusal after which steps grow; refusals double it."""


class Method(Protocol):
    """What the trainer asks of an iteration."""

    def iterate(self, state: State) -> list[Step] | None:
        """Move the state by one iteration; None when no step lowers the objective any more."""

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a resumed run needs besides the state."""

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Put that back."""


class Plain:
    """The paper's iteration."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def iterate(self, state: State) -> list[Step] | None:
        return self.engine.sweep(state)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        return


class Accelerated:
    """Extrapolation, resynchronisation and the safeguard around the unchanged engine."""

    def __init__(self, engine: Engine, state: State, dropout: float = 0.0, seed: int = 0) -> None:
        self.engine, self.dropout, self.seed = engine, dropout, seed
        self.rho, self.nu = state.rho, state.nu
        self.previous = state.clone_parameters()
        self.iteration = self.momentum = self.level = self.calm = 0
        self.patience = PATIENCE
        # Links may be stiffer than their successors only as far as the dtype resolves what is left of a move
        self._stiffest = torch.finfo(state.u.dtype).eps ** (-0.5 / len(engine.chain))

    @torch.no_grad()
    def iterate(self, state: State) -> list[Step] | None:
        objective = float(self.engine.energy(state).objective)
        self.iteration += 1
        momentum = self.momentum
        for attempt in range(TRIES):
            steps, found = self._attempt(state, momentum, attempt)
            if float(self.engine.energy(found).objective) <= objective:
                self._accept(state, found, momentum, refused=attempt)
                return steps
            momentum = 3 * momentum // 4 if attempt == 0 else 0
        return None

    def _attempt(self, state: State, momentum: int, attempt: int) -> tuple[list[Step], State]:
        """One sweep from the resynchronised, extrapolated point, and the feasible state it leads to."""
        engine, level = self.engine, self.level + attempt
        rho, nu, stiffer = 2.0**level * self.rho, 2.0**level * self.nu, 2.0 ** max(level, 0)
        start = self._extrapolated(state.params, momentum / (momentum + 3))
        with engine.seeing(self._input(attempt), engine.options.damped(stiffer)):
            trial = engine.feasible_state(start, rho, nu)
            trial.stiffness = min(stiffer, self._stiffest)
            forces = None if isinstance(engine.penalty, NoPenalty) else engine.forces(trial)
            steps = engine.sweep(trial, forces)
        return steps, engine.feasible_state(trial.params, rho, nu)

    def _extrapolated(self, params: list[Params], beta: float) -> list[Params]:
        pairs = zip(params, self.previous, strict=True)
        moved = [{name: p[name].lerp(old[name], -beta) for name in p} for p, old in pairs]
        penalty = self.engine.penalty
        for block, block_params in zip(self.engine.chain, moved, strict=True):
            for name in block.penalised:  # a constraint holds at the extrapolated point too
                block_params[name] = penalty.prox(block_params[name], 0.0)
        return moved

    def _input(self, attempt: int) -> Tensor | None:
        """The inputs with a few entries dropped, drawn anew for every attempt; None where all are used."""
        x = self.engine.x
        if attempt >= 2 or self.dropout == 0 or x.layout != torch.strided:
            return None
        generator = torch.Generator(x.device).manual_seed(hash((self.seed, self.iteration, attempt)) % 2**63)
        kept = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) >= self.dropout
        return x * kept / (1 - self.dropout)

    def _accept(self, state: State, found: State, momentum: int, refused: int) -> None:
        """Take the new point; steps grow after a while without refusals and shrink after one."""
        for old, p, new in zip(self.previous, state.params, found.params, strict=True):
            for name in p:
                old[name].copy_(p[name])
                p[name].copy_(new[name])
        for mine, theirs in (
            *zip(state.outputs, found.outputs, strict=True),
            *zip(state.predictions, found.predictions, strict=True),
            (state.u, found.u),
        ):
            mine.copy_(theirs)
        state.rho, state.nu = found.rho, found.nu
        self.momentum = momentum + 1
        self.calm = 0 if refused else self.calm + 1
        if refused:
            self.level += 1
            self.patience = min(2 * self.patience, LONGEST_PATIENCE)
        elif self.calm >= self.patience and self.level > LOWEST_LEVEL:
            self.level, self.calm = self.level - 1, 0

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            f"previous.{l}.{name}": p for l, block in enumerate(self.previous) for name, p in block.items()
        }
        return tensors, {name: getattr(self, name) for name in self._numbers} | {
            "rho": self.rho,
            "nu": self.nu,
        }

    _numbers = ("iteration", "momentum", "level", "calm", "patience", "seed")

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        for l, block in enumerate(self.previous):
            for name, p in block.items():
                p.copy_(tensors[f"previous.{l}.{name}"])
        self.rho, self.nu = float(meta["rho"]), float(meta["nu"])
        for name in self._numbers:
            setattr(self, name, int(meta[name]))
