"""Mini-batches of training data, in an order that depends on the seed and the pass alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dladmm.compute.communicator import Shards
from dladmm.network.chain import Chain


class Batch(NamedTuple):
    """Rows of one step: inputs (n, ...), encoded targets, row weights of the loss (n, 1) and how often rows count."""

    x: Tensor
    target: Tensor
    weight: Tensor | None = None
    counts: Tensor | None = None

    def part(self, begin: int, end: int) -> Batch:
        """The rows from ``begin`` to before ``end``."""
        weight, counts = (None if t is None else t[begin:end] for t in (self.weight, self.counts))
        return Batch(self.x[begin:end], self.target[begin:end], weight, counts)

    def on(self, device: torch.device) -> Batch:
        """The batch on a device; from pinned memory it is brought over while the host goes on."""
        tensors = (None if t is None else t.to(device, non_blocking=True) for t in self)
        return Batch(*tensors)  # type: ignore[arg-type]  # x and target are never None

    def with_x(self, x: Tensor) -> Batch:
        """The batch with other inputs of the same rows."""
        return self._replace(x=x)


class GraphBatch(Batch):
    """A part of a graph: ``chain`` is the network with the edges of that part."""

    chain: Chain

    @classmethod
    def of(cls, batch: Batch, chain: Chain) -> GraphBatch:
        made = cls(*batch)
        made.chain = chain
        return made

    def on(self, device: torch.device) -> GraphBatch:
        return GraphBatch.of(super().on(device), self.chain)

    def with_x(self, x: Tensor) -> GraphBatch:
        return GraphBatch.of(Batch(x, *self[1:]), self.chain)


class Batches(Protocol):
    """Where the batches of a run come from."""

    n_samples: float | None
    """How many samples a pass counts for, on all ranks; None where only the end of the first pass tells."""
    at_least: float
    """How many samples a pass counts for at least: those that are known of before it."""
    rows_at_once: float
    """How many rows a batch has; infinite where that is not known."""
    scaled: bool
    """Whether the inputs are at the common scale of :mod:`dladmm.network.scaling` already."""

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of pass ``number`` (from 0), without the first ``skip`` of them."""

    def batches_per_pass(self) -> int | None:
        """How many batches a pass has, where that is known."""


MONITOR_ROWS = 2048
"""Rows of the monitor sample, at most."""


def monitor_rows(n_rows: int, seed: int, device: torch.device, n_ranks: int = 1) -> Tensor:
    """The rows of the monitor sample, on which passes are measured: drawn with the seed, in order, a share per rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n_rows, generator=generator)[: -(-MONITOR_ROWS // n_ranks)].sort().values.to(device)


def default_batch_size(
    n_rows: int, *, convolutions: bool = False, jumps: bool = False, whole: bool = False
) -> int:
    """A power of two near an eighth of the rows, at most 256; of very many rows a 128th, at most 512; at least 32.

    A ``whole`` module, whose steps have a length of their own, makes more of them: near a 64th of the rows, 16 to 128,
    of very many a 512th.

    Half of that where there are convolutions: their cost grows with the batch, so a small one costs no more per pass.
    At most 256 with activations that have jumps, which learn better from more and noisier steps (docs/signs.md).
    """
    if whole:
        rows = max(16.0, min(128, n_rows / 64), min(512, n_rows / 512))
        return max(1, min(n_rows, 1 << round(math.log2(rows))))
    rows = max(1.0, min(256, n_rows / 8), n_rows / 128)
    wanted = min(256 if jumps else 512, max(32, 1 << round(math.log2(rows))))
    return max(1, min(n_rows, wanted // 2 if convolutions and wanted > 32 else wanted))


FEW_PASSES, PASSES, MOST_PASSES, ENOUGH_STEPS, MANY_ROWS = 10, 20, 100, 300, 50_000


def default_passes(
    steps: int | None, n_rows: float | None, *, convolutions: bool = False, jumps: bool = False
) -> int:
    """Passes over ``n_rows`` rows in so many steps each: 20, or as many as make 300 steps, at most 100.

    10 in the place of 20 for images, for 50,000 rows or more, and where the rows cannot be counted beforehand; 20 with
    activations that have jumps, also of 50,000 rows. Where even the steps of a pass are not known, no more are made.
    """
    large = (n_rows is None or n_rows >= MANY_ROWS) and not jumps
    least = FEW_PASSES if convolutions or large else PASSES
    return least if steps is None else min(MOST_PASSES, max(least, math.ceil(ENOUGH_STEPS / steps)))


def default_smoothing(n_samples: float | None, *, jumps: bool = False) -> float:
    """0.1 for 50,000 samples or more, in proportion less for fewer: on small tables it costs log loss for nothing.

    0.1 with activations that have jumps, for any number of samples (docs/signs.md).
    """
    return 0.1 * (1.0 if n_samples is None or jumps else min(1.0, n_samples / MANY_ROWS))


def shuffled(n_rows: int, seed: int, number: int) -> Tensor:
    """The order of the rows in pass ``number``, which depends on nothing else but the seed."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    return torch.randperm(n_rows, generator=generator)


class ArrayBatches:
    """Batches of tensors, wherever they lie; a batch is brought to the network's device by the step.

    Rows are shuffled anew for every pass. All batches have the same size; the few rows that are left over wait for the
    next pass. ``n_samples`` are those of all ranks; by default the rows count once and are all there are.
    """

    scaled = False

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        counts: Tensor | None,
        n_batches: int,
        seed: int,
        n_samples: float | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.x, self.target, self.weight, self.counts, self.seed = x, target, weight, counts, seed
        self.n_samples: float | None = len(x) if n_samples is None else n_samples
        self.at_least = float(self.n_samples or 0.0)
        self.shards = shards
        """Every batch among those of all ranks, where that is known beforehand: it need not be asked for each time."""
        self._n_batches, self.rows_at_once = n_batches, len(x) / max(1, n_batches)
        self._positions = max(1, len(target) // max(1, len(x)))

    def batches_per_pass(self) -> int | None:
        return self._n_batches

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        order = shuffled(len(self.x), self.seed, number).to(self.x.device)
        size = len(self.x) // self._n_batches
        for j in range(skip, self._n_batches):
            yield self.batch(order[j * size : (j + 1) * size])

    def spread(self, n: int) -> Batch:
        """At most n rows, evenly spread."""
        return self.batch(torch.arange(0, len(self.x), -(-len(self.x) // n), device=self.x.device))

    def batch(self, rows: Tensor) -> Batch:
        """The batch of these rows."""
        x = self.x[rows]
        targets = rows.to(self.target.device)
        if self._positions > 1:
            steps = torch.arange(self._positions, device=targets.device)
            targets = (targets[:, None] * self._positions + steps).flatten()
        weight = None if self.weight is None else self.weight[targets]
        counts = None if self.counts is None else self.counts[rows.to(self.counts.device)]
        return Batch(x, self.target[targets], weight, counts)


class OneBatch:
    """Everything in one batch, at the common scale already: the steps on a graph, whose rows need each other."""

    scaled = True

    def __init__(self, batch: Batch, n_samples: float) -> None:
        self.batch = batch
        self.n_samples: float | None = n_samples
        self.at_least, self.rows_at_once = n_samples, float(batch.x.shape[0])

    def batches_per_pass(self) -> int | None:
        return 1

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        if skip == 0:
            yield self.batch
