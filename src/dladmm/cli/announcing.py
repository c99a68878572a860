"""What a run says on standard error before it begins: data, task, network, mode, memory and theory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from dladmm.api.choosing import CROSS_FITTED
from dladmm.api.cross_fit import copies_for
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import TableData
from dladmm.engine.certificate_text import guarantee
from dladmm.engine.memory import needs_of
from dladmm.engine.memory_limit import bytes_of, chunk
from dladmm.engine.options import make_options
from dladmm.losses import get_loss
from dladmm.network.chain import Chain
from dladmm.tables.content import printable
from dladmm.training.checks import check_device, check_dtype

OTHER_TASK = {"classification": "regression", "regression": "classification"}


def announce(
    config: RunConfig,
    data: str,
    widths: list[int],
    memory: float,
    folder: Path,
    *,
    task: str = "",
    mode: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Print it; ``config`` has been decided, ``task`` and ``mode`` say by what."""
    bias = 0 if config.network == "gcn" else 1
    parameters = sum((a + bias) * b for a, b in pairwise(widths))
    options = make_options(**config.options())
    loss = get_loss(str(config.loss))
    promise = guarantee(
        options.starting_rho(loss.H),
        loss.H,
        config.network == "gcn" and config.rows in ("train", "fixed"),
        accelerated=options.mode == "accelerated",
        streaming=options.mode == "streaming",
    )
    kind = loss.kind
    decided = f" ({task}; --task {OTHER_TASK[kind]} for the other)" if task else ""
    lines = [
        f"data       {data}",
        *(f"table      {printable(note)}" for note in notes),
        f"task       {kind}, loss {config.loss}{decided}",
        f"network    {config.network} {'-'.join(map(str, widths))} ({config.activation}), {parameters:,} parameters",
        f"mode       {config.mode}{mode}",
        f"memory     about {memory / 1e6:,.0f} MB above the data",
        f"theory     {promise}",
        f"run        {folder}",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def mode_words(config: RunConfig, asked: str, n_rows: int) -> str:
    """What the mode is and who chose it."""
    chosen = (
        "" if asked != "auto" else ", chosen by the data and the settings (--mode convergent: the paper's)"
    )
    if config.mode == CROSS_FITTED:
        return f": {copies_for(n_rows)} copies of the network, merged into one{chosen}"
    return chosen


def peak_bytes(config: RunConfig, chain: Chain, data: TableData) -> int:
    """Peak memory of the run's tensors, in bytes."""
    options = make_options(**config.options())
    needs = needs_of(
        chain,
        data.x_train,
        options,
        options.penalty(config.penalty()),
        dtype=check_dtype("float32" if config.dtype == "auto" else config.dtype),
        device=check_device(config.device),
        n_validation=len(data.x_test),
    )
    if options.max_memory is None:
        return needs.peak
    return replace(needs, at_once=chunk(needs, bytes_of(options.max_memory), data.x_train)).peak


def graph_bytes(widths: list[int], n_rows: int, dtype: str) -> float:
    """Estimated bytes: input, z, a and predictions of every layer, temporaries of the widest, float64 Gram matrices."""
    size = 8 if dtype == "float64" else 4
    per_row = widths[0] + 4 * sum(widths[1:-1]) + 4 * widths[-1] + 3 * max(widths)
    grams = 3 * max(widths) ** 2 * 8 + sum(w**2 for w in widths[:-1]) * 8
    return float(n_rows * per_row * size + grams)
