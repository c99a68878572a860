"""Gradient methods in the trainer's loop: full-batch steps of a ``torch.optim`` optimiser.

An iteration goes backward through the graph of the last forward pass, steps, and goes forward at the new parameters.
That forward pass serves twice: its outputs are the new feasible point z, a, u = -grad R, and its graph is what the next
iteration goes backward through. So an iteration costs what an epoch of a plain torch loop costs, and the history's
Lagrangian is the true training objective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from dladmm.base.errors import InputError
from dladmm.baselines.optimizer_state import packed, unpack
from dladmm.blocks import Step
from dladmm.compute.norms import squared_norm
from dladmm.engine.method import Look, Seen
from dladmm.engine.state import Energy, State
from dladmm.engine.sweep import Engine
from dladmm.regularizers import NonNegative


class TrueObjective(Engine):
    """Measures feasible points: every constraint holds there, so the Lagrangian is loss plus penalty."""

    @torch.no_grad()
    def energy(
        self, state: State, predictions: Sequence[Tensor] | None = None, steps: Sequence[Step] = ()
    ) -> Energy:
        """Without the passes over residuals that are zero, unless raw predictions ask whether they are."""
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
        make_optimizer: Callable[[list[Tensor]], Optimizer],
        *,
        mean: bool,
    ) -> None:
        if engine.chain.follows_forward:
            raise InputError(f"{name} has no variables besides the weights: leave rows='train' out.")
        if isinstance(engine.penalty, NonNegative):
            raise InputError(f"{name} cannot keep the constraint non_negative; use l1, l2 or no regularizer.")
        self.name = name
        self.engine: Engine = TrueObjective(
            engine.chain, engine.x, engine.risk, engine.penalty, engine.options, engine.counts
        )
        self.scale = 1 / _samples(engine) if mean else 1.0
        self._params = state.params
        self._leaves = [{n: p.detach().requires_grad_() for n, p in block.items()} for block in state.params]
        self.optimizer = make_optimizer([p for block in self._leaves for p in block.values()])
        self._ahead: tuple[Tensor, Tensor] | None = None
        self._synchronise(state)

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        """One epoch; None where L-BFGS finds no step any more."""
        if state.params is not self._params:  # a restored state: take its values over
            self._adopt(state)
        before = [p.clone() for block in self._params for p in block.values()]
        self.optimizer.step(self._gradient)  # type: ignore[arg-type]  # torch takes a 0-d tensor as a number
        self._synchronise(state)
        after = [p for block in self._params for p in block.values()]
        moved = torch.stack([squared_norm(p - old) for p, old in zip(after, before, strict=True)]).sum()
        if isinstance(self.optimizer, LBFGS) and float(moved) == 0:
            return None
        return look(state, [Step("W", moved, torch.zeros_like(moved))])

    def _forward(self) -> list[Tensor]:
        """Every output of the network at the present parameters, with the graph."""
        outputs: list[Tensor] = []
        v = self.engine.x
        with torch.enable_grad():
            for block, leaves in zip(self.engine.chain, self._leaves, strict=True):
                v = block.differentiable_forward(leaves, v)
                outputs.append(v)
        return outputs

    def _synchronise(self, state: State) -> None:
        """The feasible point of the present parameters; the graph stays for the next backward pass."""
        outputs = self._forward()
        state.outputs = [v.detach() for v in outputs]
        state.predictions = list(state.outputs)
        gradient = self.engine.risk.gradient(state.outputs[-1])
        state.u = -gradient
        self._ahead = outputs[-1], gradient

    def _gradient(self) -> Tensor:
        """The closure of ``optimizer.step``: gradients into the leaves, the objective returned."""
        if self._ahead is None:  # a trial point of L-BFGS
            z = self._forward()[-1]
            gradient = self.engine.risk.gradient(z.detach())
        else:
            (z, gradient), self._ahead = self._ahead, None
        self.optimizer.zero_grad()
        counted = gradient if self.engine.counts is None else gradient * self.engine.counts
        torch.autograd.backward(z, self.scale * counted)
        penalty = self.engine.penalty_value(self._leaves)
        if penalty.requires_grad:
            torch.autograd.backward(self.scale * penalty)
        return self.scale * (self.engine.risk_value(z.detach()) + penalty.detach())

    def _adopt(self, state: State) -> None:
        for mine, theirs in zip(self._params, state.params, strict=True):
            for name, p in mine.items():
                p.copy_(theirs[name])
        state.params, self._ahead = self._params, None

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return packed(self.optimizer)

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        unpack(self.optimizer, tensors, meta)
        self._ahead = None


def _samples(engine: Engine) -> float:
    weight = engine.risk.weight if engine.counts is None else engine.counts
    return float(len(engine.risk.target) if weight is None else weight.sum())
