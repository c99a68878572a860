"""How one iteration is made: the plain sweep of the paper, or an accelerated one under a safeguard.

After a few plain iterations the per-sample variables fit the labels and nothing pulls the network itself. The
accelerated iteration starts every sweep from what the network really does:

1. *extrapolate* the parameters, ``y = x_k + beta_k (x_k - x_{k-1})`` with Nesterov's weights ``beta_k = j/(j+3)``;
2. *resynchronise*: z and a from the forward pass of y, ``u = -grad R`` (Lemma 2 at a feasible point);
3. *sweep* once, with the unchanged engine;
4. keep the new parameters only if the *true objective*, loss of the forward pass plus penalty, did not rise.
   Otherwise try again without extrapolation, then with rho and nu four times as large, and so on: shorter steps.

At a resynchronised point every constraint holds, so its augmented Lagrangian *is* the true objective: the history's
column ``lagrangian`` shows it, and the certificate's descent check checks the safeguard.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from dladmm.blocks import Params, Step
from dladmm.engine import Engine, State

TRIES = 20
"""Attempts at one iteration: rho and nu grow by 4^18 before it is given up."""


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

    def __init__(self, engine: Engine, state: State) -> None:
        self.engine = engine
        self.rho, self.nu = state.rho, state.nu
        self.previous = state.clone_parameters()
        self.momentum = 0

    @torch.no_grad()
    def iterate(self, state: State) -> list[Step] | None:
        objective = float(self.engine.energy(state).objective)
        for _ in range(TRIES):
            beta = self.momentum / (self.momentum + 3)
            trial = self._feasible(self._extrapolated(state.params, beta), state)
            steps = self.engine.sweep(trial)
            found = self._feasible(trial.params, state)
            if float(self.engine.energy(found).objective) <= objective:
                self._accept(state, found)
                return steps
            if self.momentum > 0:
                self.momentum = 0
            else:
                state.rho, state.nu = 4 * state.rho, 4 * state.nu
        return None

    def _extrapolated(self, params: list[Params], beta: float) -> list[Params]:
        pairs = zip(params, self.previous, strict=True)
        moved = [{name: p[name].lerp(old[name], -beta) for name in p} for p, old in pairs]
        penalty = self.engine.penalty
        for block, block_params in zip(self.engine.chain, moved, strict=True):
            for name in block.penalised:  # a constraint holds at the extrapolated point too
                block_params[name] = penalty.prox(block_params[name], 0.0)
        return moved

    def _feasible(self, params: list[Params], state: State) -> State:
        self.engine.forget(keep_input=True)
        return self.engine.feasible_state(params, state.rho, state.nu)

    def _accept(self, state: State, found: State) -> None:
        """Take the new point; rho and nu go half the way back to where they began."""
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
        state.rho, state.nu = max(self.rho, state.rho / 2), max(self.nu, state.nu / 2)
        self.momentum += 1

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            f"previous.{l}.{name}": p for l, block in enumerate(self.previous) for name, p in block.items()
        }
        return tensors, {"momentum": self.momentum, "rho": self.rho, "nu": self.nu}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        for l, block in enumerate(self.previous):
            for name, p in block.items():
                p.copy_(tensors[f"previous.{l}.{name}"])
        self.momentum, self.rho, self.nu = int(meta["momentum"]), float(meta["rho"]), float(meta["nu"])
