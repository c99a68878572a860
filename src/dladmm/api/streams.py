"""The data of a streaming run: batches, and a fixed monitor sample on which passes are measured."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dladmm.engine.batches import ArrayBatches, Batches, default_batch_size, monitor_rows
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain


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
    monitor = batches.batch(monitor_rows(len(x), seed, x.device))
    return Stream(batches, monitor.x, monitor.target, monitor.weight, monitor.counts)
