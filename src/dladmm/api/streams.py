"""The data of a streaming run: batches, and a fixed monitor sample on which passes are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from dladmm.api.given import is_stream
from dladmm.api.stream_batches import Check, CheckedBatches, FirstRows, Together, naming
from dladmm.api.stream_sources import RowSource, Source, source_of_stream
from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.chunks import memmap_of
from dladmm.compute.communicator import Communicator, Shards
from dladmm.engine.batches import (
    ArrayBatches,
    Batch,
    Batches,
    default_batch_size,
    default_passes,
    monitor_rows,
)
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain
from dladmm.network.whole import is_whole
from dladmm.training.checks import to_array

SHARE_OF_GPU = 0.25
"""An array that takes more of the free memory of the GPU stays where it is, and its batches are brought over."""


@dataclass(frozen=True)
class Stream:
    """Batches of the training data, the monitor sample, and how many passes are made unless told otherwise."""

    batches: Batches
    monitor: Batch
    passes: int


def opened(
    X: Any, y: Any, sample_weight: Any, options: dict[str, Any], seed: int, device: torch.device
) -> Source | None:
    """The source of data that are not whole in memory, or are not to be copied (``max_memory``); None for arrays."""
    batch_size = options.get("batch_size")
    if is_stream(X):
        if y is not None:
            raise InputError("the batches of a stream bring their targets, (x, y): leave y out.")
        if sample_weight is not None:
            raise InputError(
                "the batches of a stream bring their weights, (x, y, weight): leave sample_weight out."
            )
        return source_of_stream(X, batch_size, seed)
    if y is None:
        raise InputError("y is missing: give targets beside the rows X, or a stream of batches (x, y).")
    if sparse.issparse(X):
        return RowSource(X, to_array(y, "y"), sample_weight, batch_size, seed)
    if options.get("max_memory") is not None or memmap_of(X) is not None or _too_large(X, device):
        return RowSource(to_array(X, "X"), to_array(y, "y"), sample_weight, batch_size, seed)
    return None


def _too_large(X: Any, device: torch.device) -> bool:
    if device.type != "cuda" or not isinstance(X, (Tensor, np.ndarray)) or getattr(X, "is_cuda", False):
        return False
    return bool(X.nbytes > SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0])


def unwrapped(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """The tensors of a TensorDataset, which are arrays; anything else as it is."""
    if type(X) is TensorDataset and y is None and sample_weight is None and len(X.tensors) in (2, 3):
        return X.tensors[0], X.tensors[1], X.tensors[2] if len(X.tensors) == 3 else None
    return X, y, sample_weight


def check_passes(source: Source | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options with one pass where there is only one and no other number was asked for."""
    if source is None or not source.one_shot:
        return options
    passes = options.get("max_iter")
    if passes not in (None, 1):
        raise InputError(
            f"X is an iterator, which gives one pass, but max_iter={passes!r} passes were asked for. Give a function "
            "that returns a new iterator for each pass (lambda: batches()), or max_iter=1."
        )
    return options | {"max_iter": 1}


def first_batches(first: FirstRows, check: Check) -> Batch:
    """The first rows of a stream, checked batch by batch."""
    found: list[Batch] = []
    for j, (x, y, weight) in enumerate(first.batches):
        with naming(0, j):
            found.append(check(x, y, weight))
            if found[j].x.shape[1:] != found[0].x.shape[1:] or (weight is None) != (found[0].counts is None):
                raise InputError(
                    "its samples have another shape than those before, or only some have a weight."
                )
    parts = zip(*found, strict=True)
    return Batch(*(None if column[0] is None else torch.cat(column) for column in parts))  # type: ignore[arg-type]


def stream_of_source(
    first: FirstRows,
    rows: Batch,
    check: Check,
    chain: Chain,
    device: torch.device,
    seed: int,
    comm: Communicator,
) -> Stream:
    """The stream of a source; the monitor sample is taken from its first ``rows``, drawn with the seed."""
    own: Batches = CheckedBatches(
        first.source, first, check, tuple(rows.x.shape[1:]), pinned=device.type == "cuda"
    )
    monitor = _monitor(ArrayBatches(*rows, 1, seed), seed, comm)
    batches = own if comm.alone else Together(own, comm)
    return Stream(batches, monitor, passes_of(chain, batches.batches_per_pass(), batches.n_samples))


def stream_of_arrays(
    rows: Batch, chain: Chain, options: TrainOptions, seed: int, comm: Communicator
) -> Stream:
    """The stream of data that lie in memory; the monitor sample is drawn with the seed.

    ``batch_size`` counts the rows of a batch on all ranks together.
    """
    own = torch.zeros(comm.size + 1, dtype=torch.float64, device=rows.x.device)
    own[comm.rank] = len(rows.x)
    own[-1] = len(rows.x) if rows.counts is None else rows.counts.double().sum()
    *counts, samples = comm.total(own)[0].tolist()
    each = [int(count) for count in counts]
    n_rows, size = sum(each), options.batch_size
    if min(each) == 0:
        raise InputError(
            f"mode='streaming' needs rows on every rank; of {comm.size} ranks some have none. Leave those out, or name "
            "another mode."
        )
    if size is None:
        kinds = {"convolutions": chain.has_images, "jumps": chain.has_jumps, "whole": is_whole(chain)}
        size = default_batch_size(n_rows, **kinds)
    n_batches = min(max(1, round(n_rows / size)), *each, n_rows)
    shards = None
    if rows.counts is None and comm.few_messages:  # all batches of a rank are of one size
        sizes = [n // n_batches for n in each]
        shards = Shards(comm, sum(sizes), sum(sizes), sum(sizes[: comm.rank]))
    batches = ArrayBatches(*rows, n_batches, seed, samples, shards)
    return Stream(batches, _monitor(batches, seed, comm), passes_of(chain, n_batches, n_rows))


def passes_of(chain: Chain, steps: int | None, n_rows: float | None) -> int:
    """The default number of passes for this network."""
    return default_passes(steps, n_rows, convolutions=chain.has_images, jumps=chain.has_jumps)


def _monitor(batches: ArrayBatches, seed: int, comm: Communicator) -> Batch:
    return batches.batch(monitor_rows(len(batches.x), seed, batches.x.device, comm.size))
