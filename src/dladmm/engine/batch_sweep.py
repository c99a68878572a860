"""One sweep of streaming mode on one mini-batch, on tensors alone: nothing here asks the device for a number.

The steps are those of :mod:`dladmm.engine.streaming`, in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.blocks import Params
from dladmm.compute.communicator import Shards
from dladmm.compute.execution import Execution
from dladmm.engine.batches import Batch, GraphBatch, default_smoothing
from dladmm.engine.running import (
    Run,
    RunningBlock,
    Shares,
    called,
    in_turn,
    inner,
    norm,
    running_block,
    set_reach,
    within_reach,
)
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine

NEWEST = 0.1
"""What the newest batch counts at least in the averages of slope, curvature and loss."""


class Look(NamedTuple):
    """What the parts of a sweep see of its batch: the problem, outputs of all blocks, F_l, gradients of the penalty."""

    problem: Engine
    outputs: list[Tensor]
    gradients: dict[int, Tensor]
    decays: list[Params]


class BatchSweep:
    """The working parameters of a streaming run, their running sums, and the sweep that moves them."""

    def __init__(
        self, engine: Engine, params: list[Params], options: StreamingOptions, n_samples: float | None
    ) -> None:
        self.engine, self.options, self.n_samples = engine, options, n_samples
        jumps, own = engine.chain.has_jumps, options.smoothing
        self.smoothing = default_smoothing(n_samples, jumps=jumps) if own is None else own
        finite = any(block.weight_set is not None for block in engine.chain)
        self.stretch, self.largest_change = options.bounds(jumps=jumps, finite=finite, n_samples=n_samples)
        self.params = params
        self.average = [{name: p.clone() for name, p in block.items()} for block in params]
        self.running: dict[int, RunningBlock] = {}
        some = next(p for block in params for p in block.values())
        self.shares = Shares(some)
        self.means = some.new_zeros(3)
        """Running means of slope, curvature and loss."""
        self.step_length = some.new_zeros(())
        self.reach = some.new_zeros(())
        """How long the moves of curved blocks may be until the next measurement."""
        self.leash = some.new_full((), self.largest_change)
        self.seen: Look | None = None
        """The batch that is worked on."""
        self.shards: Shards | None = None
        """Of every batch, where it is known beforehand."""
        self._how = Execution(shortcuts=False, rounded_directions=engine.how.rounded_directions)

    @torch.no_grad()
    def sweep(
        self,
        batch: Callable[[], Batch],
        *,
        heavy: bool,
        renewed: bool = False,
        first: bool = False,
        run: Run = called,
    ) -> None:
        """The sweep of one batch, its parts executed by ``run``; ``renewed`` says whether the metric is.

        A heavy sweep observes its inputs and measures its length, the others go on with what was found before. The
        first metric is made from the first batch alone.
        """
        if renewed and not first:
            run("refactor", self.refactor)
        joined = heavy and self.engine.comm.few_messages
        self.seen = run("look", lambda: self.look(batch(), joined))
        if heavy and not joined:
            run("inputs", lambda: self.aim(None, observed=True))
        if first:
            run("refactor", self.refactor)
            self.aim(keep=0.0)
        if heavy:
            run("measure", self.measure)
        run("move", self.move)
        if heavy:
            run("average", self.renew_average)
        self.seen = None  # its memory is the next batch's

    # The parts of a sweep, in the order of a heavy one ---------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        """Make empty running sums, with the shapes that a batch tells."""
        seen = self._problem_of(batch)
        outputs = seen.chain.forward(self.params, seen.x)
        self.running = self._running_blocks(seen, outputs)

    def refactor(self) -> None:
        """Renew the metric from the batches seen so far.

        Before a batch is looked at, not after it: a metric that has seen the batch whose gradient it is applied to
        makes longer steps than other batches bear, and lost convolutional networks accuracy (docs/streaming.md).
        """
        for running in self.running.values():
            running.refactor(self.options.damping)

    def look(self, batch: Batch, observed: bool = False) -> Look:
        """The forward pass; ``F_l = dR/dV_l`` of the mean loss, handed down from block to block; the directions."""
        seen = self._problem_of(batch)
        outputs = seen.chain.forward(self.params, seen.x)
        gradient = seen.risk.gradient(outputs[-1]) / seen.samples
        gradients: dict[int, Tensor] = {}
        for l in reversed(range(len(outputs))):
            v = seen.x if l == 0 else outputs[l - 1]
            if l in self.running:
                gradients[l] = gradient
            if l > 0:
                gradient = seen.chain.blocks[l].pull_back(
                    self.params[l], v, outputs[l], gradient, seen.work(l)
                )
        self.seen = Look(seen, outputs, gradients, self._decays())
        self.aim(self.options.momentum, observed)
        return self.seen

    def aim(self, keep: float | None, observed: bool = False) -> None:
        """The directions of all blocks, in which those of the batches before count ``keep``; None leaves them alone.

        ``observed``: their inputs are taken into the metric too, which no direction of this batch looks at.
        """
        assert self.seen is not None
        seen, outputs, gradients, decays = self.seen
        calls: list[Callable[[], None]] = []
        for l, running in self.running.items():
            v, work = seen.x if l == 0 else outputs[l - 1], seen.work(l)
            of_block = self.params[l], v, outputs[l], gradients[l]
            own: list[Callable[[], None]] = []
            if keep is not None:
                own.append(partial(running.aim, *of_block, decays[l], work, keep))
            if observed:
                own.append(partial(running.observe_inputs, *of_block, work, self.shares.metric))
            calls += own if running.observes_apart else [partial(in_turn, own)]
        seen.comm.at_once(*calls)

    def measure(self) -> None:
        """Slope p and curvature q of the loss along the moves, and the relative changes of the hidden links."""
        assert self.seen is not None
        seen, outputs, gradients, decays = self.seen
        change: Tensor | None = None
        slopes: list[Callable[[], Tensor]] = []
        hidden: list[Callable[[], Tensor]] = []
        for l, block in enumerate(seen.chain):
            params, v = self.params[l], seen.x if l == 0 else outputs[l - 1]
            pushed = None if change is None else block.push_input(params, v, change, outputs[l])
            if l in self.running:
                change = block.push_parameters(params, self.running[l].moves, v, outputs[l])
                slopes.append(partial(inner, gradients[l], change, seen.work(l)))
                if l < len(outputs) - 1:
                    hidden.append(partial(self._relative, seen, outputs, l, change))
                pushed = change if pushed is None else pushed + change
            change = pushed
        assert change is not None
        curvature = seen.risk.curvature(outputs[-1], change)
        counted = curvature if seen.counts is None else curvature * seen.counts[:, 0]
        (total,), loss, *found = seen.comm.at_once(
            partial(seen.comm.total, counted.sum()), partial(seen.risk_value, outputs[-1]), *slopes, *hidden
        )
        q, loss = total / seen.samples, loss / seen.samples
        p = -torch.stack(found[: len(slopes)]).sum()
        relative = sum(found[len(slopes) :], torch.zeros_like(self.step_length))
        for l, decay in enumerate(decays):
            for name, d in decay.items():
                move = self.running[l].moves[name]
                p, q = p - (d * move).sum(), q + self._strength * move.square().sum()
        self.step_length.copy_(self._length(p, q, relative, loss.to(p.dtype)))
        set_reach(self.running.values(), self.reach)

    def _relative(self, seen: Engine, outputs: list[Tensor], l: int, change: Tensor) -> Tensor:
        """The change of link l by its block's move, over the link; both behind a normalisation where one follows."""
        after, link = seen.chain.blocks[l + 1], outputs[l]
        if after.normalises:
            change, link = after.push_input(self.params[l + 1], link, change, outputs[l + 1]), outputs[l + 1]
        work = seen.work(l)
        moved, length = work.at_once(partial(norm, change, work), partial(norm, link, work))
        return moved / length.clamp_min(torch.finfo(change.dtype).tiny)  # type: ignore[no-any-return]

    def _length(self, p: Tensor, q: Tensor, relative: Tensor, loss: Tensor) -> Tensor:
        """``1/rho``: the stretched Gauss-Newton step, bounded by the changes it predicts.

        A batch far above the mean loss shortens the leash to a quarter; it recovers by a tenth per measurement.
        """
        options = self.options
        self.means.lerp_(torch.stack([p, q, loss]), self.shares.lengths)
        mean_p, mean_q, mean_loss = self.means.unbind()
        unit = self._unit(mean_loss)
        shaken = loss > 1.5 * mean_loss + 0.5 * unit
        self.leash.mul_(torch.where(shaken, 0.25, 1.1)).clamp_max_(self.largest_change)
        own = torch.where(p > 0, q / p, 0.0)  # where the batch would rather go back, the mean of all decides
        curvature = torch.maximum(own, mean_q / mean_p.clamp_min(1e-30)).clamp_min(1e-20)
        lengths = (
            self.stretch / curvature,
            (self.leash * unit / q.clamp_min(1e-30)).sqrt(),
            options.largest_relative_change / relative.clamp_min(1e-30),
        )
        return torch.stack(lengths).min()

    def _unit(self, mean_loss: Tensor) -> Tensor | float:
        """What changes of the outputs are measured in: 1 for classes, the mean square residual for real targets."""
        return 1.0 if self.engine.risk.loss.kind == "classification" else (2 * mean_loss).clamp_min(1e-30)

    def move(self) -> None:
        """Take the step, penalties with kinks and constraints by their prox."""
        penalty = self.engine.penalty
        length = within_reach(self.step_length * self.shares.fading, self.running.values(), self.reach)
        for l, running in self.running.items():
            block = self.engine.chain.blocks[l]
            penalised = block.penalised if penalty.quadratic is None else ()
            for name, move in running.moves.items():
                p = self.params[l][name]
                p.addcmul_(move, length)
                if name in penalised:
                    p.copy_(penalty.times(1 / (self.n_samples or 1)).prox(p, length))
                if block.constraint is not None and name in block.penalised:
                    p.copy_(block.constraint.prox(p, 0.0))

    def renew_average(self) -> None:
        """Count the iterate in the average."""
        for average, params in zip(self.average, self.params, strict=True):
            for name, p in params.items():
                average[name].lerp_(p, self.shares.average)

    # ----------------------------------------------------------------------------------------------------------

    def _problem_of(self, batch: Batch) -> Engine:
        engine = self.engine
        seen = engine.seen_as(x=batch.x, how=self._how)
        if isinstance(batch, GraphBatch):
            seen.chain = batch.chain
            for l, running in self.running.items():
                running.block = batch.chain.blocks[l]
        seen.risk = replace(engine.risk, target=self._smoothed(batch.target), weight=batch.weight)
        seen.counts, seen.shards = batch.counts, self.shards
        if self.shards is None:
            seen.shards = Shards.of(engine.comm, len(batch.x), batch.counts)
        return seen

    def _smoothed(self, target: Tensor) -> Tensor:
        share = self.smoothing
        if share == 0.0 or not self.engine.risk.loss.takes_soft_labels:
            return target
        return (target * (1 - share)).add_(share / target.shape[1])  # rows of targets sum to 1

    def _running_blocks(self, seen: Engine, outputs: list[Tensor]) -> dict[int, RunningBlock]:
        """Running sums for every block with parameters."""
        calls: dict[int, Callable[[], RunningBlock]] = {}
        for l, params in enumerate(self.params):
            if params:
                v, block = seen.x if l == 0 else outputs[l - 1], seen.chain.blocks[l]
                calls[l] = partial(running_block, block, params, v, outputs[l], seen.work(l))
        return dict(zip(calls, seen.comm.at_once(*calls.values()), strict=True))

    def _decays(self) -> list[Params]:
        """The gradient of a quadratic penalty, per sample."""
        strength = self._strength
        if strength == 0.0:
            return [{} for _ in self.params]
        blocks = zip(self.engine.chain, self.params, strict=True)
        return [{name: p[name] * strength for name in block.penalised} for block, p in blocks]

    @property
    def _strength(self) -> float:
        """lambda of a quadratic penalty, per sample."""
        return float(self.engine.penalty.quadratic or 0.0) / (self.n_samples or 1)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name."""
        names = ("means", "step_length", "leash", "reach")
        found: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        for kind, all_params in (("params", self.params), ("average", self.average)):
            for l, block in enumerate(all_params):
                found |= {f"{kind}.{l}.{name}": p for name, p in block.items()}
        for l, running in self.running.items():
            found |= {f"running.{l}.{name}": tensor for name, tensor in running.tensors().items()}
        return found
