"""The streaming iteration: one sweep per mini-batch, in the metric of all batches seen so far.

For every batch, at the feasible point of its forward pass:

1. ``F_l = dR/dV_l`` is handed down from block to block; the targets of link l are ``V_l - F_l / (rho s_l)``, a step of
   the paper's a- and z-updates (Algorithms 4 and 7) that follows the gradient, ``s_l`` the root mean square of F_l;
2. every block with parameters solves its least-squares subproblem towards these targets (Equations 8 and 10), W and b
   together, damped, with running sums in the place of the batch's own (:mod:`dladmm.engine.running`);
3. rho, one for all blocks, is set by the curvature of the loss along the direction M that comes out: with
   ``q = mean M^T J^T R'' J M`` (one forward-mode product) and ``p = -<dR, M>`` the Gauss-Newton step is ``p/q``. Both
   are averaged over batches, and the predicted changes of the outputs and of the hidden links are bounded;
4. the network that is handed out is an average of the iterates, so that a run may be stopped at any time.

docs/streaming.md derives it and says what else was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.blocks import Params, Step
from dladmm.compute.execution import Execution
from dladmm.compute.norms import ratio, squared_norm
from dladmm.compute.shards import Shards
from dladmm.engine.batches import Batch, Batches
from dladmm.engine.method import Look, Seen
from dladmm.engine.running import RunningBlock, RunningGradient, RunningLeastSquares
from dladmm.engine.state import State
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.network.scaling import Scaling

FIRST, EARLY = 8, 128
"""The first 8 batches all renew the metric, the step length and the average; then every 4th, after 128 every 8th."""

GRAM_AGE, AVERAGE_AGE = 4.0, 8.0
"""The h-th batch counts ``age / (h + age - 1)`` in the metric, ``(age + 1) / (h + age)`` in the average."""

CURVATURE_SHARE = 0.1
"""What the newest batch counts at least in the averages of slope, curvature and loss."""


class Streaming:
    """One sweep per mini-batch around the unchanged blocks; an iteration of the loop is one pass over the data.

    ``engine`` and ``state`` are those of a fixed monitor sample, on which passes are measured; ``batches`` bring the
    data, which ``scaling`` brings to a common scale. ``passes`` is the planned number of passes.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        batches: Batches,
        passes: int,
        options: StreamingOptions,
        dropout: float = 0.0,
        seed: int = 0,
        scaling: Scaling | None = None,
    ) -> None:
        self.engine, self.batches, self.passes, self.options = engine, batches, passes, options
        dense = engine.chain.blocks[0].n_in is not None  # dropped pixels cost a convolution accuracy
        self.dropout, self.seed, self.scaling = dropout if dense else 0.0, seed, scaling
        self.params = state.clone_parameters()
        self.average = state.clone_parameters()
        self.step_number = self.heavy_steps = self.finished_passes = self.done_in_pass = self.rows_seen = 0
        self.next_factoring = 1
        device = state.u.device
        self.slope, self.curvature, self.step_length, self.mean_loss = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(4)
        )
        self.leash = torch.full_like(self.slope, options.largest_change)
        self.running: dict[int, RunningBlock] = {}
        self.on_batch: Callable[[], bool] = lambda: True
        self._quiet = Execution(shortcuts=False, rounded_directions=engine.how.rounded_directions)

    # One pass --------------------------------------------------------------------------------------------------

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        """One pass over the data; then the averaged network on the monitor sample."""
        before = [p.clone() for block in self.average for p in block.values()]
        for batch in self.batches.one_pass(self.finished_passes, self.done_in_pass):
            self.step(batch)
            self.done_in_pass += 1
            if not self.on_batch():
                break
        else:
            self.finished_passes, self.done_in_pass = self.finished_passes + 1, 0
        self.hand_out(state)
        after = [p for block in self.average for p in block.values()]
        moved = torch.stack([squared_norm(p - old) for p, old in zip(after, before, strict=True)]).sum()
        return look(state, [Step("W", moved, torch.zeros_like(moved))])

    def hand_out(self, state: State) -> None:
        """Make the state that of the averaged network, which is good at any time; of the last iterate of a plan."""
        ended = self.options.planned and self.finished_passes >= self.passes
        for p, found in zip(state.params, self.params if ended else self.average, strict=True):
            for name in p:
                p[name].copy_(found[name])
        self.engine.resynchronise(state)

    # One batch -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, batch: Batch) -> None:
        """The sweep of one batch."""
        self.step_number += 1
        k, options = self.step_number, self.options
        heavy = k <= FIRST or k % (4 if k <= EARLY else 8) == 0
        seen = self._seen(batch)
        outputs = seen.chain.forward(self.params, seen.x)
        samples = seen.samples
        gradients = self._handed_down(seen, outputs, samples)
        keep = 0.0 if k == 1 else options.momentum
        for l in self._blocks_with_parameters(seen, outputs):
            args = (
                self.params[l],
                seen.x if l == 0 else outputs[l - 1],
                outputs[l],
                gradients[l],
                seen.work(l),
            )
            self.running[l].observe_gradient(*args, keep=keep)
            if heavy:
                share = _share(GRAM_AGE / (self.heavy_steps + GRAM_AGE), gradients[l])
                self.running[l].observe_inputs(*args, share=share)
        if heavy:
            self.heavy_steps += 1
        if heavy and k >= self.next_factoring:
            for running in self.running.values():
                running.refactor(options.damping)
            self.next_factoring = 2 * k
        decays = self._decays()
        for l, running in self.running.items():
            running.aim(self.params[l], decays[l])
        if heavy:
            self._measure_length(seen, outputs, decays, samples)
        self._move(heavy)

    def _seen(self, batch: Batch) -> Engine:
        """The problem of this batch."""
        engine = self.engine
        x = self._dropped(batch.x if self.scaling is None else self.scaling.apply(batch.x))
        target = self._smoothed(batch.target)
        risk = replace(engine.risk, target=target, weight=batch.weight)
        shards = Shards.of(engine.comm, len(x), batch.counts)
        seen = engine.seen_as(x=x, how=self._quiet)
        seen.risk, seen.counts, seen.shards = risk, batch.counts, shards
        self.rows_seen += len(x)
        return seen

    def _dropped(self, x: Tensor) -> Tensor:
        if self.dropout == 0.0 or self.finished_passes == 0:  # in the first pass every row is new
            return x
        generator = torch.Generator(device=x.device).manual_seed(self.seed * 1_000_003 + self.step_number)
        kept = torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype) >= self.dropout
        return x * kept / (1 - self.dropout)

    def _smoothed(self, target: Tensor) -> Tensor:
        share = self.options.smoothing
        if share == 0.0 or not self.engine.risk.loss.takes_soft_labels:
            return target
        return target * (1 - share) + target.sum(1, keepdim=True) * (share / target.shape[1])

    def _handed_down(self, seen: Engine, outputs: list[Tensor], samples: float) -> list[Tensor]:
        """``dR/dV_l`` of the mean loss of the batch, for every link."""
        state = State(self.params, outputs, outputs, outputs[-1], 1.0, 1.0)
        gradients = seen.output_gradients(state)
        return [gradient / samples for gradient in gradients]

    def _blocks_with_parameters(self, seen: Engine, outputs: list[Tensor]) -> list[int]:
        found = [l for l, params in enumerate(self.params) if params]
        if not self.running:
            for l in found:
                block, v = seen.chain.blocks[l], seen.x if l == 0 else outputs[l - 1]
                operator = block.linear_operator(self.params[l], v, outputs[l], seen.work(l))
                if operator is None:
                    self.running[l] = RunningGradient(block, self.params[l])
                else:
                    self.running[l] = RunningLeastSquares(
                        block, self.params[l], operator.groups, operator.n_inputs
                    )
        return found

    def _decays(self) -> list[Params]:
        """The gradient of a quadratic penalty, per sample."""
        strength = self.engine.penalty.quadratic
        if not strength:
            return [{} for _ in self.params]
        factor = float(strength) / self._n_samples
        blocks = zip(self.engine.chain, self.params, strict=True)
        return [{name: p[name] * factor for name in block.penalised} for block, p in blocks]

    @property
    def _n_samples(self) -> int:
        """Rows of the training data, or of what has been seen of it."""
        return self.batches.n_rows or max(self.rows_seen, 1)

    def _measure_length(
        self, seen: Engine, outputs: list[Tensor], decays: Sequence[Params], samples: float
    ) -> None:
        """The step along the moves: the Gauss-Newton one, averaged over batches and bounded."""
        change: Tensor | None = None
        relative = torch.zeros_like(self.slope)
        for l, block in enumerate(seen.chain):
            params, v = self.params[l], seen.x if l == 0 else outputs[l - 1]
            pushed = None if change is None else block.push_input(params, v, change, outputs[l])
            if l in self.running:
                change = block.push_parameters(params, self.running[l].moves, v, outputs[l])
                if l < len(outputs) - 1:
                    moved, whole = seen.comm.total(squared_norm(change), squared_norm(outputs[l]))
                    relative = relative + ratio(moved, whole).sqrt()
                pushed = change if pushed is None else pushed + change
            change = pushed
        assert change is not None
        rows = seen.risk.curvature(outputs[-1], change).double()
        counted = rows if seen.counts is None else rows * seen.counts[:, 0]
        (total,) = seen.comm.total(counted.sum())
        q, p = total / samples, torch.zeros_like(self.slope)
        for l, running in self.running.items():
            for name, move in running.moves.items():
                gradient = running.gradient[name]
                p = p - (gradient * move).sum(dtype=torch.float64)
                if name in decays[l]:
                    p = p - (decays[l][name] * move).sum(dtype=torch.float64)
                    q = q + _strength(self.engine, self._n_samples) * squared_norm(move)
        self._set_length(p.clamp_min(1e-30), q, relative, seen.risk_value(outputs[-1]) / samples)

    def _set_length(self, p: Tensor, q: Tensor, relative: Tensor, loss: Tensor) -> None:
        """``1/rho`` from slope p, curvature q, relative changes of hidden links, and the loss of the batch.

        A batch far above the mean loss shortens the leash to a quarter; it recovers by a tenth per measurement.
        """
        options, share = self.options, max(CURVATURE_SHARE, 1 / self.heavy_steps)
        for mean, value in ((self.slope, p), (self.curvature, q), (self.mean_loss, loss)):
            mean.lerp_(value, _share(share, mean))
        shaken = loss > 1.5 * self.mean_loss + 0.5
        longer = (1.1 * self.leash).clamp_max(options.largest_change)
        self.leash.copy_(torch.where(shaken, self.leash / 4, longer))
        curvature = torch.maximum(q / p, self.curvature / self.slope).clamp_min(1e-20)
        lengths = (
            options.stretch / curvature,
            (self.leash / q.clamp_min(1e-30)).sqrt(),
            options.largest_relative_change / relative.clamp_min(1e-30),
        )
        self.step_length.copy_(torch.stack(lengths).min())

    def _move(self, heavy: bool) -> None:
        """Take the step; constraints and penalties with kinks by their prox."""
        length = self.step_length * self._fading()
        penalty = self.engine.penalty
        for l, running in self.running.items():
            for name, p in self.params[l].items():
                p.addcmul_(running.moves[name], length.to(p.dtype))
                if penalty.quadratic is None and name in self.engine.chain.blocks[l].penalised:
                    p.copy_(penalty.times(1 / self._n_samples).prox(p, length.to(p.dtype)))
        if heavy:
            share = (AVERAGE_AGE + 1) / (self.heavy_steps + AVERAGE_AGE)
            for mean, params in zip(self.average, self.params, strict=True):
                for name, p in params.items():
                    mean[name].lerp_(p, share)

    def _fading(self) -> float:
        """1, or what is left of the planned run."""
        per_pass = self.batches.batches_per_pass()
        if not self.options.planned or per_pass is None:
            return 1.0
        return max(0.0, 1 - (self.step_number - 1) / (self.passes * per_pass))

    # Saving and resuming ---------------------------------------------------------------------------------------

    NUMBERS = (
        "step_number",
        "heavy_steps",
        "finished_passes",
        "done_in_pass",
        "rows_seen",
        "next_factoring",
    )

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        names = ("slope", "curvature", "step_length", "mean_loss", "leash")
        tensors: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        for kind, all_params in (("params", self.params), ("average", self.average)):
            for l, block in enumerate(all_params):
                tensors |= {f"{kind}.{l}.{name}": p for name, p in block.items()}
        for l, running in self.running.items():
            tensors |= {f"running.{l}.{name}": t for name, t in running.tensors().items()}
        return tensors, {name: getattr(self, name) for name in self.NUMBERS}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if any(name.startswith("running.") for name in tensors) and not self.running:
            first = next(iter(self.batches.one_pass(0)))
            seen = self._seen(first)
            self._blocks_with_parameters(seen, seen.chain.forward(self.params, seen.x))
        mine, _ = self.snapshot()
        missing = sorted(set(mine) ^ set(tensors))
        if missing:
            raise InputError(f"the snapshot is of another network: {', '.join(missing[:5])} do not fit.")
        for name, tensor in tensors.items():
            mine[name].copy_(tensor)
        for name in self.NUMBERS:
            setattr(self, name, int(meta[name]))


def _strength(engine: Engine, n_samples: int) -> float:
    return float(engine.penalty.quadratic or 0.0) / n_samples


def _share(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=torch.float64, device=like.device)
