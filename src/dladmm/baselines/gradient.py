"""Gradient methods in the trainer's loop: full-batch steps of a ``torch.optim`` optimiser.

An iteration is a backward pass through the autograd graph of the last forward pass, a step, and a forward pass at the
new parameters. That forward pass is used twice: its outputs are the new feasible point z, a, u = -grad R, and its graph
is used by the next backward pass. So an iteration costs as much as an epoch of an ordinary torch loop, and the
Lagrangian in the history is the true training objective. With dropout the pass that is differentiated is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import LBFGS

from dladmm.base.errors import InputError
from dladmm.baselines.optimizer_state import Stepper, packed, unpack
from dladmm.blocks import Step
from dladmm.compute.passes import squared_norm
from dladmm.engine.lagrangian import Energy
from dladmm.engine.method import Look, Seen
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine

if TYPE_CHECKING:
    from dladmm.baselines.dropout import RandomDropout


class TrueObjective(Engine):
    """Energy of feasible points: all constraints hold, so the Lagrangian is loss plus penalty."""

    @torch.no_grad()
    def energy(
        self, state: State, predictions: Sequence[Tensor] | None = None, steps: Sequence[Step] = ()
    ) -> Energy:
        """The energy with zero residuals; they are computed only if ``predictions`` are given."""
        if predictions is not None:
            return super().energy(state, predictions)
        zero = torch.zeros((), dtype=torch.float64, device=self.x.device)
        risk, penalty = self.risk_value(state.outputs[-1]), self.penalty_value(state.params)
        return Energy(risk, penalty, zero, zero, zero, state.rho)


class GradientMethod:
    """One full-batch step of an optimiser on ``R + sum Omega``, or on that over the number of samples (``mean``)."""

    def __init__(
        self,
        engine: Engine,
        state: State,
        name: str,
        make_optimizer: Callable[[list[Tensor]], Stepper],
        *,
        mean: bool,
        dropout: RandomDropout | None = None,
    ) -> None:
        refuse_unfit(name, engine)
        self.name, self.dropout = name, dropout
        self.engine: Engine = TrueObjective(
            engine.chain, engine.x, engine.risk, engine.penalty, engine.options, engine.counts
        )
        self.scale = 1 / samples_of(engine) if mean else 1.0
        self._params = state.params
        self._leaves = [{n: p.detach().requires_grad_() for n, p in block.items()} for block in state.params]
        self.optimizer = make_optimizer([p for block in self._leaves for p in block.values()])
        self._next_backward: tuple[Tensor, Tensor] | None = None
        self._synchronise(state)

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        """One epoch; None if L-BFGS finds no further step."""
        if state.params is not self._params:  # a restored state
            self._adopt(state)
        before = [p.clone() for block in self._params for p in block.values()]
        self.optimizer.step(self._gradient)
        self._synchronise(state)
        after = [p for block in self._params for p in block.values()]
        moved = torch.stack([squared_norm(p - old) for p, old in zip(after, before, strict=True)]).sum()
        if isinstance(self.optimizer, LBFGS) and float(moved) == 0:
            return None
        return look(state, [Step("W", moved, torch.zeros_like(moved))])

    def _forward(self) -> list[Tensor]:
        """The outputs of all layers at the present parameters, with the autograd graph."""
        outputs: list[Tensor] = []
        v = self.engine.x
        for block, leaves in zip(self.engine.chain, self._leaves, strict=True):
            v = block.differentiable_forward(leaves, v)
            outputs.append(v)
        return outputs

    def _synchronise(self, state: State) -> None:
        """Set the state to the feasible point of the present parameters; keep the graph for the next backward pass."""
        with torch.set_grad_enabled(self.dropout is None):
            outputs = self._forward()
        state.outputs = [v.detach() for v in outputs]
        state.predictions = list(state.outputs)
        gradient = self.engine.risk.gradient(state.outputs[-1])
        state.u = -gradient
        self._next_backward = (outputs[-1], gradient) if self.dropout is None else None

    def _gradient(self) -> Tensor:
        """The closure of ``optimizer.step``: sets the gradients of the leaves and returns the objective."""
        if self._next_backward is None:  # a trial point of L-BFGS, or entries are dropped
            if self.dropout is None:
                with torch.enable_grad():
                    z = self._forward()[-1]
            else:
                z = self.dropout.forward(self.engine.chain, self._leaves, self.engine.x)
            gradient = self.engine.risk.gradient(z.detach())
        else:
            (z, gradient), self._next_backward = self._next_backward, None
        self.optimizer.zero_grad()
        counted = gradient if self.engine.counts is None else gradient * self.engine.counts
        torch.autograd.backward(z, self.scale * counted)
        penalty = self.engine.penalty_value(self._leaves)
        if penalty.requires_grad:
            torch.autograd.backward(self.scale * penalty)
        return self.scale * (self.engine.risk_value(z.detach()) + penalty.detach())

    def _adopt(self, state: State) -> None:
        """Copy the parameters of a restored state into the optimiser's tensors."""
        for mine, theirs in zip(self._params, state.params, strict=True):
            for name, p in mine.items():
                p.copy_(theirs[name])
        state.params, self._next_backward = self._params, None

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, meta = packed(self.optimizer)
        return tensors, meta if self.dropout is None else {"optimizer": meta, "draws": self.dropout.draws}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if self.dropout is not None:
            self.dropout.draws, meta = int(meta["draws"]), meta["optimizer"]
        unpack(self.optimizer, tensors, meta)
        self._next_backward = None


def refuse_unfit(name: str, engine: Engine) -> None:
    """Raise InputError for what a gradient method cannot train."""
    if engine.chain.follows_forward:
        raise InputError(f"{name} has no variables besides the weights: leave rows='train' out.")
    if engine.penalty.is_constraint:
        raise InputError(
            f"{name} cannot keep the constraint {engine.penalty.name}; use l1, l2 or no regularizer."
        )


def samples_of(engine: Engine) -> float:
    """How many samples the rows with a loss count for."""
    weight = engine.risk.weight if engine.counts is None else engine.counts
    return float(len(engine.risk.target) if weight is None else weight.sum())
