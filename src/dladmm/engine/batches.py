"""Mini-batches of training data, in an order that depends on the seed and the pass alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Rows of one step: inputs (n, ...), encoded targets, row weights of the loss (n, 1) and how often rows count."""

    x: Tensor
    target: Tensor
    weight: Tensor | None = None
    counts: Tensor | None = None


class Batches(Protocol):
    """Where the batches of a run come from."""

    n_rows: int | None
    """Rows of one pass; None where only the end of the first pass tells."""

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of pass ``number`` (from 0), without the first ``skip`` of them."""

    def batches_per_pass(self) -> int | None:
        """How many batches a pass has, where that is known."""


MONITOR_ROWS = 2048
"""Rows of the monitor sample, at most."""


def monitor_rows(n_rows: int, seed: int, device: torch.device) -> Tensor:
    """The rows of the monitor sample, on which passes are measured: drawn with the seed, in order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n_rows, generator=generator)[:MONITOR_ROWS].sort().values.to(device)


def default_batch_size(n_rows: int, *, convolutions: bool) -> int:
    """About 128 batches per pass: a power of two between 32 and 512.

    Half of that where there are convolutions: their cost grows with the batch, so a small one costs no more per pass.
    """
    wanted = min(512, max(32, 1 << round(math.log2(max(1.0, n_rows / 128)))))
    return max(1, min(n_rows, wanted // 2 if convolutions and wanted > 32 else wanted))


class ArrayBatches:
    """Batches of tensors, wherever they lie; a batch is brought to the network's device by the step.

    Rows are shuffled anew for every pass. All batches have the same size, near the one asked for; the few rows that are
    left over wait for the next pass.
    """

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        counts: Tensor | None,
        batch_size: int,
        seed: int,
    ) -> None:
        self.x, self.target, self.weight, self.counts, self.seed = x, target, weight, counts, seed
        self.n_rows: int | None = len(x)
        self._n_batches = max(1, round(len(x) / batch_size))
        self._positions = max(1, len(target) // max(1, len(x)))

    def batches_per_pass(self) -> int | None:
        return self._n_batches

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        n = len(self.x)
        order = torch.randperm(n, generator=generator)
        order = order.to(self.x.device)
        size = n // self._n_batches
        for j in range(skip, self._n_batches):
            yield self.batch(order[j * size : (j + 1) * size])

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
