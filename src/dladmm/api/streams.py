"""The data of a streaming run: batches, and a fixed monitor sample on which passes are measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dladmm.engine.batches import ArrayBatches, Batches, default_batch_size
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain

MONITOR_ROWS = 2048
"""Rows of the monitor sample, at most."""


@dataclass(frozen=True)
class Stream:
    """Batches of the training data, and the monitor sample: inputs, targets, loss weights and counts."""

    batches: Batches
    x: Tensor
    target: Tensor
    weight: Tensor | None
    counts: Tensor | None


def stream_of_arrays(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    counts: Tensor | None,
    chain: Chain,
    options: TrainOptions,
    seed: int,
) -> Stream:
    """The stream of data that lie in memory; the monitor sample is drawn with the seed."""
    size = options.batch_size
    if size is None:
        size = default_batch_size(len(x), convolutions=chain.has_images)
    batches = ArrayBatches(x, target, weight, counts, size, seed)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(x), generator=generator)[:MONITOR_ROWS].sort().values.to(x.device)
    monitor = batches.batch(rows)
    return Stream(batches, monitor.x, monitor.target, monitor.weight, monitor.counts)
