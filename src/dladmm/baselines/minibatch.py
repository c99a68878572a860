"""Gradient methods with mini-batches in the trainer's loop: an iteration is one pass over the data.

The rows are shuffled anew for every pass, from the seed (:class:`~dladmm.engine.batches.ArrayBatches`), and lie on the
device. The gradient of a batch is an unbiased estimate of that of the whole objective, penalty included. As in
streaming mode the history is that of a fixed monitor sample of at most 2,048 training rows, so that a pass costs what
it costs in an ordinary torch loop; test accuracy is that of the whole validation set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.baselines.gradient import TrueObjective, refuse_unfit, samples_of
from dladmm.baselines.optimizer_state import Stepper, packed, unpack
from dladmm.blocks import Step
from dladmm.compute.passes import squared_norm
from dladmm.engine.batches import ArrayBatches, Batch, monitor_rows
from dladmm.engine.method import Look, Seen
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine

if TYPE_CHECKING:
    from dladmm.baselines.dropout import RandomDropout

NUMBERS = ("finished_passes", "done_in_pass")
"""What a resumed run needs besides the optimiser's tensors."""


@dataclass(frozen=True)
class MiniBatches:
    """Rows of a batch, planned number of passes, the course of the learning rate, and the seed of the order."""

    batch_size: int
    passes: int
    linear_decay: bool
    seed: int


class MiniBatchMethod:
    """Steps of an optimiser on mini-batches of ``R + sum Omega``, or on that over the number of samples (``mean``)."""

    def __init__(
        self,
        engine: Engine,
        state: State,
        name: str,
        make_optimizer: Callable[[list[Tensor]], Stepper],
        plan: MiniBatches,
        *,
        mean: bool,
        dropout: RandomDropout | None = None,
    ) -> None:
        refuse_unfit(name, engine)
        self.name, self.plan, self._whole, self.dropout = name, plan, engine, dropout
        if dropout is not None and engine.x.layout != torch.strided:
            raise InputError("dropout with mini-batches needs dense rows; give X as an array.")
        risk = engine.risk
        n_batches = max(1, round(len(engine.x) / plan.batch_size))
        rows = Batch(engine.x, risk.target, risk.weight, engine.counts)
        self.batches = ArrayBatches(*rows, n_batches, plan.seed)
        self.scale = 1 / samples_of(engine) if mean else 1.0
        monitor = self.batches.batch(monitor_rows(len(engine.x), plan.seed, engine.x.device))
        self.engine: Engine = TrueObjective(
            engine.chain,
            monitor.x,
            replace(risk, target=monitor.target, weight=monitor.weight),
            engine.penalty,
            engine.options,
            monitor.counts,
        )
        self._params = state.params
        self._leaves = [{n: p.detach().requires_grad_() for n, p in block.items()} for block in state.params]
        self.optimizer = make_optimizer([p for block in self._leaves for p in block.values()])
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.finished_passes = self.done_in_pass = 0
        self.after_batch: Callable[[], bool] = lambda: True
        """Asked after every batch; False ends the pass early."""
        self._synchronise(state)

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        """One pass over the data; then the network on the monitor sample."""
        if state.params is not self._params:  # a restored state
            self._adopt(state)
        before = state.clone_parameters()
        for batch in self.batches.one_pass(self.finished_passes, self.done_in_pass):
            self.step(batch)
            self.done_in_pass += 1
            if not self.after_batch():
                break
        else:
            self.finished_passes, self.done_in_pass = self.finished_passes + 1, 0
        self._synchronise(state)
        pairs = zip(state.params, before, strict=True)
        moved = torch.stack([squared_norm(p[name] - old[name]) for p, old in pairs for name in p]).sum()
        return look(state, [Step("W", moved, torch.zeros_like(moved))])

    def step(self, batch: Batch) -> None:
        """One step of the optimiser."""
        self._set_rates()
        risk = replace(self._whole.risk, target=batch.target, weight=batch.weight)
        if self.dropout is not None:
            v = self.dropout.forward(self._whole.chain, self._leaves, batch.x)
        else:
            with torch.enable_grad():
                v = batch.x
                for block, leaves in zip(self._whole.chain, self._leaves, strict=True):
                    v = block.differentiable_forward(leaves, v)
        gradient = risk.gradient(v.detach())
        counted = gradient if batch.counts is None else gradient * batch.counts
        self.optimizer.zero_grad()
        torch.autograd.backward(v, (self.scale * len(self._whole.x) / len(batch.x)) * counted)
        penalty = self._whole.penalty_value(self._leaves)
        if penalty.requires_grad:
            torch.autograd.backward(self.scale * penalty)
        self.optimizer.step()

    def _set_rates(self) -> None:
        if not self.plan.linear_decay:
            return
        per_pass = self.batches.batches_per_pass() or 1
        done = self.finished_passes * per_pass + self.done_in_pass
        left = max(0.0, 1 - done / (self.plan.passes * per_pass))
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * left

    @torch.no_grad()
    def _synchronise(self, state: State) -> None:
        """Set the state to the feasible point of the present parameters on the monitor sample."""
        state.outputs = self.engine.chain.forward(state.params, self.engine.x)
        state.predictions = list(state.outputs)
        state.u = -self.engine.risk.gradient(state.outputs[-1])

    def _adopt(self, state: State) -> None:
        """Copy the parameters of a restored state into the optimiser's tensors."""
        for mine, theirs in zip(self._params, state.params, strict=True):
            for name, p in mine.items():
                p.copy_(theirs[name])
        state.params = self._params

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, meta = packed(self.optimizer)
        draws = {} if self.dropout is None else {"draws": self.dropout.draws}
        return tensors, {"optimizer": meta, **{name: getattr(self, name) for name in NUMBERS}, **draws}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        unpack(self.optimizer, tensors, meta["optimizer"])
        for name in NUMBERS:
            setattr(self, name, int(meta[name]))
        if self.dropout is not None:
            self.dropout.draws = int(meta["draws"])
