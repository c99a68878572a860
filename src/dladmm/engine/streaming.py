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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.blocks import Params, Step, Whole
from dladmm.compute.passes import squared_norm
from dladmm.compute.recording import Recorder
from dladmm.engine.batch_sweep import NEWEST, BatchSweep
from dladmm.engine.batches import ArrayBatches, Batch, Batches
from dladmm.engine.method import Look, Seen
from dladmm.engine.module_sweep import ModuleSweep
from dladmm.engine.problem import State
from dladmm.engine.running import Run, called
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.network.scaling import Scaling

FIRST, EARLY = 8, 128
"""The first 8 batches all renew the metric, the step length and the average; then every 4th, after 128 every 8th."""

GROWTH = 2
"""The metric is renewed at batches 1, 2, 4, 8, ...; with 4 a generated table of a million rows was not learned well."""

METRIC_AGE = 4.0
"""The h-th of these counts ``age / (h + age - 1)`` in the metric, ``(a + 1) / (h + a)`` in the average."""

OBSERVED = 1 << 16
"""Rows at most that the statistics of a batch normalisation are taken over after a pass."""

NUMBERS = (
    "step_number", "heavy_steps", "finished_passes", "done_in_pass", "next_factoring", "batches_in_pass"
)  # fmt: skip
"""What a resumed run needs besides tensors."""


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
        self._watch()
        state.predictions = list(state.outputs)  # of the monitor sample all links hold: one memory for both
        whole = isinstance(engine.chain.blocks[0], Whole)
        make = ModuleSweep if whole else BatchSweep
        self.sweeps: BatchSweep | ModuleSweep = make(
            engine, state.clone_parameters(), options, batches.n_samples
        )
        self.sweeps.shards = batches.shards if isinstance(batches, ArrayBatches) else None
        self.step_number = self.heavy_steps = self.finished_passes = self.done_in_pass = 0
        self.batches_in_pass = batches.batches_per_pass() or 0
        """0 where only the end of the first pass tells."""
        self.samples_seen = 0.0
        """In the first pass, before the number of batches is known."""
        self.next_factoring = 1
        self.after_batch: Callable[[], bool] | None = None
        """Asked after every batch; False ends the run in the middle of the pass."""
        self._held: Batch | None = None
        self._held_chances: Tensor | None = None
        self._recorder = Recorder(engine.workspace, compiles=engine.how.compiled)
        self._generator = torch.Generator(device=engine.x.device)

    # One pass --------------------------------------------------------------------------------------------------

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        """One pass over the data; then the network that is handed out, on the monitor sample.

        None when the pass was ended early: the state is then that of the pass before, and :meth:`hand_out` makes it
        that of the network as it is now.
        """
        before = state.clone_parameters()
        for batch in self.batches.one_pass(self.finished_passes, self.done_in_pass):
            self.step(batch)
            self.done_in_pass += 1
            if self.after_batch is not None and not self.after_batch():
                return None
        self.batches_in_pass = self.batches_in_pass or self.done_in_pass
        self.finished_passes, self.done_in_pass = self.finished_passes + 1, 0
        self.hand_out(state)
        pairs = zip(state.params, before, strict=True)
        moves = [squared_norm(p[name] - old[name]) for p, old in pairs for name in p]
        moved = torch.stack(moves).sum()
        return look(state, [Step("W", moved, torch.zeros_like(moved))])

    def take(self, batches: Batches) -> None:
        """Go on with other batches, whose samples come to those seen before, for one pass."""
        self.batches, self.batches_in_pass = batches, batches.batches_per_pass() or 0
        self.passes = self.finished_passes + 1
        self._watch()
        self.sweeps.n_samples = (self.sweeps.n_samples or 0.0) + (batches.n_samples or 0.0)
        self.sweeps.shards = batches.shards if isinstance(batches, ArrayBatches) else None
        self._held = None  # the number of samples is part of a recording

    def hand_out(self, state: State) -> None:
        """Make the state that of the averaged network, which is good at any time; of the last iterate of a plan."""
        if isinstance(self.sweeps, ModuleSweep):
            self.sweeps.agree()
        for p, found in zip(state.params, self.network(), strict=True):
            for name in p:
                p[name].copy_(found[name])
        self.engine.resynchronise(state)

    def network(self) -> list[Params]:
        """The parameters that are handed out now."""
        ended = self.finished_passes >= self.passes
        faded = self.options.planned and (self.passes > 1 or self.batches.batches_per_pass() is not None)
        if ended and faded:
            return self.sweeps.params
        if self._average_is_new:
            return self.sweeps.average
        share = self._average_share(self.heavy_steps + 1)  # the last batches count as well
        pairs = zip(self.sweeps.average, self.sweeps.params, strict=True)
        return [{name: old[name].lerp(p[name], share) for name in p} for old, p in pairs]

    @property
    def _average_is_new(self) -> bool:
        """Whether the average holds the last iterate."""
        return self.step_number == 0 or _is_heavy(self.step_number)

    # One batch -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, batch: Batch) -> None:
        """The sweep of one batch, recorded on a GPU where it can be."""
        self.step_number += 1
        k, heavy = self.step_number, _is_heavy(self.step_number)
        if heavy:
            self.heavy_steps += 1
        batch = batch.on(self.engine.x.device)
        if self._counts_samples:
            self._count(batch)
        self._set_shares(heavy)
        chances = self._draw(batch.x) if self._drops else None
        if k == 1:
            self.sweeps.prepare(self._prepared(batch, None))
        run: Run = called
        if isinstance(self.sweeps, ModuleSweep):
            known = self.options.planned and self.batches_in_pass
            self.sweeps.total_steps = self.passes * self.batches_in_pass if known else None
        elif self._recordable(batch):
            batch, chances = self._held_batch(batch, chances)
            run = self._recorder
        renewed = heavy and k >= self.next_factoring
        if renewed:
            self.next_factoring = GROWTH * k
        with self.engine.chain.drawing(self.seed * 1_000_003 + k):
            self.sweeps.sweep(
                lambda: self._prepared(batch, chances), heavy=heavy, renewed=renewed, first=k == 1, run=run
            )

    def _set_shares(self, heavy: bool) -> None:
        shares, h = self.sweeps.shares, self.heavy_steps
        if heavy:
            shares.metric.fill_(METRIC_AGE / (h + METRIC_AGE - 1))
            shares.lengths.fill_(max(NEWEST, 1 / h))
            shares.average.fill_(self._average_share(h))
        shares.fading.fill_(self._fading())

    def _average_share(self, h: int) -> float:
        """What the h-th iterate that is averaged counts."""
        return (self.options.averaging + 1) / (h + self.options.averaging)

    def _fading(self) -> float:
        """The part of its length that a step keeps: what is left of a planned run, else 1 or by the number of the step.

        1 in the first pass of a stream of unknown length.
        """
        if not self.options.planned:
            slowing = self.options.slowing
            return 1.0 if slowing is None else (1 + self.step_number / slowing) ** -0.5
        if not self.batches_in_pass:
            return 1.0
        return max(0.0, 1 - (self.step_number - 1) / (self.passes * self.batches_in_pass))

    @property
    def _counts_samples(self) -> bool:
        """Whether the number of samples, which a penalty is divided by, is not known yet."""
        return self.batches.n_samples is None and self.finished_passes == 0

    def _count(self, batch: Batch) -> None:
        own = torch.zeros((), dtype=torch.float64, device=self.engine.x.device)
        own += len(batch.x) if batch.counts is None else batch.counts.double().sum()
        self.samples_seen += float(self.engine.comm.total(own)[0])
        self.sweeps.n_samples = max(self.batches.at_least, self.samples_seen)

    @property
    def _drops(self) -> bool:
        """Whether entries are dropped: not in the first pass, in which every row is new."""
        return self.dropout > 0.0 and self.finished_passes > 0

    def _draw(self, like: Tensor) -> Tensor:
        """A number from 0 to 1 per entry, by the seed and the number of the step."""
        generator = self._generator.manual_seed(self.seed * 1_000_003 + self.step_number)
        return torch.empty_like(like).uniform_(generator=generator)

    def _prepared(self, batch: Batch, chances: Tensor | None) -> Batch:
        """The batch scaled, and with entries dropped where chances are given."""
        x = batch.x
        if self.scaling is not None and not self.batches.scaled:
            x = self.scaling.apply(x)
        if chances is not None:
            x = x * (chances >= self.dropout) / (1 - self.dropout)
        return batch.with_x(x)

    def _watch(self) -> None:
        """Let statistics of the trained network be of many rows where they are at hand, else of the monitor sample."""
        given, seen = self.batches, len(self.engine.x)
        dense = isinstance(given, ArrayBatches) and given.x.layout == torch.strided and len(given.x) > seen
        self.engine.observed = self._observed if dense else None

    def _observed(self) -> Tensor:
        assert isinstance(self.batches, ArrayBatches)
        return self._prepared(self.batches.spread(OBSERVED).on(self.engine.x.device), None).x

    # Recorded launches -----------------------------------------------------------------------------------------

    def _recordable(self, batch: Batch) -> bool:
        """Whether nothing in the sweep asks the device for a number; batches of another size are not recorded."""
        if isinstance(self.sweeps, ModuleSweep):
            return False
        plain = batch.weight is None and batch.counts is None and self.engine.comm.alone
        plain = plain and not self._counts_samples and batch.x.layout == torch.strided
        running = self.sweeps.running.values()
        linear = all(block.recordable for block in running)
        constraints = (block.constraint for block in self.engine.chain)
        smooth = self.engine.penalty.quadratic is not None and all(
            c is None or c.records for c in constraints
        )
        same = self._held is None or self._held.x.shape == batch.x.shape
        plain = plain and not self.engine.chain.draws
        return batch.x.is_cuda and plain and linear and smooth and same

    def _held_batch(self, batch: Batch, chances: Tensor | None) -> tuple[Batch, Tensor | None]:
        """The batch and the chances copied to where the recorded launches find them."""
        if self._held is None or (self._held_chances is None) != (chances is None):
            # The caller's memory stays the caller's
            self._held = Batch(batch.x.clone(), batch.target.clone())
            self._held_chances = chances
            self._recorder.forget()
        else:
            self._held.x.copy_(batch.x)
            self._held.target.copy_(batch.target)
            if self._held_chances is not None and chances is not None:
                self._held_chances.copy_(chances)
        return self._held, self._held_chances

    # Saving and resuming ---------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        numbers = {name: getattr(self, name) for name in NUMBERS}
        numbers |= {"samples_seen": self.samples_seen}
        if isinstance(self.sweeps, ModuleSweep):
            numbers["optimizer"] = self.sweeps.numbers()
        return self.sweeps.tensors(), numbers

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if any(name.startswith("running.") for name in tensors):
            first = next(iter(self.batches.one_pass(0))).on(self.engine.x.device)
            self.sweeps.prepare(self._prepared(first, None))
        if isinstance(self.sweeps, ModuleSweep):
            self.sweeps.resume(tensors, meta["optimizer"])
        else:
            mine = self.sweeps.tensors()
            wrong = sorted(set(mine) ^ set(tensors))
            if wrong:
                raise InputError(f"the snapshot is of another network: {', '.join(wrong[:5])}.")
            for name, tensor in tensors.items():
                mine[name].copy_(tensor)
        for name in NUMBERS:
            setattr(self, name, int(meta[name]))
        self.samples_seen = float(meta["samples_seen"])
        if self.batches.n_samples is None:
            self.sweeps.n_samples = max(self.batches.at_least, self.samples_seen)


def _is_heavy(k: int) -> bool:
    """Whether batch k renews the metric, the step length and the average."""
    return k <= FIRST or k % (4 if k <= EARLY else 8) == 0
